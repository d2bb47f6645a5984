"""What scheduling does for GPUs only: reductions in parts, pieces that are written into copies, small siblings; and the
formula of log-softmax in joint graphs. The reference computes schedules, so no GPU is needed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kiln.codegen.rewrites.joint_rewrites import rewrite_joint
from kiln.loops import reference
from kiln.loops.steps import Launch, Scheduled
from tests.support.codegen_programs import graph_of
from tests.support.cuda_programs import cuda_graph_of, cuda_scheduled_of, put_on_gpu

aten = torch.ops.aten


def launches(scheduled: Scheduled) -> list[Launch]:
    return [step for step in scheduled.steps if isinstance(step, Launch)]


def checked(function, *inputs: torch.Tensor) -> Scheduled:
    """The schedule of a function, after the reference has computed what eager does."""
    scheduled = cuda_scheduled_of(function, inputs)
    wanted = function(*inputs)
    wanted = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    for found, one in zip(reference.run(scheduled, inputs), wanted, strict=True):
        torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-3)
    return scheduled


# ---- pieces that are written into copies -----------------------------------------------------------------------------


def stacked(*parts: torch.Tensor) -> torch.Tensor:
    """As the backward of attention stacks the gradients of queries, keys and values: (batch, heads, length, size)."""
    whole = torch.stack(parts).permute(1, 3, 0, 2, 4)
    return whole.reshape(whole.shape[0] * whole.shape[1], -1)


def test_a_stack_that_is_copied_is_left_out():
    parts = [torch.randn(2, 3, 5, 4) for _ in range(3)]
    (launch,) = launches(checked(stacked, *parts))
    assert len(launch.buffers) == 4  # three that are read, and one
    permuted = [torch.randn(2, 5, 3, 4).transpose(1, 2) for _ in range(3)]
    assert len(launches(checked(stacked, *permuted))) == 1


def copied(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def test_a_concatenation_that_is_copied_is_left_out():
    parts = [torch.randn(4, size, 6) for size in (2, 3, 1)]
    found = launches(checked(lambda *x: copied(torch.cat(x, 1).transpose(0, 1)), *parts))
    assert len(found) == 3 and len({launch.buffers[-1] for launch in found}) == 1


def test_a_stack_that_is_needed_stays():
    parts = [torch.randn(3, 4, 5) for _ in range(2)]

    def twice(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.stack(x)
        return copied(whole.transpose(0, 2)), whole

    assert len(launches(checked(twice, *parts))) == 2
    assert len(launches(checked(lambda *x: copied(torch.stack(x).transpose(0, 2)).narrow(0, 1, 2), *parts))) == 1
    assert len(launches(checked(lambda *x: copied(torch.stack(x).narrow(1, 1, 2).transpose(0, 2)), *parts))) == 2


def test_a_copy_of_a_copy():
    parts = [torch.randn(3, 4, 5) for _ in range(2)]
    checked(lambda *x: copied(copied(torch.stack(x).transpose(0, 2)).transpose(1, 3)), *parts)


# ---- readers of concatenations ---------------------------------------------------------------------------------------


def large_launches(scheduled: Scheduled) -> list[Launch]:
    """Those that do more than copy a result."""
    return [launch for launch in launches(scheduled) if len(launch.buffers) > 2]


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return (x * cosine + torch.cat((-second, first), -1) * sine) @ cosine.transpose(0, 1)


def test_a_rotation_is_one_kernel():
    """Each half of the result reads its piece of the concatenation, which is never in memory."""
    x, cosine, sine = torch.randn(2, 3, 10, 32), torch.randn(10, 32), torch.randn(10, 32)
    for given in (x, torch.randn(2, 10, 3, 32).transpose(1, 2)):
        (launch,) = large_launches(checked(rotated, given, cosine, sine))
        assert len(launch.buffers) == 4 and len(launch.kernel.outputs) == 2


def test_rotations_of_which_the_gradients_are_stacked():
    def gradients(q: torch.Tensor, k: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        turned = []
        for x in (q, k):
            first, second = (x * sine).chunk(2, -1)
            turned.append(x * cosine + torch.cat((second, -first), -1))
        whole = torch.stack(turned).permute(1, 3, 0, 2, 4)
        return whole.reshape(20, -1) @ torch.ones(192, 2, device=q.device)

    given = [torch.randn(2, 3, 10, 32), torch.randn(2, 3, 10, 32), torch.randn(10, 32), torch.randn(10, 32)]
    scheduled = cuda_scheduled_of(gradients, given)
    (found,) = reference.run(scheduled, given)
    torch.testing.assert_close(found, gradients(*given), rtol=1e-4, atol=1e-3)
    assert len(large_launches(scheduled)) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.cat((x, y), 1).exp() @ torch.ones(32, 2, device=x.device),
        lambda x, y: (torch.cat((x, y), 0) * 2).transpose(0, 1) @ torch.ones(16, 3, device=x.device),
        lambda x, y: torch.cat((x, y, x), 1).sum(1),
        lambda x, y: torch.cat((x, y), 1) + torch.cat((y, x), 1),
        lambda x, y: torch.cat((x, y), 1).transpose(0, 1) * torch.cat((y, x), 1).transpose(0, 1),
        lambda x, y: torch.cat((x, y), 1).narrow(1, 3, 20) + 1,  # another part than the pieces
        lambda x, y: torch.cat((x.narrow(1, 0, 3), y), 1) + 1,  # a piece that is too small
        lambda x, y: torch.cat((x, y), 1).exp().sum(0),
        lambda x, y: torch.cat((x, y), 1) + torch.cat((x, y), 1).transpose(0, 1).reshape(8, 32),
    ],
)
def test_readers_of_concatenations(function):
    checked(function, torch.randn(8, 16), torch.randn(8, 16))


# ---- reductions in parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((8, 1024, 64), (0, 1)),
        ((7, 1031, 32), (0, 1)),
        ((512, 512), (0, 1)),
        ((4096, 48), (0,)),
        ((3, 65536), (1,)),
        ((64, 16, 3, 64), (0, 3)),
        ((131072,), (0,)),
    ],
)
@pytest.mark.parametrize("how", [torch.sum, torch.amax])
def test_reductions_in_parts(shape, axes, how):
    scheduled = checked(lambda x: how(x, axes), torch.randn(shape, dtype=torch.float64).float())
    assert len(launches(scheduled)) in (1, 2)


def test_parts_are_contiguous():
    """The outer axis is split into all its elements, then the next one."""
    first, _ = launches(checked(lambda x: x.sum((0, 1)), torch.randn(8, 1024, 64)))
    assert [loop.is_reduced for loop in first.kernel.loops] == [False, False, True]
    parts, columns, rows = (loop.size for loop in first.kernel.loops)
    assert columns == 64 and parts * rows == 8192 and parts > 8


def test_sums_of_parts_share_a_launch():
    def norms(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * y).sum(0), x.sum(0), (x + y).sum(0)

    assert len(launches(checked(norms, torch.randn(4096, 64), torch.randn(4096, 64)))) == 2


# ---- log-softmax -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_log_softmax_becomes_its_formula(dtype, dim, is_transposed):
    x = torch.randn(24, 40, dtype=dtype).t() if is_transposed else torch.randn(40, 24, dtype=dtype)
    module = graph_of(lambda x: torch.log_softmax(x, dim), [x])
    put_on_gpu(module)
    before = next(node.meta["val"] for node in module.graph.nodes if node.target is aten._log_softmax.default)
    rewrite_joint(module)
    targets = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert aten._log_softmax.default not in targets
    assert {aten.amax.default, aten.sum.dim_IntList, aten.log.default} <= set(targets)
    made = [node.name for node in module.graph.nodes if node.op == "call_function"]
    assert all(name.startswith("_log_softmax") for name in made)  # as in another joint graph of the same program
    ((result,),) = module.graph.output_node().args
    after = result.meta["val"]
    assert (after.shape, after.dtype, after.stride()) == (before.shape, before.dtype, before.stride())
    module.recompile()
    (found,) = module(x)
    assert found.stride() == before.stride() == (24, 1)
    torch.testing.assert_close(found, torch.log_softmax(x, dim))


def test_log_softmax_stays_on_the_cpu_and_where_there_is_nothing():
    for module in (
        graph_of(lambda x: torch.log_softmax(x, 0), [torch.randn(8)]),
        cuda_graph_of(lambda x: torch.log_softmax(x, 0), [torch.randn(0, 8)]),
        cuda_graph_of(lambda x: F.log_softmax(x, 0), [torch.tensor(1.0)]),
    ):
        rewrite_joint(module)
        assert any(node.target is aten._log_softmax.default for node in module.graph.nodes)


# ---- values that readers compute again -------------------------------------------------------------------------------


def centred(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Over rows in eight groups, whose axes become one again: through memory."""
    groups = (x.float().view(64, 8, -1) - mean.unsqueeze(-1)) * 2 + 1
    return groups.reshape(64, -1)


