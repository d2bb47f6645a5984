"""Launches of one kernel that become one launch on a GPU: which do, at what place, and what the program computes."""

from __future__ import annotations

import json
import random

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.capture.torch import optimizer_steps
from kiln.codegen import pipeline
from kiln.codegen.program_description import Describer
from kiln.loops.reference import Reference
from kiln.loops.steps import Call, Launch, Scheduled, uses_of
from kiln.lower.schedule import joint_launches
from kiln.lower.schedule.concurrency import StepMemory
from kiln.lower.schedule.memory_plan import plan_memory
from kiln.target.cuda import driver
from kiln.target.cuda.cuda_target import CudaTarget
from kiln.target.program_text import program_text
from tests.support.cuda_programs import CUDA, cuda_graph_of, cuda_scheduled_of

TARGET = CudaTarget(CUDA)
needs_gpu = pytest.mark.skipif(not driver.is_available(), reason="needs a GPU")


def runs_of(function, inputs, changed=None, **how):
    """The numbers of launches of the runs, 0 for calls; and all of the plan."""
    scheduled = cuda_scheduled_of(function, inputs, **how)
    plan = plan_memory(scheduled, changed, is_for_gpu=True)
    return [0 if isinstance(run[0], Call) else len(run) for run in plan.runs], plan, scheduled


def check_order(plan, scheduled):
    """Each step runs once; steps that depend on each other are in their order, and never in one run."""
    places = {step: place for place, run in enumerate(plan.runs) for step in run}
    assert len(places) == sum(map(len, plan.runs)) and set(places) == set(scheduled.steps)
    for run in plan.runs:
        assert len(run) == 1 or len({step.kernel for step in run}) == 1
    uses = [(uses_of(step), places[step]) for step in scheduled.steps]
    for number, ((reads, writes), place) in enumerate(uses):
        for (other_reads, other_writes), later in uses[number + 1 :]:
            if writes & (other_reads | other_writes) or reads & other_writes:
                assert place < later


def held(steps, outputs):
    return max(StepMemory(steps, outputs, 0).held)


# ---- which launches are joined ---------------------------------------------------------------------------------------


def test_equal_work_on_many_tensors_is_one_launch():
    inputs = [torch.randn(100 + 10 * number) for number in range(20)]
    counts, plan, scheduled = runs_of(lambda *xs: [x * 2 for x in xs], inputs)
    assert counts == [20]
    check_order(plan, scheduled)


def test_launches_that_depend_on_each_other_are_not_joined():
    def function(x, y):
        a = x.exp()
        b = (a @ y).exp()
        return (b @ y).exp()

    counts, plan, scheduled = runs_of(function, [torch.randn(64, 64), torch.randn(64, 64)])
    assert counts == [1, 0, 1, 0, 1]
    check_order(plan, scheduled)


def test_casts_of_weights_move_up():
    def function(x, *weights):
        for weight in weights:
            x = x @ weight.to(torch.bfloat16)
        return x

    weights = [torch.randn(64, 64) for _ in range(6)]
    counts, plan, scheduled = runs_of(function, [torch.randn(8, 64, dtype=torch.bfloat16), *weights])
    assert counts == [6, *[0] * 6]
    check_order(plan, scheduled)


def test_casts_of_gradients_move_down():
    def function(x, *weights):
        return [(x @ weight).float() for weight in weights]

    weights = [torch.randn(64, 64, dtype=torch.bfloat16) for _ in range(6)]
    counts, plan, scheduled = runs_of(function, [torch.randn(64, 64, dtype=torch.bfloat16), *weights])
    assert counts == [*[0] * 6, 6]
    check_order(plan, scheduled)


def test_the_peak_of_memory_stays():
    """Weights of 64 MB are not all cast at the beginning of a program that holds two of them at a time."""

    def function(x, *weights):
        for weight in weights:
            x = x @ weight.to(torch.bfloat16)
        return x

    size = 2048
    weights = [torch.randn(size, size) for _ in range(12)]
    counts, plan, scheduled = runs_of(function, [torch.randn(size, size, dtype=torch.bfloat16), *weights])
    check_order(plan, scheduled)
    assert 1 < sum(count > 0 for count in counts) < 12
    before = held(scheduled.steps, scheduled.outputs)
    after = held([step for run in plan.runs for step in run], scheduled.outputs)
    assert after <= 1.07 * max(before, joint_launches.FREE_BYTES)


