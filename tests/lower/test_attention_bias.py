"""The bias of an attention kernel on GPUs, which is padded in eager because the kernel wants its rows aligned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kiln.aot import aot_function
from kiln.exc import BackendError
from kiln.loops import reference
from kiln.loops.steps import Call
from tests.support.cuda_programs import scheduled_for_gpu

aten = torch.ops.aten


def padded_mask(q, mask):
    """As torch prepares a mask of some columns for ``_scaled_dot_product_efficient_attention``."""
    length = mask.shape[-1]
    bias = F.pad(torch.where(mask, 0.0, -1e9), (0, 16 - length % 16))[..., :length]
    return bias.expand(q.shape[0], q.shape[1], q.shape[2], length)


def attended(q, mask):
    return aten._scaled_dot_product_efficient_attention(q, q, q, padded_mask(q, mask), False)[0]


def attended_twice(q, mask):
    """The bias is read elsewhere, too, as an expression."""
    return attended(q, mask), padded_mask(q, mask).sum(-1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [attended, attended_twice], ids=lambda program: program.__name__)
def test_rows_of_the_bias_are_aligned(program, dynamic):
    found = []

    def compiler(module, examples=()):
        found.append(scheduled_for_gpu(module)[0])
        raise NotImplementedError  # the CPU has no such kernel

    given = torch.randn(3, 4, 10, 16), torch.rand(3, 1, 10, 10, generator=torch.Generator().manual_seed(0)) > 0.5
    with pytest.raises(BackendError):
        aot_function(program, compiler, dynamic=dynamic)(*given)
    (scheduled,) = found
    (call,) = [step for step in scheduled.steps if isinstance(step, Call) and "efficient_attention" in str(step.target)]
    computed = reference.Reference(scheduled, given)
    for step in scheduled.steps[: scheduled.steps.index(call)]:
        computed.launch(step)
    bias = computed.for_call(call.args[3])
    expected = padded_mask(*given)
    assert (bias.shape, bias.stride()) == (expected.shape, expected.stride()) == ((3, 4, 10, 10), (160, 0, 16, 1))
    assert torch.equal(bias, expected)
    assert bias.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
