"""Graphs lowered for a GPU: which device, what is left to ATen, indices, scatters, types of sums, memory.

Nothing here needs a GPU: graphs are traced on fake tensors, and the reference interpreter computes them on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kiln.loops import ir, reference
from kiln.loops.steps import Launch
from kiln.lower.lowering import CannotLower, Lowering
from kiln.lower.schedule.memory_plan import plan_memory
from kiln.program.graph_device import CPU, device_of_graph
from tests.support.codegen_programs import calls, graph_of, launches, scheduled_of
from tests.support.cuda_programs import CUDA, cuda_graph_of, cuda_scheduled_of
from tests.target.cuda_on_cpu import run_as_on_gpu

aten = torch.ops.aten


def called(function, *inputs, **how):
    """The nodes that ATen runs, with the reasons."""
    return Lowering(cuda_graph_of(function, inputs, **how)).run().called


# ---- the device ------------------------------------------------------------------------------------------------------


def test_the_device_of_a_graph():
    x = torch.randn(4, 8)
    assert device_of_graph(graph_of(lambda x: x + 1, [x])) == CPU
    assert device_of_graph(cuda_graph_of(lambda x: x + 1, [x])) == CUDA
    assert device_of_graph(cuda_graph_of(lambda x: x.sum() * 2, [torch.tensor(1.0)])) == CUDA
    assert device_of_graph(cuda_graph_of(lambda: torch.zeros(3, device=CUDA) + 1, [])) == CUDA
    assert device_of_graph(cuda_graph_of(lambda x, s: x * s, [x, torch.tensor(2.0)], stay=[1])) == CUDA
    assert device_of_graph(cuda_graph_of(lambda x, y: (x.to("cpu") + y).exp().sin(), [x, x], stay=[1])) == CPU


def test_values_elsewhere_are_calls_of_aten():
    x, mask = torch.randn(4, 8), torch.ones(8)
    found = called(lambda x, mask: (x * 2).exp() + mask.to(CUDA), x, mask, stay=[1])
    assert set(found) == {"_to_copy"}
    assert set(called(lambda x: (x * 2).to("cpu"), x)) == {"_to_copy"}
    assert set(called(lambda x, s: (x * s).exp(), x, torch.tensor(2.0), stay=[1])) == {"mul"}
    assert "mul" in called(lambda x: (x * torch.tensor(2.0)).exp(), x)  # a constant of the CPU


def test_memory_that_calls_make_is_on_the_device():
    graph = cuda_graph_of(lambda x: aten.exponential.default(aten.empty_like(x)) * x, [torch.randn(4, 8)])
    (made,) = [
        item for item in Lowering(graph).run().items if getattr(item, "target", None) is aten.empty_strided.default
    ]
    assert made.kwargs["device"] == CUDA


def batch_norm_of_cudnn(x, weight, bias, mean, variance, is_training):
    if x.is_cuda:
        return aten.cudnn_batch_norm(x, weight, bias, mean, variance, is_training, 0.1, 1e-5)
    return aten.native_batch_norm(x, weight, bias, mean, variance, is_training, 0.1, 1e-5)


def normalized(x, mean, variance, training=True):
    return aten.cudnn_batch_norm.default(x, mean, mean, mean * 1.0, variance * 1.0, training, 0.1, 1e-5)[0]


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="traces cuDNN's operator, which this torch lacks")
def test_statistics_that_change_unseen():
    """cuDNN's batch norm changes running statistics without saying so. Only inputs may be changed where they are."""
    given = [torch.randn(4, 5, 6, 7), torch.randn(5), torch.rand(5)]
    with pytest.raises(CannotLower, match="changes its arguments"):
        called(normalized, *given)
    assert called(lambda *x: normalized(*x, training=False), *given) == {}

    def in_place(x, weight, mean, variance):
        return aten.cudnn_batch_norm.default(x, weight, weight, mean, variance, True, 0.1, 1e-5)[0]

    assert set(called(in_place, given[0], *torch.rand(3, 5))) == {"cudnn_batch_norm"}
    with pytest.raises(CannotLower, match="changes its arguments"):
        called(lambda *x: (in_place(*x), x[2] + 1), given[0], *torch.rand(3, 5))


