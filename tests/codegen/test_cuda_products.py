"""Products and sums by index on a GPU, beside eager's: one row, rows of odd lengths, sums that are rounded once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from kiln.testing import check
from tests.support.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def made(*shape, dtype=torch.float32, grad=False):
    found = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return found.to(DEVICE, dtype).requires_grad_(grad)


def checked(program, *args, dtype, **options):
    near = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype] * 10}
    return check(program, *args, backend="kiln", calls=2, **{**near, **options})


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "rows, depth, columns", [(1, 768, 2304), (1, 77, 50), (1, 3072, 768), (300, 64, 1), (65, 1, 33)]
)
def test_narrow_products(rows, depth, columns, dtype):
    def program(x, w, b):
        return F.gelu(F.linear(x, w, b)), x @ w.t()

    given = made(rows, depth, dtype=dtype), made(columns, depth, dtype=dtype), made(columns, dtype=dtype)
    with torch.no_grad():
        checked(program, *given, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [64, 50, 33, 1])
def test_sums_by_index(width, dtype):
    index = torch.randint(0, 40, (4096,), generator=torch.Generator().manual_seed(0)).to(DEVICE)

    def program(x, table):
        put = torch.index_put(table, (index,), x, accumulate=True)
        gradient = torch.ops.aten.embedding_dense_backward(x, index, 40, 3, False)
        return put, gradient

    given = made(4096, width, dtype=dtype), made(40, width, dtype=dtype)
    no_further_off(kiln.compile(program, backend="kiln")(*given), program(*given), program(*map(doubled, given)))


def doubled(x):
    return x.detach().double().requires_grad_(x.requires_grad)


def no_further_off(found, eager, exact):
    """Kiln may be as far from the sums in float64 as eager, which rounds some more often, and one rounding further."""
    for one, other, right in zip(found, eager, exact, strict=True):
        assert one.dtype is other.dtype and one.stride() == other.stride()
        rounding = torch.finfo(one.dtype).eps * right.abs().max()
        assert (one - right).abs().max() <= (other - right).abs().max() + rounding


@pytest.mark.parametrize("width", [64, 66, 33])
def test_gradients_of_embeddings(width):
    """Four elements, two, or one are added to at once; bags of one size and of others."""
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, 1000, (512, 8), generator=generator).to(DEVICE)

    def program(table, bags):
        return F.embedding(index, table, padding_idx=2).square().sum() + F.embedding_bag(index, bags, mode="sum").sum()

    def step(table, bags):
        program(table, bags).backward()
        return table.grad, bags.grad

    checked(step, made(1000, width, grad=True), made(1000, width, grad=True), dtype=torch.float32)


class OddModel(nn.Module):
    """Features of odd lengths side by side, and an odd vocabulary."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(415, 512), nn.Linear(512, 1003)

    def forward(self, x, y, targets):
        logits = self.second(F.relu(self.first(torch.cat([x, y], 1))))
        return F.cross_entropy(logits.to(x.dtype), targets)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_training_with_rows_of_odd_lengths(dtype):
    torch.manual_seed(0)
    models = [OddModel().to(DEVICE) for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    models[2].double()
    targets = torch.randint(0, 1003, (4096,), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    x, y = made(4096, 64), made(4096, 351)
    losses = []
    for model, call in zip(models, (models[0], kiln.compile(models[1], backend="kiln"), models[2]), strict=True):
        with torch.autocast(DEVICE, dtype=dtype, enabled=model is not models[2]):
            loss = call(*((x, y) if model is not models[2] else (x.double(), y.double())), targets)
        loss.backward()
        losses.append(loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-3)
    eager, found, exact = ([p.grad for p in model.parameters()] for model in models)
    for one, other, right in zip(found, eager, exact, strict=True):
        assert one.stride() == other.stride()
        # of another product of the same numbers, whose sums are rounded elsewhere
        assert (one - right).norm() <= 1.5 * (other - right).norm() + 1e-6 * right.norm()
