"""Attention as products and one kernel: results, gradients, masks, rows that see nothing."""

import pytest
import torch
import torch.nn.functional as F

import kiln

SHAPES = {
    "square": (2, 3, 16, 16, 8),
    "few rows": (1, 2, 5, 20, 16),
    "one": (1, 1, 1, 1, 4),
    "long": (1, 2, 130, 70, 48),
}
MASKS = {
    "none": lambda rows, columns: {},
    "causal": lambda rows, columns: {"is_causal": True},
    "bool": lambda rows, columns: {"attn_mask": torch.rand(rows, columns) > 0.4},
    "float": lambda rows, columns: {"attn_mask": torch.randn(2, 1, rows, columns)[:1]},
    "rows without": lambda rows, columns: {"attn_mask": torch.arange(rows)[:, None].expand(rows, columns) % 2 == 0},
    "scale": lambda rows, columns: {"scale": 0.3},
}


def run(function, q, k, v, g, **how):
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = function(*inputs, **how)
    return [out.detach(), *torch.autograd.grad(out, inputs, g)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_as_in_eager(shape, mask):
    torch.manual_seed(0)
    batch, heads, rows, columns, width = SHAPES[shape]
    q = torch.randn(batch, rows, heads, width).transpose(1, 2)
    k, v = (torch.randn(batch, heads, columns, width) for _ in range(2))
    g = torch.randn(batch, heads, rows, width)
    how = MASKS[mask](rows, columns)
    compiled = kiln.compile(F.scaled_dot_product_attention, backend="kiln", fullgraph=True)
    found, eager = run(compiled, q, k, v, g, **how), run(F.scaled_dot_product_attention, q, k, v, g, **how)
    exact = {
        name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in how.items()
    }
    wanted = run(F.scaled_dot_product_attention, q.double(), k.double(), v.double(), g.double(), **exact)
    for one, plain, right in zip(found, eager, wanted, strict=True):
        torch.testing.assert_close(one, plain, rtol=2e-5, atol=2e-5)
        assert (one - right).abs().max() <= 3 * (plain - right).abs().max() + 1e-6


def test_no_call_of_atens_attention():
    def function(q):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    q = torch.randn(1, 2, 8, 4)
    from tests.support.codegen_programs import calls, scheduled_of

    assert calls(scheduled_of(function, (q,))) == ["aten.bmm.default", "aten.bmm.default"]


def test_dropout_is_atens():
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    compiled = kiln.compile(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), backend="kiln")
    torch.manual_seed(3)
    found = compiled(q)
    torch.manual_seed(3)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
