"""Shapes and layouts that Kiln works out itself where sizes are symbolic: as the real kernels have them."""

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.program.shapes import missing_shapes

aten = torch.ops.aten
FORMS = {1: [None], 2: [None, torch.channels_last], 3: [None, torch.channels_last_3d]}
RESAMPLING = [
    (name, form)
    for name in missing_shapes.RULES
    if "upsample" in name
    for form in FORMS[next(int(letter) for letter in name if letter.isdigit())]
]


def looks(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype


@pytest.mark.parametrize("name, form", RESAMPLING, ids=str)
def test_gradients_of_what_was_resampled(name, form):
    rank = next(int(letter) for letter in name if letter.isdigit())
    gradient = torch.randn(2, 3, *(9, 8, 7)[:rank])
    gradient = gradient if form is None else gradient.contiguous(memory_format=form)
    flags = [] if "nearest" in name else [False]
    args = (gradient, list(gradient.shape[2:]), [2, 3, *(5, 4, 3)[:rank]], *flags)
    assert looks(missing_shapes.RULES[name](*args)) == looks(getattr(aten, name).default(*args))


@pytest.mark.parametrize("name", ["hardshrink_backward", "softshrink_backward"])
def test_gradients_of_elements(name):
    plain, turned = torch.randn(3, 4), torch.randn(4, 3).t()
    for gradient, data in ((plain, plain), (turned, turned), (plain, turned), (turned, plain)):
        args = (gradient, data, 0.5)
        assert looks(missing_shapes.RULES[name](*args)) == looks(getattr(aten, name).default(*args))


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("data", [torch.randn(3, 4), torch.randn(4, 3).t()], ids=["plain", "transposed"])
def test_margins(data, reduction):
    args = (data, torch.tensor([1, 0, 2]), 1, 1.0, None, reduction)
    result = aten.multi_margin_loss.default(*args)
    assert looks(missing_shapes.RULES["multi_margin_loss"](*args)) == looks(result)
    args = (torch.ones_like(result), *args)
    assert looks(missing_shapes.RULES["multi_margin_loss_backward"](*args)) == looks(
        aten.multi_margin_loss_backward(*args)
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_training_is_compiled(mode):
    def program(x):
        return F.interpolate(x * 2, scale_factor=2.0, mode=mode)

    before = dict(kiln.report.counters)
    compiled = kiln.compile(program, backend="kiln", dynamic=True, fullgraph=True)
    for size in (5, 6):
        x = torch.randn(2, 3, size, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
        found, expected = (torch.autograd.grad(call(x).sin().sum(), x)[0] for call in (compiled, program))
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    after = kiln.report.counters
    assert all(after[name] == before.get(name, 0) for name in ("aot eager", "codegen eager"))