LOWERED = {
    "softmax": (lambda x: torch.softmax(x * 2, -1), [torch.randn(16, 100)]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (64,), w, b), [torch.randn(3, 8, 64), *torch.randn(2, 64)]),
    "layer norm of bfloat16": (lambda x: F.layer_norm(x, (64,)), [torch.randn(3, 64).bfloat16()]),
    "cross entropy": (F.cross_entropy, [torch.randn(16, 100), torch.randint(0, 100, (16,))]),
    "embedding": (lambda w, i: F.embedding(i, w), [torch.randn(100, 8), torch.randint(0, 100, (4, 5))]),
    "group norm": (lambda x: F.group_norm(x, 4), [torch.randn(2, 8, 5, 5)]),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), [torch.randn(4, 8, 5, 5)]),
    "evaluated batch norm": (
        lambda x, m, v: F.batch_norm(x, m, v),
        [torch.randn(4, 8, 5, 5), torch.randn(8), torch.rand(8)],
    ),
    "batch norm of cuDNN": (
        lambda x, w, b: batch_norm_of_cudnn(x, w, b, None, None, True)[0],
        [torch.randn(4, 8, 5, 5), torch.randn(8), torch.randn(8)],
    ),
    "batch norm of cuDNN, channels last": (
        lambda x, w, b: batch_norm_of_cudnn(x, w, b, None, None, True)[0],
        [torch.randn(4, 8, 5, 5).to(memory_format=torch.channels_last), torch.randn(8), torch.randn(8)],
    ),
    "evaluated batch norm of cuDNN": (
        lambda x, w, m, v: batch_norm_of_cudnn(x, w, None, m, v, False)[0],
        [torch.randn(4, 8, 5, 5), torch.randn(8), torch.randn(8), torch.rand(8)],
    ),
    "variance": (lambda x: torch.var(x, -1), [torch.randn(4, 100)]),
    "cumulative sum": (lambda x: torch.cumsum(x, 1), [torch.randn(4, 100)]),
    "arange": (lambda x: x + torch.arange(100, device=x.device), [torch.randn(4, 100)]),
    "concatenation": (lambda x, y: torch.cat([x, y * 2], 1), [torch.randn(4, 100), torch.randn(4, 7)]),
    "a large sum": (lambda x: x.sum(), [torch.randn(512, 512)]),
    "sums of columns": (lambda x: (x * 2).sum(0), [torch.randn(4096, 64)]),
    "sums of channels": (lambda x: x.sum((0, 2, 3)), [torch.randn(8, 4, 64, 64)]),
}


@pytest.mark.parametrize("name", LOWERED)
def test_lowered_as_on_the_cpu(name):
    """The whole graph becomes kernels, which mean what eager gives."""
    function, inputs = LOWERED[name]
    scheduled = cuda_scheduled_of(function, inputs)
    assert set(calls(scheduled)) <= {"aten._assert_async.msg"}
    expected = function(*inputs)
    if name != "arange":  # which says its device
        (found,) = reference.run(scheduled, inputs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


BATCHES = {
    "usual": torch.randn(64, 8, 6, 6),
    "far from zero": torch.randn(64, 8, 6, 6) * 1e-2 + 100,
    "a part far away": torch.cat([torch.full((2, 8, 6, 6), 1000.0), torch.randn(62, 8, 6, 6)]),
    "one number": torch.full((64, 8, 6, 6), 12345.678),
    "rows": torch.randn(64, 8),
    "infinite": torch.where(torch.rand(64, 8, 6, 6) < 0.001, float("inf"), 1.0),
}


@pytest.mark.parametrize("name", BATCHES)
def test_moments_of_a_batch_in_one_run(name):
    """The sums of distances and of their squares are in one kernel, and exact wherever the batch is."""
    x = BATCHES[name]
    given = [x, torch.rand(8) + 1, torch.randn(8), torch.randn(8), torch.rand(8)]

    def function(*given):
        return aten._native_batch_norm_legit_functional(*given, True, 0.1, 1e-5)

    scheduled = cuda_scheduled_of(function, given)
    assert calls(scheduled) == []
    readers = [launch for launch in launches(scheduled) if scheduled.inputs[0] in launch.buffers]
    assert len(readers) <= 3  # a part of it, the moments, the result
    found = reference.run(scheduled, given)
    expected = function(*(one.double() for one in given))
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=2e-4, atol=2e-3, equal_nan=True)


