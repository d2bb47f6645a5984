"""Modules and hooks that the tests of hooks share."""

from __future__ import annotations

import torch
from torch import nn

X = torch.arange(6.0).reshape(2, 3) / 4 - 0.5


def linear(scale=1.0, size=3):
    """A linear layer with weights that are the same each time."""
    made = nn.Linear(size, size)
    with torch.no_grad():
        made.weight.copy_(torch.arange(size * size).reshape(size, size) * scale / 10)
        made.bias.fill_(0.5)
    return made


class Affine(nn.Module):
    def forward(self, x):
        return 2 * x + 1


class Keyword(nn.Module):
    def forward(self, x, *, scale=1.0, shift=None):
        return x * scale + (0 if shift is None else shift)


class Outer(nn.Module):
    """Modules in every kind of container, one of them twice."""

    def __init__(self):
        super().__init__()
        self.first = linear()
        self.steps = nn.ModuleList([linear(0.5), nn.ReLU()])
        self.table = nn.ModuleDict({"a": linear(0.2), "b": nn.Tanh()})
        self.sequence = nn.Sequential(self.first, nn.Sigmoid())

    def forward(self, x):
        x = self.first(x)
        for step in self.steps:
            x = step(x)
        for step in self.table.values():
            x = step(x)
        return self.sequence(x)


def double(module, args, output):
    return output * 2


def plus_one(module, args, output):
    return output + 1


def nothing(module, args, output):
    return None


def negate_input(module, args):
    return (-args[0],)


def gradients(model, *tensors):
    """The gradients there are, and none left for the next step."""
    found = []
    for tensor in (*model.parameters(), *tensors):
        found.append(None if tensor.grad is None else tensor.grad.clone())
        tensor.grad = None
    return found


class Parallel(nn.Module):
    """Wraps a module and passes calls on, as DataParallel does."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)
