"""Kernels like those of norms and softmaxes, made at random: several phases over rows or columns of float types."""

from __future__ import annotations

import random

import torch

from kiln.loops.ir import Access, Expr, constant, load, op, reduced
from kiln.loops.kernel import Kernel, Loop, Output, Reduction
from tests.target.kernel_runs import Memory

TYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (40, 64, 96, 128, 200, 256, 768, 1000, 1023, 1024, 2048, 9000, 20000)
HEIGHTS = (1, 5, 16, 33, 64)


class RandomRowKernel:
    """``is_down``: reduces along the outer axis of matrices, otherwise along the inner one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.memory = Memory()
        self.is_down = self.random.random() < 0.4
        self.rows, self.columns = self.random.choice(HEIGHTS), self.random.choice(WIDTHS)
        self.sizes = (self.columns, self.rows) if self.is_down else (self.rows, self.columns)  # kept, reduced
        self.full = (1, self.columns) if self.is_down else (self.columns, 1)
        self.loads = [self.load(self.full) for _ in range(self.random.choice([1, 2, 2, 3]))]
        inner = (0, 1) if self.random.random() < 0.7 else (1, 0)
        self.loads += [self.load(inner)] if self.random.random() < 0.6 else []

    def load(self, strides: tuple[int, int]) -> Expr:
        dtype = self.random.choice(TYPES)
        count = 1 + sum((size - 1) * stride for size, stride in zip(self.sizes, strides, strict=True))
        data = torch.randn(count, generator=self.generator).to(dtype)
        return op("cast", load(Access(self.memory.add(data), strides, 0)), dtype=torch.float32)

    def value(self, results: list[Expr]) -> Expr:
        found = self.random.choice(self.loads)
        for _ in range(self.random.choice([0, 1, 2, 3])):
            name = self.random.choice(["add", "sub", "mul"])
            found = op(name, found, self.random.choice([*self.loads, *results]))
        if self.random.random() < 0.4:
            found = op(self.random.choice(["tanh", "sigmoid"]), found)
            if self.random.random() < 0.5:
                found = op("add", constant(1.0, torch.float32), found)
        return found

    def add_softmax(self, reductions: list[Reduction], results: list[Expr]) -> None:
        """The greatest value and the sum of exponentials of distances from it; some values are infinite."""
        value = self.random.choice(self.loads[:2])
        buffer = (value if value.kind == "load" else value.args[0]).payload.buffer
        if self.random.random() < 0.5:
            tensor = self.memory.tensors[buffer]
            tensor[torch.rand(tensor.shape, generator=self.generator) < 0.3] = float("-inf")
            tensor[: len(tensor) // self.random.choice([2, 3, 10**6])] = float("-inf")
            tensor[-1] = 1.0
        for kind in ("max", "sum"):
            known = reduced(0, torch.float32)
            one = value if kind == "max" else op("exp", op("sub", value, known))
            reductions.append(Reduction(len(reductions), kind, one, torch.float32))
            results.append(reduced(len(results), torch.float32))

    def kernel(self) -> Kernel:
        reductions: list[Reduction] = []
        results: list[Expr] = []
        is_softmax = self.random.random() < 0.25
        if is_softmax:
            self.add_softmax(reductions, results)
        for _ in range(0 if is_softmax else self.random.choice([1, 2, 2, 3])):
            known = list(results)
            for _ in range(self.random.choice([1, 1, 2])):
                kind = self.random.choice(["sum", "sum", "max"])
                reductions.append(Reduction(len(reductions), kind, self.value(known), torch.float32))
                scale = constant(1.0 / self.sizes[1], torch.float32)
                results.append(op("mul", reduced(reductions[-1].number, torch.float32), scale))
        outputs = []
        for _ in range(self.random.choice([0, 1, 2])):
            dtype = self.random.choice(TYPES)
            target = Access(self.memory.add(torch.zeros(self.rows * self.columns, dtype=dtype)), self.full, 0)
            outputs.append(Output(target, op("cast", self.value(results), dtype=dtype), True))
        for result in results if not outputs or self.random.random() < 0.5 else results[:1]:
            target = Access(self.memory.add(torch.zeros(self.sizes[0])), (1, 0), 0)
            outputs.append(Output(target, result, False))
        loops = (Loop(self.sizes[0]), Loop(self.sizes[1], True))
        return Kernel("k", loops, tuple(reductions), tuple(outputs), 0 if self.is_down else 1)