def test_large_launches_stay():
    size = joint_launches.LARGE_LAUNCH // 8
    inputs = [torch.empty(size + 16) for _ in range(3)]
    counts, _, _ = runs_of(lambda *xs: [x.exp() for x in xs], inputs)
    assert counts == [1, 1, 1]


def test_inputs_that_are_changed_are_read_first():
    """y's new content depends on x's old one."""

    def function(x, y, z):
        return x * 2, x * 3 + y, z * 2

    inputs = [torch.randn(1000) for _ in range(3)]
    counts, plan, scheduled = runs_of(function, inputs, {0: 0, 1: 1, 2: 2})
    check_order(plan, scheduled)
    written = {result.name: changed for result, changed in plan.written.items()}
    assert len(written) == 3
    places = {buffer: place for place, run in enumerate(plan.runs) for step in run for buffer in uses_of(step)[1]}
    x = scheduled.inputs[0]
    new = next(result for result, changed in plan.written.items() if changed is x)
    for place, run in enumerate(plan.runs):
        for step in run:
            if x in uses_of(step)[0] and new not in uses_of(step)[1]:
                assert place < places[new]


def random_function(seed):
    """Products, sums and casts over a few values, at random."""

    def function(*given):
        choose = random.Random(seed)
        values = list(given)
        for _ in range(choose.randint(10, 40)):
            one, other = choose.choice(values), choose.choice(values)
            made = choose.choice(
                (
                    lambda a, b: a @ b,
                    lambda a, b: a * 2,
                    lambda a, b: a * 2,
                    lambda a, b: a.exp() * 0.01,
                    lambda a, b: a.to(torch.float64).to(torch.float32) if a.dtype is torch.float32 else a,
                    lambda a, b: torch.softmax(a, 1),
                    lambda a, b: torch.softmax(a + b, 1),
                )
            )
            values.append(made(one, other))
        return choose.sample(values[len(given) :], choose.randint(1, 8))

    return function


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_keep_their_order_and_meaning(seed):
    """The steps in the order of the runs, computed with torch, give what the graph gives."""
    torch.manual_seed(seed)
    inputs = [torch.randn(8, 8) for _ in range(3)]
    function = random_function(seed)
    counts, plan, scheduled = runs_of(function, inputs)
    check_order(plan, scheduled)
    TARGET.arrange(plan.launches_together)
    json.dumps(Describer(scheduled, plan, TARGET).run())
    moved = Scheduled(scheduled.inputs, [step for run in plan.runs for step in run], scheduled.outputs)
    found = Reference(moved, inputs).run()
    for one, other in zip(found, function(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)


def adam_step(*given):
    """What compiled steps of Adam compute, where the parameters are on a GPU and their counts on the CPU."""
    count = len(given) // 5
    params, grads, averages, squares, steps = (list(given[count * place :][:count]) for place in range(5))
    changed = [[one.clone() for one in some] for some in (params, averages, squares, steps)]
    rates = {"beta1": 0.9, "beta2": 0.999, "lr": 0.1, "weight_decay": 0.01, "eps": 1e-8}
    flags = ("amsgrad", "has_complex", "maximize", "capturable", "differentiable")
    how = rates | dict.fromkeys(flags, False) | {"decoupled_weight_decay": True}
    optimizer_steps.adam(changed[0], grads, changed[1], changed[2], [], changed[3], None, None, **how)
    return [one for some in changed for one in some]


def test_all_parameters_of_an_optimizer_are_one_launch():
    shapes = [(768,), (64, 768), (100,), (64, 64)] * 5
    inputs = [torch.randn(shape) for _ in range(4) for shape in shapes] + [torch.tensor(3.0) for _ in shapes]
    function = torch.func.functionalize(adam_step)
    counts, plan, scheduled = runs_of(function, inputs, stay=range(4 * len(shapes), 5 * len(shapes)))
    assert [count for count in counts if count] == [len(shapes)] and len(scheduled.kernels) == 1
    check_order(plan, scheduled)


# ---- programs --------------------------------------------------------------------------------------------------------


def described(function, *inputs, **how):
    module = cuda_graph_of(function, inputs, **how)
    _, _, scheduled = pipeline.lower_for(module, TARGET, [])
    plan = plan_memory(scheduled, is_for_gpu=True)
    TARGET.arrange(plan.launches_together)
    return Describer(scheduled, plan, TARGET).run(), scheduled


def test_a_table_as_data_and_as_text():
    data, scheduled = described(lambda x, y: (x.exp(), y.exp()), torch.randn(1000), torch.randn(3000))
    ((_, name, number, works, rows, threads, shared),) = [one for one in data["steps"] if one[0] == "cuda_table"]
    assert (name, number, rows, shared) == ("kiln_exp_0", 0, 2, 0)
    assert [sizes for _, sizes, _ in works] == [[1000], [3000]]
    for (source, target), (size,), blocks in works:
        assert source[0] in (0, 1) and target[0] >= 2 and blocks * threads * 8 >= size
    assert json.loads(json.dumps(data)) == data
    text = program_text(data)
    assert "with together:\n        kiln_exp_0(i0, r2, sizes=(1000,), blocks=" in text
    compile(text, "program", "exec")


def test_blocks_of_sizes_that_vary_in_a_table():
    data, _ = described(lambda x, y: (x.exp(), y.exp()), torch.randn(1000), torch.randn(3000), dynamic=True)
    ((_, _, _, works, *_),) = [one for one in data["steps"] if one[0] == "cuda_table"]
    first, second = (blocks for _, _, blocks in works)
    assert isinstance(first, list) and isinstance(second, list) and first != second


def test_reductions_of_whole_tensors_as_data():
    """Lengths, places of results and numbers of blocks are those of each launch."""
    xs = [torch.randn(shape) for shape in ((768,), (512, 256), (100,), (256, 512), (64, 1024), (8, 8))]
    data, scheduled = described(lambda *xs: torch.stack(torch._foreach_norm(xs, 2.0)), *xs)
    tables = [step for step in data["steps"] if step[0] == "cuda_table"]
    assert len(tables) == len(scheduled.kernels) == 3
    rows, small, sums = ([(sizes, blocks) for _, sizes, blocks in table[3]] for table in tables)
    assert [sizes for sizes, _ in rows] == [[8], [8], [4]] and [blocks for _, blocks in rows] == [8, 8, 4]
    assert sorted(sorted(sizes) for sizes, _ in sums) == [[1, 8], [3, 8], [4, 4]]
    assert sorted(sorted(sizes) for sizes, _ in small) == [[0, 768], [2, 100], [5, 64]]
    assert all(isinstance(blocks, int) for _, blocks in (*sums, *small))


def test_a_kernel_with_a_table_takes_a_single_launch_too():
    def function(x, y, z, w):
        a, b = x.exp(), y.exp()
        return (z @ a.view(32, 32) @ b.view(32, 32)) @ (z @ w).exp()

    inputs = [torch.randn(1024), torch.randn(1024), torch.randn(32, 32), torch.randn(32, 32)]
    data, scheduled = described(function, *inputs)
    assert len(scheduled.kernels) == 1 and scheduled.kernels[0].table_rows >= 2
    assert not [step for step in data["steps"] if step[0] == "cuda_launch"]


def test_a_kernel_of_many_pointers_has_no_table():
    """One row of it is more than half of what parameters may be."""

    def function(*xs):
        half = len(xs) // 2
        return [sum(xs[:half]), sum(xs[half:])]

    data, scheduled = described(function, *[torch.randn(100) for _ in range(2 * 270)])
    launches = [step for step in scheduled.steps if isinstance(step, Launch)]
    for launch in launches:
        assert launch.kernel.table_rows * len(launch.buffers) * 8 <= 4096
    assert sum(step[0].startswith("cuda_") for step in data["steps"])


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def launches_of(call):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        call()
        torch.cuda.synchronize()
    events = [event for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    names = [event.name for event in events if not event.is_user_annotation and "Buffer" not in event.name]
    assert any(name.startswith("kiln_") for name in names)
    return names


def tensors(count, dtype=torch.float32):
    torch.manual_seed(count)
    choose = random.Random(count)
    return [torch.randn(choose.choice((64, 100, 1000, 4096, 77_777)), device="cuda").to(dtype) for _ in range(count)]


@needs_gpu
@pytest.mark.parametrize("count", [1, 2, 3, 64, 150, 400])
def test_many_tensors_on_a_gpu(count):
    def function(xs):
        return [x * 2 + 1 for x in xs]

    xs = tensors(count)
    compiled = kiln.compile(function, backend="kiln")
    for one, other in zip(compiled(xs), function(xs), strict=True):
        assert torch.equal(one, other)
    assert 1 <= len(launches_of(lambda: compiled(xs))) <= 1 + count // 100


@needs_gpu
def test_sizes_that_vary_on_a_gpu():
    def function(x, y, z):
        return x.sigmoid(), y.sigmoid(), z.sigmoid()

    compiled = kiln.compile(function, dynamic=True, backend="kiln")
    for sizes in ((100, 2000, 30), (1, 7, 100_000), (0, 64, 5), (0, 0, 0), (4097, 4096, 4095)):
        given = [torch.randn(size, device="cuda") for size in sizes]
        for one, other in zip(compiled(*given), function(*given), strict=True):
            torch.testing.assert_close(one, other)


@needs_gpu
def test_a_checked_program_on_a_gpu():
    xs = tensors(40)
    compiled = kiln.compile(
        lambda xs: [x.exp().to(torch.bfloat16) for x in xs], backend="kiln", options={"check": True}
    )
    for one, other in zip(compiled(xs), xs, strict=True):
        torch.testing.assert_close(one, other.exp().to(torch.bfloat16))


@needs_gpu
@pytest.mark.parametrize("name", ["adamw", "adamw amsgrad", "adamw on the gpu", "adam", "sgd"])
def test_optimizers_on_a_gpu(name):
    make = {
        "adamw": lambda given: torch.optim.AdamW(given, lr=0.1),
        "adamw amsgrad": lambda given: torch.optim.AdamW(given, lr=0.1, amsgrad=True, foreach=False),
        "adamw on the gpu": lambda given: torch.optim.AdamW(given, lr=0.1, capturable=True),
        "adam": lambda given: torch.optim.Adam(given, lr=0.1, amsgrad=True, capturable=True),
        "sgd": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9, nesterov=True),
    }[name]
    ours, theirs = ([torch.nn.Parameter(x.clone()) for x in tensors(60)] for _ in range(2))
    optimizer, eager = make(ours), make(theirs)
    step = kiln.compile(optimizer.step, backend="kiln")
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            other.grad = torch.randn_like(other)
            one.grad = other.grad.clone()
        step()
        eager.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert 1 <= len(launches_of(step)) <= 12


@needs_gpu
@pytest.mark.parametrize("strange", [None, float("inf"), float("nan")])
def test_clipping_and_unscaling_on_a_gpu(strange):
    def clip(given):
        return torch.nn.utils.clip_grad_norm_(given, 1.0)

    def unscale(given):
        found, factor = torch.zeros(1, device="cuda"), torch.full((1,), 0.125, device="cuda")
        torch._amp_foreach_non_finite_check_and_unscale_([one.grad for one in given], found, factor)
        return found

    for function, most in ((clip, 8), (unscale, 6)):
        ours, theirs = ([torch.nn.Parameter(x.clone()) for x in tensors(60)] for _ in range(2))
        for one, other in zip(ours, theirs, strict=True):
            one.grad, other.grad = one.detach().clone(), one.detach().clone()
        if strange is not None:
            ours[7].grad[5] = theirs[7].grad[5] = strange
        compiled = kiln.compile(function, backend="kiln")
        torch.testing.assert_close(compiled(ours), function(theirs), equal_nan=True)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad, equal_nan=True)
        assert 1 <= len(launches_of(lambda: compiled(ours))) <= most  # noqa: B023


@needs_gpu
def test_a_training_step_on_a_gpu():
    def model():
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(6)]
        return torch.nn.Sequential(*layers).cuda()

    x = torch.randn(512, 256, device="cuda")
    gradients = []
    for compiled in (False, True):
        made = model()
        call = kiln.compile(made, backend="kiln") if compiled else made
        with torch.autocast("cuda", dtype=torch.bfloat16):
            F.mse_loss(call(x), x).backward()
        gradients.append([parameter.grad for parameter in made.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()
