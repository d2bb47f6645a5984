"""Operators whose rule for tensors without data makes a mistake where the kernel makes none: the kernel is asked."""

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.program.shapes import kernel_trials
from kiln.program.shapes.fake_tensors import make_mode
from kiln.report import counters

aten = torch.ops.aten


def one_value_a_channel(x):
    return aten.native_batch_norm.default(x, torch.ones(1), torch.ones(1), None, None, True, 0.1, 1e-5)[:2]


def resized(x):
    return F.interpolate(x, size=(4,), mode="nearest")


def loss(x):
    return F.mse_loss(x, x.detach() * 2)


CASES = [(one_value_a_channel, (1, 1, 1)), (resized, (0, 3, 2)), (loss, (0, 3))]


@pytest.mark.parametrize(("program", "size"), CASES, ids=[program.__name__ for program, _ in CASES])
def test_compiled_where_the_rule_fails(program, size):
    before = counters["aot eager"]
    compiled = kiln.aot.aot_function(program, fw_compiler=as_it_is, bw_compiler=as_it_is)
    sides = []
    for function in (program, compiled):
        x = torch.ones(size, requires_grad=True)
        found = function(x)
        first = found[0] if isinstance(found, tuple) else found
        first.sum().backward()
        sides.append((found, x.grad))
    torch.testing.assert_close(sides[1], sides[0], equal_nan=True)
    assert counters["aot eager"] == before


def as_it_is(module, examples):
    return module.forward


def test_zeros_lie_like_the_argument():
    fake = make_mode().from_tensor(torch.randn(4, 6)[:, ::2].t())
    found = kernel_trials.zeros_like(fake)
    assert (found.shape, found.stride()) == (fake.shape, fake.stride())


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (aten.bernoulli.default, ()),  # random numbers must be left as they are
        (aten.t.default, ()),  # a view
        (aten.add_.Tensor, (1,)),  # changes its argument
        (aten.select_copy.int, (0, 9)),  # eager raises, too
    ],
)
def test_not_tried(function, args):
    fake = make_mode().from_tensor(torch.randn(2, 3))
    with pytest.raises(kernel_trials.CannotTry):
        kernel_trials.run_on_zeros(function, (fake, *args), {}, [fake])


def test_too_large_to_be_tried():
    mode = make_mode()
    with mode:
        fake = torch.empty(kernel_trials.MAX_ELEMENTS + 1)
    with pytest.raises(kernel_trials.CannotTry):
        kernel_trials.run_on_zeros(aten.neg.default, (fake,), {}, [fake])
