"""Operators made of others where sizes vary: as eager has them, not as torch's rules for such sizes do."""

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.aot import make_aot_backend

BACKENDS = ["eager", "aot_eager", "kiln"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_of_nothing_is_its_input(backend):
    def program(x):
        part = x[..., ::2]
        same = F.dropout(part, 0.0)
        same.add_(1)
        return same is part, same

    x, y = torch.zeros(4, 6), torch.zeros(4, 6)
    is_same, result = kiln.compile(program, backend=backend, dynamic=True, fullgraph=True)(x)
    expected = program(y)
    assert is_same and torch.equal(x, y)
    assert result.stride() == expected[1].stride() and result.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_dropout_draws_as_eager_does(backend, needs_gradient):
    def program(x):
        return F.dropout(x.t(), 0.4) * 2

    x = torch.randn(5, 7, requires_grad=needs_gradient)
    compiled = kiln.compile(program, backend=backend, dynamic=True, fullgraph=True)
    for _ in range(2):
        torch.manual_seed(3)
        found = compiled(x)
        torch.manual_seed(3)
        expected = program(x)
        assert torch.equal(found, expected) and found.stride() == expected.stride()


RESAMPLING = [
    (mode, rank, how, corners)
    for mode, rank in [("nearest", 2), ("nearest-exact", 1), ("linear", 1), ("bilinear", 2), ("bicubic", 2)]
    for how in ({"size": (9,) * rank}, {"scale_factor": 2.0}, {"scale_factor": 1.6})
    for corners in ((None,) if "nearest" in mode else (False, True))
]


def check(program, x):
    x.requires_grad_()
    call = kiln.compile(program, backend="kiln", dynamic=True, fullgraph=True)
    found, expected = (
        (result.detach(), *torch.autograd.grad(result.nan_to_num().sin().sum(), x)) for result in (call(x), program(x))
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6, equal_nan=True)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("mode, rank, how, corners", RESAMPLING)
def test_resampling(mode, rank, how, corners):
    check(
        lambda x: F.interpolate(x * 2, mode=mode, align_corners=corners, **how),
        torch.randn(2, 3, *(5, 6)[:rank]),
    )


@pytest.mark.parametrize("function", [F.hardshrink, F.softshrink])
def test_derivatives_where_functions_bend(function):
    check(lambda x: function(x * 1, 0.5), torch.tensor([[-0.5, 0.5, float("nan")], [0.0, 0.7, -3.0]]))


def test_recorded_graphs_hold_the_operator():
    """What is resampled is so by the operator that eager calls, not by arithmetic on indices."""
    graphs = []

    def keep(module, examples):
        graphs.append([node.target._opname for node in module.graph.nodes if hasattr(node.target, "_opname")])
        return module.forward

    backend = make_aot_backend(keep, keep)
    with torch.no_grad():
        kiln.compile(lambda x: F.interpolate(x, size=(9, 9), mode="bilinear"), backend=backend, dynamic=True)(
            torch.randn(2, 3, 5, 6)
        )
    assert any("upsample_bilinear2d" in names for names in graphs)
