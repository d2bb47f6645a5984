"""What tests of the emitter share: a kernel made by hand, run as machine code and by the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from kiln.loops import ir
from kiln.loops.ir import Access, Buffer, Expr
from kiln.loops.kernel import Kernel
from kiln.loops.reference import Reference
from kiln.loops.steps import Launch, Scheduled
from kiln.target.cpu import jit
from kiln.target.cpu.emit import llvm_module
from kiln.target.cpu.kernel_call import call_kernel


class Memory:
    """Buffers with tensors in them. What a kernel writes to is kept twice: for it, and for the reference."""

    def __init__(self) -> None:
        self.tensors: dict[Buffer, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> Buffer:
        name = f"b{len(self.tensors)}"
        buffer = Buffer(name, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), "input", len(self.tensors))
        self.tensors[buffer] = tensor
        return buffer

    def load(self, tensor: torch.Tensor, strides: Sequence[Any] | None = None, offset: Any = 0, **more: Any) -> Expr:
        buffer = self.add(tensor)
        return ir.load(Access(buffer, tuple(tensor.stride() if strides is None else strides), offset, **more))

    def run(self, kernel: Kernel, sizes: dict[sympy.Symbol, int] | None = None, threads: int = 1) -> dict[Buffer, Any]:
        """What the machine code leaves in the buffers."""
        tensors = {buffer: copied(tensor) for buffer, tensor in self.tensors.items()}
        run_kernel(kernel, tensors, sizes or {}, threads)
        return tensors

    def expected(self, kernel: Kernel, sizes: dict[sympy.Symbol, int] | None = None) -> dict[Buffer, Any]:
        tensors = {buffer: copied(tensor) for buffer, tensor in self.tensors.items()}
        reference = Reference(Scheduled(list(tensors), [], []), list(tensors.values()))
        reference.symbols.update(sizes or {})
        reference.launch(Launch(kernel, kernel.buffers, kernel.sizes))
        return tensors

    def check(
        self, kernel: Kernel, sizes: dict[sympy.Symbol, int] | None = None, threads: int = 1, **tolerance: Any
    ) -> dict[Buffer, Any]:
        """The machine code does what the reference does."""
        wanted = self.expected(kernel, sizes)
        found = self.run(kernel, sizes, threads)
        for buffer, tensor in wanted.items():
            torch.testing.assert_close(
                found[buffer], tensor, equal_nan=True, msg=lambda text: f"{kernel.text}\n{text}", **tolerance
            )
        return found


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """The same layout, in memory of its own."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return made.copy_(tensor)


def run_kernel(
    kernel: Kernel, tensors: dict[Buffer, torch.Tensor], sizes: dict[sympy.Symbol, int], threads: int
) -> None:
    module = jit.compile_module(llvm_module.emit(kernel, "kernel"))
    numbers = [int(size.subs(sizes)) for size in kernel.sizes]
    call_kernel(kernel, module.address("kernel"), [tensors[b].data_ptr() for b in kernel.buffers], numbers, threads)
