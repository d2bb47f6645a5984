"""The steps of `kiln._native.OperatorProgram` that lowered graphs need: memory, views, launches, sizes that vary."""

from __future__ import annotations

import ctypes
import threading
import weakref

import pytest
import torch
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

from kiln import _native

Entry = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int64
)
F32 = torch.float32


def never(arguments):
    raise AssertionError("not natively")


class Kernel:
    """Adds 1 to some of the floats at its first pointer, which go to its second; notes its calls."""

    def __init__(self):
        self.pointers, self.sizes, self.runs = [], [], []
        self.entry = Entry(self.run)

    @property
    def address(self):
        return ctypes.cast(self.entry, ctypes.c_void_p).value

    def run(self, pointers, sizes, start, end):
        self.pointers.append((pointers[0], pointers[1]))
        self.sizes.append(sizes[0])
        self.runs.append((start, end))
        for place in range(start, end):
            source = ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_float))
            ctypes.cast(pointers[1], ctypes.POINTER(ctypes.c_float))[place] = source[place] + 1


@pytest.fixture
def kernel():
    return Kernel()


def layout(*sizes, strides=None, dtype=F32):
    return dtype, sizes, strides or tuple(torch.empty(sizes).stride() if all(type(s) is int for s in sizes) else (1,))


def launch(kernel, source, target, size, is_written=0):
    return "launch", "plus_one", one_launch(kernel, source, target, size, is_written)


def one_launch(kernel, source, target, size, is_written=0, work=0, is_whole=0):
    return kernel.address, ((source, 0, 0), (target, 0, is_written)), (size,), (size, work), is_whole


def test_a_kernel_runs_between_operators(kernel):
    steps = [
        (("aten::mul", "Tensor"), (0, 0), (1,), (layout(2, 3),)),
        ("allocate", 2, layout(2, 3), -1),
        launch(kernel, 1, 2, 6),
        (("aten::neg", ""), (2,), (3,)),
    ]
    program = _native.OperatorProgram(1, 4, steps, [3, 2], never)
    x = torch.randn(2, 3)
    given = [x]
    found, inside = program(given)
    assert not given
    torch.testing.assert_close(inside, x * x + 1)
    torch.testing.assert_close(found, -inside)
    assert kernel.runs == [(0, 6)]


def test_launches_of_one_step_share_the_threads():
    """Each thread takes its part of the line, whole launches where they say so; nothing is left out or done twice."""
    sizes, threads = (5, 1, 3000, 64, 0, 700), 3
    kernels = [Kernel() for _ in sizes]
    launches = [
        one_launch(kernel, 0, place + 1, size, work=4_000_000 * size, is_whole=int(size in (1, 64)))
        for place, (kernel, size) in enumerate(zip(kernels, sizes, strict=True))
    ]
    steps = [*(("allocate", n + 1, layout(size), -1) for n, size in enumerate(sizes)), ("launch", "many", *launches)]
    program = _native.OperatorProgram(1, 1 + len(sizes), steps, [n + 1 for n in range(len(sizes))], never)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = [program([torch.arange(3000.0)]) for _ in range(2)]
    finally:
        torch.set_num_threads(before)
    for found in results:
        for size, tensor in zip(sizes, found, strict=True):
            assert torch.equal(tensor, torch.arange(float(size)) + 1)
    for kernel, size in zip(kernels, sizes, strict=True):
        runs = sorted(kernel.runs)
        assert runs[::2] == runs[1::2]  # the same each time
        assert sum(end - start for start, end in runs[::2]) == size
    assert len(kernels[2].runs) == 2 * threads and len(kernels[3].runs) == 2 and not kernels[4].runs


def test_several_threads_run_one_program(kernel):
    program = _native.OperatorProgram(1, 2, [("allocate", 1, layout(4), -1), launch(kernel, 0, 1, 4)], [1], never)
    found = {}

    def call(number):
        for turn in range(20):
            found[number, turn] = program([torch.full((4,), float(number))])[0].tolist()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(values == [number + 1.0] * 4 for (number, _), values in found.items()) and len(found) == 80