def test_sums_are_float32():
    """As in ATen's kernels for GPUs; on the CPU those are float64."""

    def types(scheduled):
        return {expr.dtype for launch in launches(scheduled) for expr in ir.walk(*launch.kernel.roots())}

    for function in (lambda x: torch.var(x, 0), lambda x: F.batch_norm(x, None, None, training=True)):
        assert torch.float64 in types(scheduled_of(function, [torch.randn(16, 8)]))
        assert torch.float64 not in types(cuda_scheduled_of(function, [torch.randn(16, 8)]))


def test_quotients_of_narrow_types_are_rounded_down_at_once():
    """As in ATen's kernels for GPUs, and in those for single numbers."""
    x, y = torch.tensor([-0.0003638267517089844], dtype=torch.float16), torch.tensor([3 * 2.0**-24]).half()
    scheduled = cuda_scheduled_of(torch.floor_divide, [x, y])
    (kernel,) = scheduled.kernels
    assert run_as_on_gpu(kernel, dict(zip(scheduled.inputs, [x, y], strict=True)) | {scheduled.outputs[0].buffer: x})[
        scheduled.outputs[0].buffer
    ].tolist() == [-2035]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dim", [0, 1])
def test_cumulative_extremes(name, dim, dtype):
    x = torch.randint(-5, 5, (7, 40)).to(dtype)
    if dtype.is_floating_point:
        x[2, 10], x[2, 20], x[3, 0] = float("nan"), float("nan"), float("-inf")
    function = getattr(aten, name)
    scheduled = cuda_scheduled_of(lambda x: function(x, dim), [x])
    assert calls(scheduled) == [] and len(launches(scheduled)) == 1
    found = reference.run(scheduled, [x])
    for one, wanted in zip(found, function(x, dim), strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("how", [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 1), (2, 3, 0, 1), (3, 2, 0, 2), (2, 2, 1, 1)])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_gradients_of_max_pools(how, ceil_mode, layout):
    size, step, padding, dilation = how
    x = torch.randn(2, 3, 9, 11).to(memory_format=layout)
    windows = ([size, size], [step, step], [padding, padding], [dilation, dilation], ceil_mode)
    result, indices = aten.max_pool2d_with_indices(x, *windows)
    gradient = torch.randn_like(result)

    def function(gradient, x, indices):
        return aten.max_pool2d_with_indices_backward(gradient, x, *windows, indices)

    scheduled = cuda_scheduled_of(function, [gradient, x, indices])
    assert calls(scheduled) == []
    (found,) = reference.run(scheduled, [gradient, x, indices])
    torch.testing.assert_close(found, function(gradient, x, indices))


# ---- indices ---------------------------------------------------------------------------------------------------------


def embedded(w, i):
    return F.embedding(i, w)


READ_AS_A_WHOLE = {
    "rows": (lambda w, i: embedded(w, i) * 2, [torch.randn(10, 4), torch.tensor([1, 9, 3])]),
    "rows beside others": (
        lambda w, i: embedded(w, i) + w.narrow(0, 0, 3),
        [torch.randn(10, 4), torch.tensor([1, 9, 3])],
    ),
    "several axes": (lambda w, i: embedded(w, i).sum(-1), [torch.randn(10, 4), torch.randint(10, (2, 3, 5))]),
    "of a view": (lambda w, i: embedded(w, i.t()), [torch.randn(10, 4), torch.randint(10, (2, 3))]),
    "elements": (lambda w, i: torch.gather(w, 1, i), [torch.randn(10, 4), torch.randint(4, (10, 3))]),
    "small integers": (lambda w, i: embedded(w, i), [torch.randn(10, 4), torch.tensor([1, 9], dtype=torch.int32)]),
}


@pytest.mark.parametrize("name", READ_AS_A_WHOLE)
def test_indices_are_checked_where_they_are_used(name):
    function, (weight, index) = READ_AS_A_WHOLE[name]
    scheduled = cuda_scheduled_of(function, [weight, index])
    assert calls(scheduled) == []
    (found,) = reference.run(scheduled, [weight, index])
    torch.testing.assert_close(found, function(weight, index))
    for place in range(index.numel()):
        for wrong in (-1, 10):
            bad = index.clone()
            bad.view(-1)[place] = wrong
            with pytest.raises(RuntimeError, match="out of range in self|out of bounds"):
                reference.run(scheduled, [weight, bad])


