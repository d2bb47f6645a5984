"""Max pools on a GPU: the operators that save bytes, their kernels, and joint graphs that use them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kiln.codegen import pipeline
from kiln.loops import reference
from kiln.loops.steps import Launch
from kiln.program.operators.pooling_operators import WITH_OFFSETS, WITH_OFFSETS_BACKWARD
from kiln.target.cuda.cuda_target import CudaTarget
from kiln.target.cuda.kernel_plan import plan_of
from tests.support.codegen_programs import calls, launches
from tests.support.cuda_programs import CUDA, cuda_scheduled_of
from tests.support.cuda_training import TrainingGraphs
from tests.target.cuda_on_cpu import run_as_on_gpu

aten = torch.ops.aten
nan, inf = float("nan"), float("inf")
WINDOWS = [
    ([2, 2], [2, 2], [0, 0], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([3, 2], [1, 1], [1, 0], [1, 1], False),
    ([3, 3], [2, 3], [1, 1], [1, 1], True),
    ([2, 2], [3, 3], [0, 0], [1, 1], False),
    ([3, 3], [2, 2], [0, 0], [2, 1], True),
]
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def image(layout, channels: int = 8, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = (torch.randn(2, channels, 9, 12) * 2).round().to(dtype).to(memory_format=layout)
    x[0, 0, :4], x[0, 1, 3:7, 4:6] = -inf, nan
    return x


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_operators_beside_those_of_aten(windows, layout):
    """The functions that run where there are no kernels."""
    x = image(layout)
    values, indices = aten.max_pool2d_with_indices(x, *windows)
    found, offsets = WITH_OFFSETS(x, *windows, False)
    torch.testing.assert_close(found, values, rtol=0, atol=0, equal_nan=True)
    assert offsets.dtype is torch.int8 and offsets.stride() == values.stride()
    assert 0 <= int(offsets.min()) and int(offsets.max()) < windows[0][0] * windows[0][1]
    gradient = torch.randn_like(values)
    wanted = aten.max_pool2d_with_indices_backward(gradient, x, *windows, indices)
    given = WITH_OFFSETS_BACKWARD(gradient, offsets, list(x.shape), *windows)
    assert torch.equal(given, wanted) and given.stride() == wanted.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_lowered(windows, layout):
    x = image(layout)
    values, offsets = WITH_OFFSETS(x, *windows, False)
    gradient = torch.randn_like(values)
    scheduled = cuda_scheduled_of(lambda x: WITH_OFFSETS(x, *windows, False), [x])
    assert calls(scheduled) == [] and len(launches(scheduled)) == 1
    for found, wanted in zip(reference.run(scheduled, [x]), (values, offsets), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)

    def backward(gradient, offsets):
        return WITH_OFFSETS_BACKWARD(gradient, offsets, list(x.shape), *windows)

    scheduled = cuda_scheduled_of(backward, [gradient, offsets])
    assert calls(scheduled) == []
    (found,) = reference.run(scheduled, [gradient, offsets])
    torch.testing.assert_close(found, backward(gradient, offsets))


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_windows_of_minus_infinity_that_are_channels_last(windows):
    """ATen's kernel for this layout on GPUs says that the first element of the plane is the maximum: its backward asks
    each element for the windows that it is in, so that most of these gradients go nowhere."""
    x = image(torch.channels_last)
    values, offsets = WITH_OFFSETS(x, *windows, True)
    _, indices = aten.max_pool2d_with_indices(x, *windows)
    indices = torch.where(values == -inf, 0, indices)
    (found,) = reference.run(cuda_scheduled_of(lambda x: WITH_OFFSETS(x, *windows, True)[1], [x]), [x])
    assert torch.equal(found, offsets)
    gradient, wanted = torch.randn_like(values), torch.zeros_like(x)
    size, step, padding, dilation, _ = windows
    for place in torch.ones_like(values).nonzero().tolist():
        n, c, *at = place
        row, column = divmod(int(indices[*place]), x.shape[-1])
        reach = [range(0, size[k] * dilation[k], dilation[k]) for k in range(2)]
        start = [at[k] * step[k] - padding[k] for k in range(2)]
        if row - start[0] in reach[0] and column - start[1] in reach[1]:
            wanted[n, c, row, column] += gradient[*place]

    def backward(gradient, offsets):
        return WITH_OFFSETS_BACKWARD(gradient, offsets, list(x.shape), *windows)

    torch.testing.assert_close(backward(gradient, offsets), wanted)
    (found,) = reference.run(cuda_scheduled_of(backward, [gradient, offsets]), [gradient, offsets])
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels(dtype, monkeypatch):
    """With vectors of channels, each of which is inside of the plane or not as a whole."""
    monkeypatch.setattr("kiln.target.cuda.kernel_plan.ENOUGH_THREADS", 8)
    windows, x = WINDOWS[1], image(torch.channels_last, 16, dtype)
    values, offsets = WITH_OFFSETS(x, *windows, False)
    gradient = torch.randint_like(values, -9, 9)  # whose sums bfloat16 holds

    def backward(gradient, offsets):
        return WITH_OFFSETS_BACKWARD(gradient, offsets, list(x.shape), *windows)

    for function, given in ((lambda x: WITH_OFFSETS(x, *windows, False), [x]), (backward, [gradient, offsets])):
        scheduled = cuda_scheduled_of(function, given)
        tensors = dict(zip(scheduled.inputs, given, strict=True))
        for launch in launches(scheduled):
            assert plan_of(launch.kernel).lanes == 16 // dtype.itemsize
            pairs = list(zip(launch.kernel.buffers, launch.buffers, strict=True))
            memory = {buffer: torch.empty_strided(one.shape, one.strides, dtype=one.dtype) for buffer, one in pairs}
            for buffer, one in pairs:
                memory[buffer].copy_(tensors.get(one, memory[buffer]))
            done = run_as_on_gpu(launch.kernel, memory)
            tensors |= {one: done[buffer] for buffer, one in pairs}
        wanted = function(*given)
        for view, one in zip(scheduled.outputs, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
            torch.testing.assert_close(tensors[view.buffer], one, rtol=0, atol=0, equal_nan=True)


class Pooled(torch.nn.Module):
    def __init__(self, gives_indices: bool = False) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(size, 16, 3, bias=False) for size in (8, 16))
        self.gives_indices = gives_indices

    def forward(self, x):
        x, indices = F.max_pool2d(self.first(x).relu(), 3, 2, 1, return_indices=True)
        loss = self.second(x).float().sum()
        return (loss, indices) if self.gives_indices else loss


def test_a_training_step_saves_bytes():
    graphs = TrainingGraphs(Pooled(), [torch.randn(2, 8, 30, 30)])
    (pool,) = graphs.forward.graph.find_nodes(op="call_function", target=WITH_OFFSETS)
    (backward,) = graphs.backward.graph.find_nodes(op="call_function", target=WITH_OFFSETS_BACKWARD)
    assert pool.meta["val"][1].dtype is torch.int8
    saved = [node.meta["val"] for node in graphs.backward.graph.find_nodes(op="placeholder")]
    assert not any(value.dtype is torch.int64 for value in saved if isinstance(value, torch.Tensor))
    last = torch.channels_last
    assert backward.meta["val"].is_contiguous(memory_format=last)
    for module in (graphs.forward, graphs.backward):
        steps = pipeline.lower_for(module, CudaTarget(CUDA), [])[2].steps
        images = [one for step in steps if isinstance(step, Launch) for one in step.buffers if len(one.shape) == 4]
        assert images and all(one.strides[1] == 1 for one in images if one.shape[:2] == (2, 16))


def test_indices_that_the_user_gets_stay():
    graphs = TrainingGraphs(Pooled(gives_indices=True), [torch.randn(2, 8, 30, 30)])
    assert not graphs.forward.graph.find_nodes(op="call_function", target=WITH_OFFSETS)
    assert graphs.forward.graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default)


@pytest.mark.parametrize("given", [torch.randn(8, 9, 12), torch.randn(2, 8, 9, 12)])
def test_deterministic_algorithms_are_those_of_aten(given):
    windows = WINDOWS[1]
    values, indices = aten.max_pool2d_with_indices(given, *windows)

    def backward(gradient, given, indices):
        return aten.max_pool2d_with_indices_backward(gradient, given, *windows, indices)

    torch.use_deterministic_algorithms(True)
    try:
        scheduled = cuda_scheduled_of(backward, [values, given, indices])
    finally:
        torch.use_deterministic_algorithms(False)
    assert calls(scheduled) == ["aten.max_pool2d_with_indices_backward.default"]
