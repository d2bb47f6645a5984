"""The peak of a training step's memory: at most eager's. torch's allocator is asked, through the profiler."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from kiln.testing.memory import memory_taken


def peak(step):
    """The most bytes that were given out at once during a step, beyond what was before."""
    for _ in range(2):
        step()
    gc.collect()
    return memory_taken(step)[0]


class Block(nn.Module):
    """An MLP and a normalization, with what a transformer's block has around them."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(3)])

    def forward(self, x):
        for part, norm in zip(self.parts, self.norms, strict=True):
            x = F.relu(norm(part(x)))
        return x


MODELS = {
    "blocks": (lambda: nn.Sequential(*[Block() for _ in range(2)]), (8, 128, 64)),
    "convolutions": (Convolutions, (8, 16, 32, 32)),
    "elementwise": (lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.SiLU(), nn.Softplus()), (2048, 64)),
}


@pytest.mark.parametrize("name, dynamic", [*((name, False) for name in MODELS), ("elementwise", True)])
def test_a_training_step_needs_no_more_than_eager(name, dynamic):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)

    def step_of(call):
        def step():
            for parameter in model.parameters():
                parameter.grad = None
            (call(x) ** 2).mean().backward()

        return step

    with kiln.config.patch(raise_internal_errors=True):
        compiled = peak(step_of(kiln.compile(model, backend="kiln", dynamic=dynamic)))
    assert compiled <= peak(step_of(model))