READ_IN_PART = {
    "the first": lambda w, i: embedded(w, i).narrow(0, 0, 2),
    "every second": lambda w, i: aten.slice(embedded(w, i), 0, 0, 4, 2),
    "the last row": lambda w, i: embedded(w, i.view(2, 2)).select(0, 1),
    "in two parts": lambda w, i: torch.cat([embedded(w, i).narrow(0, 0, 2), embedded(w, i).narrow(0, 2, 2) * 2]),
    "one element": lambda w, i: w + embedded(w, i).select(0, 0).select(0, 0),
}


@pytest.mark.parametrize("name", READ_IN_PART)
def test_indices_that_kernels_do_not_read_are_checked(name):
    function, given = READ_IN_PART[name], [torch.randn(10, 4), torch.tensor([1, 9, 3, 5])]
    scheduled = cuda_scheduled_of(function, given)
    assert calls(scheduled) == ["aten._assert_async.msg"]
    (found,) = reference.run(scheduled, given)
    torch.testing.assert_close(found, function(*given))
    for place in range(4):
        given[1][place] += 10
        with pytest.raises(RuntimeError, match="index out of range in self"):
            reference.run(scheduled, given)
        given[1][place] -= 10


@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("is_matrix", [True, False])
def test_gradients_of_bags(is_matrix, padding):
    """Bags of one size need no search for the bag of an index; the gradient is kept in the type that it came from."""
    weight, index = torch.randn(10, 16), torch.randint(10, (24,))
    offsets = torch.arange(0, 24, 4) if is_matrix else torch.tensor([0, 1, 5, 5, 9, 20])
    gradient = torch.randn(6, 16).bfloat16()
    _, *saved = aten._embedding_bag(weight, index, offsets, False, 0, False, None, False, padding)

    def function(gradient, index, offsets):
        if is_matrix:
            offsets = torch.arange(0, 24, 4, device=gradient.device)
        rest = [torch.zeros(size, dtype=torch.int64, device=gradient.device) for size in (0, 6, 6)]
        rest = rest if gradient.is_cuda else saved
        given = (gradient * 2).float(), index, offsets, *rest, 10, False, 0, False, None, padding
        return aten._embedding_bag_backward(*given)

    scheduled = cuda_scheduled_of(function, [gradient, index, offsets])
    assert calls(scheduled) == ([] if is_matrix else ["aten.bucketize.Tensor"])
    assert {b.dtype for launch in launches(scheduled) for b in launch.buffers if b.shape == (6, 16)} == {torch.bfloat16}
    (found,) = reference.run(scheduled, [gradient, index, offsets])
    torch.testing.assert_close(found, function(gradient, index, offsets))


def test_several_checks_are_one_assertion():
    x, i, j = torch.randn(10, 20), torch.tensor([1, 2]), torch.tensor([[3], [4]])

    def function(x, i, j):
        return aten.index(x, [i]).narrow(0, 0, 1), torch.gather(x, 1, j).narrow(0, 1, 1)

    scheduled = cuda_scheduled_of(function, [x, i, j])
    assert calls(scheduled) == ["aten._assert_async.msg"]
    for wrong in ([x, torch.tensor([1, 10]), j], [x, i, torch.tensor([[-1], [3]])]):
        with pytest.raises(RuntimeError, match="out of bounds for dimension 0.*; .*dimension 1"):
            reference.run(scheduled, wrong)


def test_kernels_stop_at_wrong_indices():
    """The condition is one for a vector of elements, or one for each of them."""
    w, i, j = torch.randn(10, 64), torch.randint(10, (6,)), torch.randint(64, (10, 16))

    def function(w, i, j):
        return embedded(w, i) * 2, torch.gather(w, 1, j)

    for place in range(3):
        given = [w, i.clone(), j.clone()]
        if place:
            given[place].view(-1)[5] = 64
        stopped = []
        for launch in launches(cuda_scheduled_of(function, given)):
            tensors = {b: given[b.index] if b.kind == "input" else torch.zeros(b.span) for b in launch.kernel.buffers}
            run_as_on_gpu(launch.kernel, tensors, stopped=stopped)
        assert set(stopped) == ([set(), {"index out of range in self"}, {GATHERED}][place])


GATHERED = "index (data) is out of bounds for dimension 1 with size (given)"


def test_known_indices_are_not_checked():
    assert (
        calls(cuda_scheduled_of(lambda w: F.embedding(torch.arange(4, device=w.device), w), [torch.randn(9, 4)])) == []
    )


# ---- scatters --------------------------------------------------------------------------------------------------------

