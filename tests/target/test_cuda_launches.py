"""Launches on a GPU by the native program. Without a GPU, a function of this test stands in for cuLaunchKernel."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref

import pytest
import torch
from torch.profiler import profile

from kiln import _native
from kiln.target.cuda import driver
from kiln.target.native_program import Launcher, assemble
from kiln.target.program_text import program_text
from tests.target.ptx_samples import PLUS_ONE

LaunchKernel = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
F32 = torch.float32
STREAM = 0x7F0000001000
FUNCTION = 0xFEED_0000_BEEF


def never(arguments):
    raise AssertionError("not natively")


class Gpu:
    """Notes launches. Kernels take two pointers to floats, then sizes: the second gets the first plus 1."""

    def __init__(self, *errors):
        self.errors = list(errors)  # that the first launches give
        self.launches, self.parameters, self.streams, self.failures = [], [], [], []
        self.entry = LaunchKernel(self.launch)
        self.given = Launcher(ctypes.cast(self.entry, ctypes.c_void_p).value, self.current_stream, self.failed)

    def current_stream(self, device):
        self.streams.append(device)
        return STREAM

    def failed(self, name, error, device):
        self.failures.append((name, error, device))
        if error != 201:
            raise RuntimeError(f"{name}: error {error}")

    def launch(self, function, x, y, z, threads, threads_y, threads_z, shared, stream, parameters, extra):
        self.launches.append((function, (x, y, z), (threads, threads_y, threads_z), shared, stream, extra))
        if self.errors and (error := self.errors.pop(0)):
            return error
        words = [ctypes.cast(parameters[place], ctypes.POINTER(ctypes.c_int64))[0] for place in range(3)]
        self.parameters.append(words)
        source, target = (ctypes.cast(word, ctypes.POINTER(ctypes.c_float)) for word in words[:2])
        for place in range(words[2]):
            target[place] = source[place] + 1
        return 0


@pytest.fixture
def gpu():
    return Gpu()


def layout(*sizes, alignment=None):
    plain = F32, sizes, torch.empty(sizes).stride()
    return plain if alignment is None else (*plain, alignment)


def launch(source, target, size, blocks=3, written=0, offset=0):
    return "cuda_launch", "plus_one", FUNCTION, ((source, offset, 0), (target, 0, written)), (size,), blocks, 128, 64


def program(gpu, inputs, registers, steps, outputs, otherwise=never, instructions=(), checks=()):
    beginning = list(instructions), list(checks), []
    return _native.OperatorProgram(inputs, registers, steps, outputs, otherwise, *beginning, -1, gpu.given)


def test_a_launch_gets_its_geometry_its_stream_and_its_parameters(gpu):
    steps = [
        (("aten::mul", "Tensor"), (0, 0), (1,), (layout(4),)),
        ("allocate", 2, layout(4), -1),
        launch(1, 2, 4),
        (("aten::neg", ""), (2,), (3,)),
    ]
    x = torch.randn(4)
    found, inside = program(gpu, 1, 4, steps, [3, 2])([x])
    assert gpu.launches == [(FUNCTION, (3, 1, 1), (128, 1, 1), 64, STREAM, None)]
    assert gpu.parameters[0][1:] == [inside.data_ptr(), 4]
    assert torch.equal(inside, x * x + 1) and torch.equal(found, -inside)


def test_the_stream_is_asked_for_once_a_call(gpu):
    steps = [("allocate", 1, layout(4), -1), launch(0, 1, 4), ("allocate", 2, layout(4), -1), launch(1, 2, 4)]
    run = program(gpu, 1, 3, steps, [2])
    for calls in (1, 2):
        assert torch.equal(run([torch.zeros(4)])[0], torch.full((4,), 2.0))
        assert gpu.streams == [-1] * calls and len(gpu.launches) == 2 * calls


def test_a_stream_that_cannot_be_had_leaves_the_inputs(gpu):
    def fail(device):
        raise LookupError("no stream")

    gpu.given = gpu.given._replace(current_stream=fail)
    given = [torch.zeros(4)]
    with pytest.raises(LookupError, match="no stream"):
        program(gpu, 1, 2, [("allocate", 1, layout(4), -1), launch(0, 1, 4)], [1])(given)
    assert len(given) == 1 and not gpu.launches
    gpu.given = gpu.given._replace(current_stream=lambda device: 0)
    program(gpu, 1, 2, [("allocate", 1, layout(4), -1), launch(0, 1, 4)], [1])(given)
    assert gpu.launches[0][4] is None  # the default stream


def test_offsets_and_sizes_that_vary(gpu):
    instructions = [("size", 0, 0), ("constant", 4, 0), ("floordiv", 0, 1)]
    steps = [("allocate", 1, (F32, ((0,),), (1,)), -1), launch(0, 1, (0,), blocks=(2,))]
    run = program(gpu, 1, 2, steps, [1], instructions=instructions)
    for size in (8, 40):
        assert torch.equal(run([torch.zeros(size)])[0], torch.ones(size))
        assert gpu.launches[-1][1] == (size // 4, 1, 1)
    before = len(gpu.launches)
    run([torch.zeros(0)])
    assert len(gpu.launches) == before  # no blocks: nothing to launch
    x = torch.arange(8.0)
    steps = [("allocate", 1, layout(4), -1), launch(0, 1, 4, offset=16)]
    assert torch.equal(program(gpu, 1, 2, steps, [1])([x])[0], x[4:] + 1)


def test_too_many_blocks_are_an_error(gpu):
    steps = [("allocate", 1, layout(4), -1), launch(0, 1, 4, blocks=2**31)]
    with pytest.raises(RuntimeError, match="plus_one needs 2147483648 blocks"):
        program(gpu, 1, 2, steps, [1])([torch.zeros(4)])
    assert not gpu.launches


def test_many_parameters(gpu):
    """More than lie on the stack."""
    count = 300
    pointers = ((0, 0, 0), (1, 0, 0))
    step = "cuda_launch", "many", FUNCTION, pointers, tuple(range(4, 4 + count)), 1, 32, 0
    seen = []

    def launch(*arguments):
        parameters = arguments[9]
        seen.extend(ctypes.cast(parameters[k], ctypes.POINTER(ctypes.c_int64))[0] for k in range(2 + count))
        return 0

    gpu.entry = LaunchKernel(launch)
    gpu.given = gpu.given._replace(address=ctypes.cast(gpu.entry, ctypes.c_void_p).value)
    x = torch.zeros(4)
    (found,) = program(gpu, 1, 2, [("allocate", 1, layout(4), -1), step], [1])([x])
    assert seen == [x.data_ptr(), found.data_ptr(), *range(4, 4 + count)]


def test_values_die_at_their_last_launch(gpu):
    steps = [("allocate", 1, layout(4), -1), launch(0, 1, 4), ("allocate", 2, layout(4), 1), launch(1, 2, 4)]
    x = torch.zeros(4)
    reference = weakref.ref(x)
    given = [x]
    del x
    (found,) = program(gpu, 1, 3, steps, [2])(given)
    assert reference() is None and torch.equal(found, torch.full((4,), 2.0))


@pytest.mark.parametrize("holders", [0, 1])
def test_an_input_that_only_the_list_holds_gives_its_memory_to_a_result(gpu, holders):
    steps = [("allocate", 1, layout(4), -1), launch(0, 1, 4), ("allocate", 2, layout(4), 0), launch(1, 2, 4)]
    x = torch.zeros(4)
    address, kept = x.data_ptr(), [x] * holders
    given = [x]
    del x
    (found,) = program(gpu, 1, 3, steps, [2])(given)
    assert (found.data_ptr() == address) == (not kept)


def test_an_input_is_written(gpu):
    x = torch.zeros(4)
    (found,) = program(gpu, 1, 1, [launch(0, 0, 4, written=1)], [0])([x])
    assert found is x and torch.equal(x, torch.ones(4))


def test_an_error_of_the_driver_is_put_into_words_by_python():
    gpu = Gpu(0, 719)
    steps = [("allocate", 1, layout(4), -1), launch(0, 1, 4), launch(0, 1, 4)]
    run = program(gpu, 1, 2, steps, [1])
    with pytest.raises(RuntimeError, match="plus_one: error 719"):
        run([torch.zeros(4)])
    assert gpu.failures == [("plus_one", 719, -1)] and len(gpu.launches) == 2
    assert torch.equal(run([torch.zeros(4)])[0], torch.ones(4))  # the program itself is as before


def test_a_launch_in_a_new_thread_is_tried_again():
    gpu = Gpu(201)
    run = program(gpu, 1, 2, [("allocate", 1, layout(4), -1), launch(0, 1, 4)], [1])
    assert torch.equal(run([torch.zeros(4)])[0], torch.ones(4))
    assert gpu.failures == [("plus_one", 201, -1)] and len(gpu.launches) == 2


def test_a_launch_is_tried_twice_and_no_more():
    gpu = Gpu(201, 201, 201)
    run = program(gpu, 1, 2, [("allocate", 1, layout(4), -1), launch(0, 1, 4)], [1])
    with pytest.raises(RuntimeError, match="the kernel plus_one could not be launched: error 201 of the CUDA driver"):
        run([torch.zeros(4)])
    assert len(gpu.launches) == 2


def test_several_threads_run_one_program(gpu):
    run = program(gpu, 1, 2, [("allocate", 1, layout(4), -1), launch(0, 1, 4)], [1])
    found = {}

    def call(number):
        for turn in range(10):
            found[number, turn] = run([torch.full((4,), float(number))])[0].tolist()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and all(values == [number + 1.0] * 4 for (number, _), values in found.items())


def test_the_profiler_shows_the_kernel(gpu):
    run = program(gpu, 1, 2, [("allocate", 1, layout(4), -1), launch(0, 1, 4)], [1])
    with profile() as recorded:
        run([torch.zeros(4)])
    assert "plus_one" in {event.name for event in recorded.events()}


def test_a_cycle_through_the_launcher_is_found():
    gpu = Gpu()
    run = program(gpu, 1, 2, [("allocate", 1, layout(4), -1), launch(0, 1, 4)], [1])
    gpu.run, reference = run, weakref.ref(gpu)
    del run, gpu
    gc.collect()
    assert reference() is None


# ---- alignment -------------------------------------------------------------------------------------------------------


def test_an_input_that_is_not_aligned_runs_otherwise(gpu):
    steps = [("allocate", 1, layout(4), -1), launch(0, 1, 4)]
    seen = []

    def otherwise(values):
        seen.append(values[0].data_ptr())
        return ("otherwise",)

    run = program(gpu, 1, 2, steps, [1], otherwise, checks=[(0, layout(4, alignment=16))])
    whole = torch.zeros(9)
    assert whole.data_ptr() % 16 == 0
    assert torch.equal(run([whole[4:8]])[0], torch.ones(4)) and not seen
    assert run([whole[1:5]]) == ("otherwise",) and seen == [whole[1:].data_ptr()]
    assert len(gpu.launches) == 1


def test_a_result_of_an_operator_that_is_not_aligned_is_copied(gpu):
    steps = [
        (("aten::slice", "Tensor"), (0, (0,), (1,), (5,), (1,)), (1,), (layout(4, alignment=16),)),
        ("allocate", 2, layout(4), -1),
        launch(1, 2, 4),
    ]
    x = torch.arange(6.0)
    assert torch.equal(program(gpu, 1, 3, steps, [2])([x])[0], x[1:5] + 1)
    assert gpu.parameters[0][0] % 16 == 0
    steps[0] = (*steps[0][:3], (layout(4),))
    program(gpu, 1, 3, steps, [2])([x])
    assert gpu.parameters[1][0] == x[1:].data_ptr()


# ---- wrong descriptions ----------------------------------------------------------------------------------------------

GOOD = launch(0, 1, 4)
WRONG = {
    "no function": (*GOOD[:2], 0, *GOOD[3:]),
    "no name": (GOOD[0], 5, *GOOD[2:]),
    "pointers of two": (*GOOD[:3], ((0, 0),), *GOOD[4:]),
    "no threads": (*GOOD[:6], 0, 0),
    "too many threads": (*GOOD[:6], 1025, 0),
    "negative shared memory": (*GOOD[:6], 32, -1),
    "a number that is not there": (*GOOD[:5], (0,), 32, 0),
    "too few parts": GOOD[:7],
}


@pytest.mark.parametrize("step", WRONG.values(), ids=WRONG)
def test_wrong_launches_are_refused(gpu, step):
    allocate = ("allocate", 1, layout(4), -1)
    program(gpu, 1, 2, [allocate, GOOD], [1])
    with pytest.raises((TypeError, ValueError)):
        program(gpu, 1, 2, [allocate, step], [1])


def test_a_launch_needs_a_launcher():
    steps = [("allocate", 1, layout(4), -1), GOOD]
    with pytest.raises(ValueError, match="has no launcher"):
        _native.OperatorProgram(1, 2, steps, [1], never)


@pytest.mark.parametrize("launcher", [(1, print), (0, print, print), (1, print, 5), ("1", print, print)], ids=repr)
def test_wrong_launchers_are_refused(launcher):
    with pytest.raises((TypeError, ValueError)):
        _native.OperatorProgram(1, 2, [], [0], never, [], [], [], -1, launcher)


def test_wrong_alignments_are_refused():
    for alignment in (0, -16, 12):
        with pytest.raises(ValueError, match="a power of two"):
            _native.OperatorProgram(1, 2, [], [0], never, [], [(0, layout(4, alignment=alignment))])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_program_on_a_gpu_that_is_not_there_is_refused():
    with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        _native.OperatorProgram(1, 1, [], [0], never, [], [], [], 0)


def test_a_constant_on_another_device_is_refused(gpu):
    constant = torch.empty(4, device="meta")
    with pytest.raises(ValueError, match="on another device"):
        program(gpu, 0, 1, [("allocate", 0, layout(4), -1), launch((constant,), 0, 4)], [0])


# ---- descriptions ----------------------------------------------------------------------------------------------------


def described(steps, **more):
    empty = {"instructions": [], "checks": [], "exposed": [], "written": [], "outputs": [1]}
    return {"inputs": 1, "registers": 2, "steps": steps, **empty, **more}


ALLOCATE = ["allocate", 1, ["float32", [4], [1]], -1]
LAUNCH = ["cuda_launch", "plus_one", 0, [[0, 0, 0], [1, 0, 0]], [4], 3, 128, 64]


def test_a_description_becomes_a_program(gpu):
    checks = [[0, ["float32", [4], [1]]]]
    run = assemble(described([ALLOCATE, LAUNCH], checks=checks), [FUNCTION], [], never, launcher=gpu.given)
    assert torch.equal(run([torch.zeros(4)])[0], torch.ones(4))
    assert gpu.launches == [(FUNCTION, (3, 1, 1), (128, 1, 1), 64, STREAM, None)]


def test_sizes_of_a_description_may_vary(gpu):
    launch = [*LAUNCH[:4], [[0]], [0], 32, 0]
    allocate = ["allocate", 1, ["float32", [[0]], [1]], -1]
    data = described([allocate, launch], instructions=[["size", 0, 0]], device=-1)
    assert torch.equal(assemble(data, [FUNCTION], [], never, launcher=gpu.given)([torch.zeros(5)])[0], torch.ones(5))
    assert gpu.launches[0][1] == (5, 1, 1)


def test_a_description_says_what_must_be_aligned(gpu):
    checks = [[0, ["float32", [4], [1]]]]
    data = described([ALLOCATE, LAUNCH], checks=checks, aligned=[[0, 16], [1, 16]])
    run = assemble(data, [FUNCTION], [], lambda values: ("otherwise",), launcher=gpu.given)
    whole = torch.zeros(5)
    assert run([whole[1:]]) == ("otherwise",)
    assert torch.equal(run([whole[:4]])[0], torch.ones(4))


def test_results_of_calls_that_must_be_aligned_are_copied(gpu):
    part = ["operator", "aten::slice", "Tensor", [0, ["value", 0], ["value", 1], ["value", 5], ["value", 1]], [2]]
    steps = [[*part, [["float32", [4], [1]]]], ALLOCATE, [*LAUNCH[:3], [[2, 0, 0], [1, 0, 0]], *LAUNCH[4:]]]
    data = described(steps, aligned=[[2, 16]]) | {"registers": 3}
    x = torch.arange(6.0)
    assert torch.equal(assemble(data, [FUNCTION], [], never, launcher=gpu.given)([x])[0], x[1:5] + 1)
    assert gpu.parameters[0][0] % 16 == 0


def test_a_constant_that_is_not_aligned_leaves_everything_to_the_operators(gpu):
    steps = [ALLOCATE, [*LAUNCH[:3], [[["constant", 0], 0, 0], [1, 0, 0]], *LAUNCH[4:]]]
    data = described(steps, aligned=[[["constant", 0], 16]])
    whole = torch.arange(5.0)
    run = assemble(data, [FUNCTION], [whole[:4]], never, launcher=gpu.given)
    assert torch.equal(run([torch.zeros(4)])[0], whole[:4] + 1)
    assert assemble(data, [FUNCTION], [whole[1:]], never, launcher=gpu.given) is never


def test_a_launch_as_text():
    data = described([ALLOCATE, LAUNCH, [*LAUNCH[:5], [0], 32, 0]], instructions=[["size", 0, 0]])
    assert program_text(data).splitlines()[-3:] == [
        "    kernel0(i0, r1, sizes=(4,), blocks=3, threads=128, shared=64)",
        "    kernel0(i0, r1, sizes=(4,), blocks=s0, threads=32)",
        "    return (r1,)",
    ]


# ---- on a GPU --------------------------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not driver.is_available(), reason="needs a GPU")
ROUNDS = 4


def on_gpu(otherwise=never, donor=-1, size=1000):
    """A program that adds 1 to floats on the first GPU, several times."""
    module = driver.load_module(PLUS_ONE, 0)
    shape = ["float32", [size], [1]]
    steps = []
    for place in range(1, ROUNDS + 1):
        steps.append(["allocate", place, shape, donor if place == ROUNDS else -1])
        pointers = [[place - 1, 0, 0], [place, 0, 0]]
        steps.append(["cuda_launch", "plus_one", 0, pointers, [size], (size + 127) // 128, 128, 0])
    data = described(steps, device=0, checks=[[0, shape]], aligned=[[0, 16]])
    data |= {"registers": ROUNDS + 1, "outputs": [ROUNDS]}
    return assemble(data, [module.function("plus_one")], [], otherwise, module, driver.launcher())


@needs_gpu
def test_a_program_on_a_gpu():
    x = torch.randn(1000, device="cuda")
    (found,) = on_gpu()([x])
    assert found.device == x.device and torch.equal(found, x + 1 + 1 + 1 + 1)
    assert found.is_contiguous() and torch.equal(found * 2, found + found)
    weight = x.clone().requires_grad_()
    (weight * found).sum().backward()
    assert torch.equal(weight.grad, found)


@needs_gpu
def test_a_program_on_a_gpu_in_a_new_thread():
    run, found = on_gpu(), []
    x = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: found.append(run([x])[0]))
    thread.start()
    thread.join()
    assert found[0].eq(4).all()


@needs_gpu
def test_a_program_on_a_gpu_runs_on_the_current_stream():
    run = on_gpu(size=1 << 24)
    x = torch.zeros(1 << 24, device="cuda")
    side = torch.cuda.Stream()
    for _ in range(5):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
            (found,) = run([x])
            done = found.eq(x + 4).all()
        torch.cuda.current_stream().wait_stream(side)
        assert done


@needs_gpu
def test_a_program_on_a_gpu_in_a_cuda_graph():
    run = on_gpu()
    x = torch.zeros(1000, device="cuda")
    run([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = run([x])
    for value in (5, 7):
        x.fill_(value)
        graph.replay()
        assert found.eq(value + 4).all()


@needs_gpu
def test_memory_on_a_gpu_is_used_again():
    run = on_gpu(donor=0)
    run([torch.zeros(1000, device="cuda")])
    x = torch.zeros(1000, device="cuda")
    address, given = x.data_ptr(), [x]
    assert run([x])[0].data_ptr() != address  # held by this function, too
    del x
    (found,) = run(given)
    assert found.data_ptr() == address and found.eq(4).all()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        (found,) = run([found])
    assert torch.cuda.memory_allocated() == before


@needs_gpu
def test_inputs_that_are_not_as_the_gpu_needs_them_run_otherwise():
    run = on_gpu(lambda given: ("otherwise",))
    for given in (torch.zeros(1001, device="cuda")[1:], torch.zeros(1000), torch.zeros(1000, 1, device="cuda")):
        assert run([given]) == ("otherwise",)


@needs_gpu
def test_a_launch_that_a_gpu_refuses():
    module = driver.load_module(PLUS_ONE, 0)
    step = ["cuda_launch", "plus_one", 0, [[0, 0, 0], [1, 0, 0]], [4], 3, 128, 900_000]
    data = described([ALLOCATE, step], device=0)
    run = assemble(data, [module.function("plus_one")], [], never, module, driver.launcher())
    with pytest.raises(RuntimeError, match="The kernel plus_one could not be launched: cuLaunchKernel says CUDA_ERROR"):
        run([torch.zeros(4, device="cuda")])
    assert on_gpu()([torch.zeros(1000, device="cuda")])[0].eq(4).all()