def two_sums(x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, ...]:
    value = centred(x, mean).view(64, 8, -1)
    return (value.exp().sum(-1), value.sigmoid().sum((0, 2)))


def test_a_cheap_value_is_not_stored_for_several_kernels():
    x, mean = torch.randn(64, 512).bfloat16(), torch.randn(64, 8)
    assert torch.float32 not in {
        buffer.dtype
        for launch in launches(checked(two_sums, x, mean))
        for buffer in launch.buffers
        if buffer.span == x.numel()
    }


def test_a_value_that_costs_more_to_compute_is_stored():
    x, mean = torch.randn(64, 512).bfloat16(), torch.randn(64, 8)

    def sizes(function) -> set[int]:
        return {b.span for launch in launches(checked(function, x, mean)) for b in launch.buffers if b.kind == "made"}

    def from_two(x, mean):
        return two_sums(torch.stack((x, x + 1)).float().sum(0) + x.float(), mean)

    assert x.numel() in sizes(lambda x, mean: (centred(x, mean), *two_sums(x, mean)))  # a result
    assert x.numel() in sizes(from_two)


# ---- plans of normalizations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [8192, 16384])
def test_long_rows_are_planned_for_their_number(columns):
    """The number of rows of a whole tensor's sum is an argument, that of a normalization is not."""
    x = torch.empty(1024, columns)
    (norm,) = launches(cuda_scheduled_of(lambda x: F.layer_norm(x, (columns,)), [x]))
    assert norm.kernel.loops[0].size == 1024
    (sums,) = launches(cuda_scheduled_of(lambda x: x.sum(-1), [x]))
    assert not isinstance(sums.kernel.loops[0].size, int)