def test_views_share_memory_and_versions():
    steps = [("view", 1, 0, (F32, (3, 2), (1, 3)), 1)]
    program = _native.OperatorProgram(1, 2, steps, [1], never)
    x = torch.randn(8)[1:]
    found = program([x])[0]
    assert torch.equal(found, x.as_strided((3, 2), (1, 3), 2))
    before = found._version
    x.add_(1)
    assert found._version == before + 1 and torch.equal(found, x.as_strided((3, 2), (1, 3), 2))
    with torch.inference_mode():
        y = torch.randn(7)
        assert program([y])[0].is_inference()
    assert program([y])[0].is_inference() and not program([x])[0].is_inference()


def test_a_constant_is_read_and_held(kernel):
    constant = torch.arange(4.0)
    steps = [("allocate", 0, layout(4), -1), launch(kernel, (constant,), 0, 4)]
    program = _native.OperatorProgram(0, 1, steps, [0], never)
    expected = constant + 1
    del constant
    assert torch.equal(program([])[0], expected)


# ---- memory that is used again ---------------------------------------------------------------------------------------


def in_place(kernel, outputs):
    steps = [("allocate", 1, layout(4), 0), launch(kernel, 0, 1, 4)]
    return _native.OperatorProgram(1, 2, steps, outputs, never)


def test_memory_of_a_donor_that_nobody_else_holds_is_taken(kernel):
    assert torch.equal(in_place(kernel, [1])([torch.zeros(4)])[0], torch.ones(4))
    assert kernel.pointers[0][0] == kernel.pointers[0][1]


@pytest.mark.parametrize("holder", ["tensor", "view", "saved", "numpy", "larger"])
def test_memory_that_somebody_holds_is_left_alone(kernel, holder):
    x = torch.zeros(8 if holder == "larger" else 4)
    held = {
        "tensor": lambda: x,
        "view": lambda: x.view(2, 2),
        "saved": lambda: x * x.clone().requires_grad_(),
        "numpy": lambda: x.numpy(),
        "larger": lambda: None,
    }[holder]()
    given = [x.detach() if holder != "numpy" else torch.from_numpy(held)]
    if holder == "larger":
        given = [given[0][:4]]
    if holder != "tensor":
        del x
    found = in_place(kernel, [1])(given)
    assert torch.equal(found[0], torch.ones(4))
    assert kernel.pointers[0][0] != kernel.pointers[0][1]


def test_a_donor_dies_with_the_call(kernel):
    program = in_place(kernel, [1])
    x = torch.zeros(4)
    gone = weakref.ref(x)
    given = [x]
    del x
    program(given)
    assert gone() is None


def test_an_input_is_written_where_it_is_asked_for(kernel):
    program = _native.OperatorProgram(1, 1, [launch(kernel, 0, 0, 4, 1)], [0], never)
    x = torch.zeros(4)
    assert program([x])[0] is x
    assert torch.equal(x, torch.ones(4))


def test_an_input_that_shares_memory_until_it_is_written_is_copied_then(kernel):
    program = _native.OperatorProgram(1, 1, [launch(kernel, 0, 0, 4, 1)], [], never)
    x = torch.zeros(4)
    lazy = torch._lazy_clone(x)
    program([lazy])
    assert torch.equal(lazy, torch.ones(4)) and torch.equal(x, torch.zeros(4))


# ---- sizes -----------------------------------------------------------------------------------------------------------

