"""Training steps on a GPU beside eager, of sizes at which kernels have their wide forms: rows in registers and loops,
sums down columns in parts, rotations, stacked gradients, cross-entropy over many classes, transposes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from tests.support.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu
WIDTH, HEADS, LENGTH, BATCH = 256, 4, 128, 4


def rotated(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Model(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(classes, WIDTH)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.gate, self.down = (nn.Linear(WIDTH, 4 * WIDTH) for _ in range(3))
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, classes, bias=False)
        angles = torch.randn(LENGTH, WIDTH // HEADS)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        parts = self.qkv(self.norm1(x)).view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        cosine, sine = self.cosine.to(q.dtype), self.sine.to(q.dtype)
        y = F.scaled_dot_product_attention(rotated(q, cosine, sine), rotated(k, cosine, sine), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        y = self.norm2(x)
        x = x + self.down(F.gelu(self.up(y), approximate="tanh") * F.silu(self.gate(y)))
        y = x.float()
        y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.scale
        logits = self.head(self.norm3(y))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def step(call, model, batch, dtype):
    with torch.autocast(DEVICE, dtype=dtype, enabled=dtype is not torch.float32):
        loss = call(*batch)
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return loss.detach(), found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [1000, 9001, 20480])
def test_a_training_step(classes, dtype):
    torch.manual_seed(0)
    model = Model(classes).to(DEVICE)
    batch = [torch.randint(classes, (BATCH, LENGTH), device=DEVICE) for _ in range(2)]
    batch[1][0, :5] = -100
    wanted_loss, wanted = step(model, model, batch, dtype)
    found_loss, found = step(kiln.compile(model, backend="kiln"), model, batch, dtype)
    most = 2e-3 if dtype is torch.float32 else 5e-2  # matrix products in TF32 apart
    torch.testing.assert_close(found_loss, wanted_loss, rtol=most, atol=most)
    for name, gradient in wanted.items():
        error = (found[name] - gradient).norm() / gradient.norm()
        assert error < most, (name, float(error))


@pytest.mark.parametrize("shape", [(1000, 768), (64, 300, 70), (8, 48, 48, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transposes(shape, dtype):
    x = torch.randn(shape, device=DEVICE).to(dtype)
    order = (0, *range(2, len(shape)), 1) if len(shape) > 2 else (1, 0)

    def function(x):
        return x.permute(order).contiguous() + 1, x.permute(order).exp().contiguous()

    for found, wanted in zip(kiln.compile(function, backend="kiln")(x), function(x), strict=True):
        torch.testing.assert_close(found, wanted)