SCATTERS = {
    "embedding": lambda x, i: aten.embedding_dense_backward(x, i, 9, -1, False),
    "index_add": lambda x, i: torch.zeros(9, 4, device=x.device).index_add(0, i, x),
    "index_put": lambda x, i: aten.index_put(torch.zeros(9, 4, device=x.device), [i], x, True),
    "not added": lambda x, i: aten.index_put(torch.zeros(9, 4, device=x.device), [i], x),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters(name):
    given = torch.randn(6, 4), torch.tensor([1, 2, 1, 0, 8, 3])
    assert called(SCATTERS[name], *given) == {}
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        found = called(SCATTERS[name], *given)
    finally:
        torch.use_deterministic_algorithms(before)
    (reason,) = found.values()
    assert "order" in reason


NARROW = {
    "embedding": lambda x, i: aten.embedding_dense_backward(x, i, 90, -1, False),
    "embedding with padding": lambda x, i: aten.embedding_dense_backward(x, i, 90, 1, False),
    "index_put": lambda x, i: aten.index_put(torch.ones(90, 4, dtype=x.dtype, device=x.device), [i], x, True),
}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_narrow_types_are_rounded_once(name, dtype):
    """Eager adds in float32; atomic additions of the type itself would round each time."""
    given = torch.randn(300, 4).to(dtype), torch.randint(0, 7, (300,))
    scheduled = cuda_scheduled_of(NARROW[name], given)
    assert not calls(scheduled) or set(calls(scheduled)) == {"aten._assert_async.msg"}
    (found,) = reference.run(scheduled, given)
    exact = NARROW[name](given[0].double(), given[1])
    assert found.dtype is dtype and (found.double() - exact).abs().max() <= exact.abs().max() * torch.finfo(dtype).eps
    few = torch.randn(6, 4).to(dtype), torch.tensor([1, 2, 1, 0, 8, 3])
    assert len(called(NARROW[name], *few)) == 1  # ATen need not go through all rows


REDUCTIONS = ("sum", "prod", "amax", "amin")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8])
@pytest.mark.parametrize("how", REDUCTIONS)
def test_scatters_that_round_each_time_as_eagers_do(how, dtype):
    x, i = torch.randn(6, 4).mul(10).to(dtype), torch.randint(0, 6, (6, 4))
    given = torch.ones(6, 4, dtype=dtype)
    assert called(lambda z, x, i: torch.scatter_reduce(z, 0, i, x, how), given, x, i) == {}
    assert called(lambda z, x, i: torch.scatter_add(z, 0, i, x), given, x, i) == {}
    assert called(lambda z, x, i: torch.index_add(z, 0, i, x), given, x, i[:, 0]) == {}


# ---- schedules and memory --------------------------------------------------------------------------------------------


def parts_of(scheduled):
    first = launches(scheduled)[0].kernel
    return [loop.size for loop in first.loops if not loop.is_reduced]


def test_reductions_are_split_among_many_blocks():
    everything = cuda_scheduled_of(lambda x: x.sum(), [torch.randn(1024, 1024)])
    assert parts_of(everything) == [512]
    columns = cuda_scheduled_of(lambda x: x.sum(0), [torch.randn(8192, 256)])
    assert len(launches(columns)) == 2 and sorted(parts_of(columns)) == [128, 256]
    means = cuda_scheduled_of(lambda x, m: (x - m).sum(0), [torch.randn(8192, 256), torch.randn(8192, 1)])
    assert len(launches(means)) == 2  # what is read once a row does not make it a sum along rows


def test_reductions_with_work_for_all_blocks_are_not_split():
    assert len(launches(cuda_scheduled_of(lambda x: x.sum(1), [torch.randn(1024, 512)]))) == 1
    assert len(launches(cuda_scheduled_of(lambda x: x.sum(), [torch.randn(1024)]))) == 1


def test_launches_run_one_after_another():
    scheduled = cuda_scheduled_of(lambda x, y: (x.sin(), y.sum(0)), [torch.randn(100), torch.randn(64, 64)])
    assert len(launches(scheduled)) == 2
    assert [len(run) for run in plan_memory(scheduled, is_for_gpu=True).runs] == [1, 1]
    assert [len(run) for run in plan_memory(scheduled).runs] == [2]