ARITHMETIC = [
    ("add", lambda a, b: a + b),
    ("mul", lambda a, b: a * b),
    ("floordiv", lambda a, b: a // b),
    ("mod", lambda a, b: a % b),
    ("min", min),
    ("max", max),
    ("pow", lambda a, b: a**b),
    ("eq", lambda a, b: int(a == b)),
    ("ne", lambda a, b: int(a != b)),
    ("lt", lambda a, b: int(a < b)),
    ("le", lambda a, b: int(a <= b)),
]


@pytest.mark.parametrize("name, meaning", ARITHMETIC, ids=[name for name, _ in ARITHMETIC])
def test_arithmetic_of_sizes_is_pythons(name, meaning):
    instructions = [("value", 0, 0), ("value", 1, 0), (name, 0, 1)]
    program = _native.OperatorProgram(2, 3, [], [2], never, instructions, [], [(2, 2)])
    for a in (-7, -1, 0, 1, 6, 7):
        for b in (-3, 0, 1, 2, 7):
            if (b == 0 and name in ("floordiv", "mod")) or (b < 0 and name == "pow"):
                with pytest.raises(RuntimeError):
                    program([a, b])
            else:
                assert program([a, b]) == (meaning(a, b),)


def test_sizes_come_from_the_inputs(kernel):
    instructions = [("size", 0, 0), ("size", 0, 1), ("mul", 0, 1), ("stride", 0, 0), ("constant", 3, 0)]
    steps = [
        ("allocate", 1, (F32, ((0,), (1,)), ((1,), 1)), -1),
        launch(kernel, 0, 1, (2,)),
        (("aten::narrow_copy", ""), (1, (0,), (0,), 2), (3,), ((F32, (1, (1,)), ((1,), 1)),)),
    ]
    checks = [(0, (F32, ((0,), (1,)), ((3,), 1)))]
    program = _native.OperatorProgram(1, 4, steps, [1, 3, 2], never, instructions, checks, [(0, 2)])
    program = _native.OperatorProgram(
        1,
        5,
        [*steps[:2], (("aten::narrow_copy", ""), (1, (0,), (0,), (1,)), (3,))],
        [1, 3, 4],
        never,
        instructions,
        checks,
        [(4, 4)],
    )
    for shape in ((2, 3), (5, 1)):
        x = torch.randn(shape)
        whole, part, three = program([x])
        torch.testing.assert_close(whole, x + 1)
        torch.testing.assert_close(part, (x + 1)[:1])
        assert three == 3


# ---- what goes otherwise ---------------------------------------------------------------------------------------------


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def dual():
    torch.autograd.forward_ad.enter_dual_level()
    return torch.autograd.forward_ad.make_dual(torch.zeros(4), torch.ones(4))


@pytest.mark.parametrize(
    "given",
    [
        lambda: torch.zeros(5),
        lambda: torch.zeros(8)[::2],
        lambda: torch.zeros(4, dtype=torch.float64),
        lambda: torch.zeros(4, device="meta"),
        lambda: torch.zeros(4).to_sparse(),
        lambda: torch._neg_view(torch.zeros(4)),
        lambda: 4,
        lambda: None,
        dual,
    ],
    ids=["size", "stride", "type", "device", "layout", "negated", "number", "none", "dual"],
)
def test_inputs_that_are_not_as_compiled_go_otherwise(kernel, given):
    seen = []
    steps = [("allocate", 1, layout(4), -1), launch(kernel, 0, 1, 4)]
    program = _native.OperatorProgram(1, 2, steps, [1], lambda values: seen.append(list(values)), [], [(0, layout(4))])
    try:
        value = given()
        assert program([value]) is None
    finally:
        while torch.autograd.forward_ad._current_level >= 0:
            torch.autograd.forward_ad.exit_dual_level()
    assert len(seen) == 1 and seen[0][0] is value and not kernel.sizes


def test_modes_that_see_operators_and_transforms_go_otherwise(kernel):
    seen = []

    def otherwise(values):
        seen.append(1)
        return (values[0] + 1,)

    steps = [("allocate", 1, layout(4), -1), launch(kernel, 0, 1, 4)]
    program = _native.OperatorProgram(1, 2, steps, [1], otherwise, [], [(0, layout(4))])
    with Passing():
        program([torch.zeros(4)])
    torch.vmap(lambda row: program([row])[0])(torch.zeros(3, 4))
    assert len(seen) == 2 and not kernel.sizes


# ---- results of operators, and errors --------------------------------------------------------------------------------


def test_results_are_laid_out_as_told():
    steps = [(("aten::t", ""), (0,), (1,), (layout(3, 2),))]
    found = _native.OperatorProgram(1, 2, steps, [1], never)([torch.arange(6.0).view(2, 3)])[0]
    assert found.is_contiguous() and torch.equal(found, torch.arange(6.0).view(2, 3).t())
    steps = [(("aten::sin", ""), (0,), (1,), (layout(2, dtype=torch.float64),))]
    assert _native.OperatorProgram(1, 2, steps, [1], never)([torch.zeros(2)])[0].dtype is torch.float64


def test_a_result_of_another_size_is_an_error_that_names_the_operator():
    steps = [(("aten::t", ""), (0,), (1,), (layout(2, 2),))]
    with pytest.raises(RuntimeError, match="aten::t gave"):
        _native.OperatorProgram(1, 2, steps, [1], never)([torch.zeros(2, 3)])


def test_lists_of_numbers_from_registers():
    steps = [(("aten::_foreach_mul", "ScalarList"), ([0, 0], [1, (3,)]), (2,)), (0, (2,), (3,)), (1, (2,), (4,))]
    program = _native.OperatorProgram(2, 5, steps, [3, 4], never)
    found = program([torch.ones(2), 2.5])
    assert found[0].tolist() == [2.5, 2.5] and found[1].tolist() == [3, 3]


def test_no_memory_is_eagers_error(kernel):
    size = 1 << 45
    steps = [("allocate", 1, layout(size, strides=(1,)), -1), launch(kernel, 0, 1, 1)]
    with pytest.raises(RuntimeError, match="(?i)memory"):
        _native.OperatorProgram(1, 2, steps, [1], never)([torch.zeros(1)])
    assert not kernel.sizes


def test_the_profiler_sees_kernels_by_name(kernel):
    steps = [("allocate", 1, layout(4), -1), launch(kernel, 0, 1, 4)]
    program = _native.OperatorProgram(1, 2, steps, [1], never)
    with profile() as found:
        program([torch.zeros(4)])
    assert any(event.name == "plus_one" for event in found.events())


WRONG = {
    "no launch": ("launch", "k"),
    "no address": ("launch", "k", (0, ((0, 0, 0),), (), (1, 1), 0)),
    "no pointers": ("launch", "k", (1, 0, (), (1, 1), 0)),
    "pointers of two": ("launch", "k", (1, ((0, 0),), (), (1, 1), 0)),
    "a constant that is no tensor": ("launch", "k", (1, (((5,), 0, 0),), (), (1, 1), 0)),
    "no extent": ("launch", "k", (1, ((0, 0, 0),), (), (), 0)),
    "a number that is not there": ("allocate", 1, (F32, ((0,),), (1,)), -1),
    "no type": ("allocate", 1, ("float32", (1,), (1,)), -1),
    "sizes and strides": ("allocate", 1, (F32, (1, 2), (1,)), -1),
    "an unknown kind": ("forget", 1),
    "nothing": (),
}


@pytest.mark.parametrize("step", WRONG.values(), ids=WRONG)
def test_wrong_steps_are_refused(step):
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        _native.OperatorProgram(1, 2, [step], [1], never)


@pytest.mark.parametrize(
    "beginning",
    [
        ([("sub", 0, 0)], [], []),
        ([("add", 0, 0)], [], []),
        ([("size", 1, 0)], [], []),
        ([("size", 0, -1)], [], []),
        ([], [(1, layout(1))], []),
        ([], [], [(0, 1)]),
    ],
)
def test_wrong_beginnings_are_refused(beginning):
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        _native.OperatorProgram(1, 2, [], [], never, *beginning)


def test_attributes_live_and_die_with_the_program(kernel):
    class Code:
        pass

    program = _native.OperatorProgram(0, 0, [], [], never)
    program.code = Code()
    program.itself = program
    gone = weakref.ref(program.code)
    assert program._boxed_call
    del program
    import gc

    gc.collect()
    assert gone() is None