def test_the_sum_of_a_row_is_not_written_where_the_row_s_threads_read():
    def function(x, s):
        scaled = (x * s.unsqueeze(1)).sum(1)
        return (scaled * s).exp()

    scheduled = cuda_scheduled_of(function, [torch.randn(65536, 64), torch.randn(65536)])
    (launch,) = launches(scheduled)
    assert launch.kernel.reduced
    donors = [one.donor for one in plan_memory(scheduled).allocations[0]]
    assert donors != [None]  # on the CPU
    assert [one.donor for one in plan_memory(scheduled, is_for_gpu=True).allocations[0]] == [None]


def test_each_point_is_written_where_it_is_read():
    scheduled = cuda_scheduled_of(lambda x: torch.softmax(x, -1), [torch.randn(512, 512)])
    (step,) = scheduled.steps
    assert isinstance(step, Launch)
    (allocation,) = plan_memory(scheduled, is_for_gpu=True).allocations[0]
    assert allocation.donor is scheduled.inputs[0]


@pytest.fixture
def foreign():
    with torch.library._scoped_library("kiln_tests", "FRAGMENT") as library:
        library.define("seen(Tensor x) -> Tensor")
        library.impl("seen", lambda x: x.sum(), "Meta")
        library.impl("seen", lambda x: x.sum(), "CompositeExplicitAutograd")
        yield torch.ops.kiln_tests.seen.default


def test_memory_that_a_users_operator_saw_is_not_taken_over(foreign):
    """It may be at work on another stream."""

    def function(x):
        seen = foreign(x @ x)
        return (x * seen).exp() @ x

    scheduled = cuda_scheduled_of(function, [torch.randn(512, 512)])

    def donors(**how):
        plan = plan_memory(scheduled, **how)
        return [one.donor.name for found in plan.allocations.values() for one in found if one.donor is not None]

    assert "mm" in donors()
    assert "mm" not in donors(is_for_gpu=True)


def test_siblings_far_apart_stay_apart():
    """Sums of two layers that read one input: the first would wait for the products between them."""

    def function(x, w, calls):
        y = (x * (x @ w)).sum(0)
        z = x @ w
        for _ in range(calls):
            z = z @ w
        return y, (x * z).sum(0)

    x, w = torch.randn(256, 64), torch.randn(64, 64)
    counts = [len(launches(cuda_scheduled_of(lambda x, w, n=n: function(x, w, n), [x, w]))) for n in (1, 2, 3, 4)]
    assert counts[0] < counts[-1]


# ---- operators that ATen computes in another way on GPUs -------------------------------------------------------------


def whole_quotients_of_aten(a, b):
    """ATen's kernel for float16: the quotient is a float32, the whole number that is made of it a float16."""
    one, other = a.float(), b.float()
    rest = torch.fmod(one, other)
    quotient = (one - rest) / other
    quotient = torch.where((rest != 0) & ((other < 0) != (rest < 0)), quotient - 1, quotient)
    whole = torch.floor(quotient).half()
    whole = torch.where(quotient - whole.float() > 0.5, (whole.float() + 1).half(), whole)
    return torch.where(other == 0, (one / other).half(), whole)


def test_whole_quotients_that_float16_does_not_have():
    a = torch.randn(20_000).half() * 10
    b = (torch.rand(20_000).half() - 0.5) / 100
    for number, (one, other) in enumerate([(10.953125, 0.000964), (7.34375, 0.000456), (-9.3203125, 0.000893)]):
        quotient = torch.arange(6000.0)
        near = quotient[: len(quotient) // 3] * 3 + number
        a = torch.cat([a, torch.full_like(near, one).half()])
        b = torch.cat([b, (other * (1 + near / 1e5)).half()])
    (found,) = reference.run(cuda_scheduled_of(torch.floor_divide, [a, b]), [a, b])
    assert torch.equal(found, whole_quotients_of_aten(a, b))


@pytest.mark.parametrize("function", [F.hardsigmoid, F.hardswish])
def test_a_sixth_of_float64(function):
    """ATen multiplies by a sixth in float32 on GPUs; on the CPU it divides by six."""
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    (found,) = reference.run(cuda_scheduled_of(function, [x]), [x])
    bounded = (x + 3).clamp(0, 6)
    sixth = torch.tensor(1 / 6).double()
    torch.testing.assert_close(
        found, (bounded if function is F.hardsigmoid else x * bounded) * sixth, rtol=1e-15, atol=0
    )
    assert not torch.equal(found, function(x))
