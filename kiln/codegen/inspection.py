"""What a graph was compiled to: kernels with the memory they read and write, calls of ATen, LLVM IR, assembly, times.

A `Generated` is only made for ``KILN_LOG=ir,kernels,code,ptx`` and ``kiln.explain``. LLVM IR and assembly of a kernel
are generated again when they are asked for.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import sympy
import torch
import torch.fx

from .._native import OperatorProgram
from ..loops.ir import Access, Buffer
from ..loops.kernel import Kernel
from ..loops.sizes import Size
from ..loops.steps import Call, Launch, Lowered, Scheduled
from ..platform.light_dataclass import dataclass
from ..platform.torch_symbols import expression_of, hint_of
from ..report.events import in_bytes
from ..target.target import LoadedCode, MachineCode, Target


@dataclass
class GeneratedKernel:
    """A kernel, where it is launched and what each launch reads and writes."""

    kernel: Kernel
    target: Target
    launches: list[Launch]
    reads: list[dict[str, int]]  # bytes by buffer, of each launch
    writes: list[dict[str, int]]

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def text(self) -> str:
        """The loops, as Python."""
        return self.kernel.text

    @cached_property
    def llvm(self) -> str:
        return self.target.llvm({self.name: self.kernel})

    @cached_property
    def assembly(self) -> str:
        return self.target.assembly(self.llvm)

    @property
    def bytes_read(self) -> int:
        return sum(sum(one.values()) for one in self.reads)

    @property
    def bytes_written(self) -> int:
        return sum(sum(one.values()) for one in self.writes)

    def lines(self) -> list[str]:
        """The fused nodes, and the memory that each launch reads and writes."""
        found = []
        for launch, reads, writes in zip(self.launches, self.reads, self.writes, strict=True):
            nodes = ", ".join(str(node) for node in launch.nodes)
            found.append(f"{self.name}: {nodes}")
            found.append(f"  reads {bytes_text(reads)}")
            found.append(f"  writes {bytes_text(writes)}")
        return found


def counted_noun(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" + ("" if number == 1 else plural)


def bytes_text(parts: dict[str, int]) -> str:
    whole = in_bytes(sum(parts.values()))
    if len(parts) < 2:
        return f"{whole} ({''.join(parts) or 'nothing'})"
    return f"{whole}: {', '.join(f'{name} {in_bytes(count)}' for name, count in parts.items())}"


@dataclass
class MadeProgram:
    """The program itself. ``steps``: those that launch kernels, by the name of their range in torch's profiler."""

    native: Any
    steps: list[tuple[str, list[Launch]]]
    code: MachineCode
    loaded: LoadedCode


@dataclass
class Generated:
    """What one functional graph was compiled to. ``called``: the nodes that ATen runs, with the reason; ``program``:
    the program as Python text."""

    module: torch.fx.GraphModule
    target: Target
    writes: list[str]
    kernels: list[GeneratedKernel]
    called: dict[str, str]
    times: dict[str, float]
    program: str
    made: MadeProgram | None = None

    @classmethod
    def of(
        cls,
        module: torch.fx.GraphModule,
        lowered: Lowered,
        scheduled: Scheduled,
        target: Target,
        times: dict[str, float],
        program: str,
        made: MadeProgram | None = None,
    ) -> Generated:
        hints = hints_of(module)
        kernels = {kernel: GeneratedKernel(kernel, target, [], [], []) for kernel in scheduled.kernels}
        for step in scheduled.steps:
            if isinstance(step, Launch):
                known = kernels[step.kernel]
                reads, writes = traffic(step, hints)
                known.launches.append(step)
                known.reads.append(reads)
                known.writes.append(writes)
        items = [f"call {item.target}" if isinstance(item, Call) else repr(item) for item in lowered.items]
        return cls(module, target, items, list(kernels.values()), dict(scheduled.called), times, program, made)

    @property
    def name(self) -> str:
        """Of the program's range in torch's profiler."""
        return self.made.native.name if self.made is not None and isinstance(self.made.native, OperatorProgram) else ""

    def bytes_of_steps(self) -> dict[str, int]:
        """What the steps that launch kernels must read and write in a run, by the names of their ranges."""
        hints, found = hints_of(self.module), dict[str, int]()
        for step, launches in self.made.steps if self.made is not None else ():
            moved = sum(sum(one.values()) for launch in launches for one in traffic(launch, hints))
            found[step] = found.get(step, 0) + moved
        return found

    def resources(self) -> dict[str, dict[str, int]]:
        """What kernels need of a GPU, by name."""
        if self.made is None:
            return {}
        kernels = [kernel.kernel for kernel in self.kernels]
        return self.target.resources(kernels, self.made.code, self.made.loaded)

    @property
    def summary(self) -> str:
        launches = sum(len(kernel.launches) for kernel in self.kernels)
        read = in_bytes(sum(kernel.bytes_read for kernel in self.kernels))
        written = in_bytes(sum(kernel.bytes_written for kernel in self.kernels))
        kernels = f"{counted_noun(len(self.kernels), 'kernel')} ({counted_noun(launches, 'launch', 'es')})"
        return f"{kernels}: {read} read, {written} written; {counted_noun(len(self.called), 'call')} of ATen"

    def lines(self) -> list[str]:
        """Kernels, calls and times."""
        found = [line for kernel in self.kernels for line in kernel.lines()]
        found += [f"ATen runs {name}: {reason}" for name, reason in self.called.items()]
        return found + [f"{seconds * 1e3:8.1f} ms  {stage}" for stage, seconds in self.times.items()]

    def artefact(self, name: str) -> str:
        """What a log shows, by its name in ``KILN_LOG``."""
        if name == "ptx" and not self.target.is_gpu:
            return "no PTX: a program for the CPU (KILN_LOG=code has its assembly)"
        if name == "ptx":
            return "\n".join(kernel.assembly for kernel in self.kernels)
        if name == "kernels":
            return "\n".join([self.summary, *self.lines()])
        if name == "ir":
            return "\n".join([*self.writes, "", *(kernel.text for kernel in self.kernels)])
        return "\n".join([self.program, *(f"{kernel.llvm}\n{kernel.assembly}" for kernel in self.kernels)])


# ---- memory traffic --------------------------------------------------------------------------------------------------


def hints_of(module: torch.fx.GraphModule) -> dict[sympy.Symbol, int]:
    """The values that the symbols of sizes had when the graph was made."""
    found: dict[sympy.Symbol, int] = {}
    for node in module.graph.nodes:
        if node.op != "placeholder":
            break
        value = node.meta.get("val")
        numbers = [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]
        for number in numbers:
            if isinstance(number, torch.SymInt) and expression_of(number).is_Symbol:
                found[expression_of(number)] = int(hint_of(number))
    return found


def traffic(launch: Launch, hints: dict[sympy.Symbol, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The bytes that a launch reads and writes, by buffer: each element once, and all elements of what is indexed."""
    kernel = launch.kernel
    actual = launch.actual
    sizes = dict(zip(kernel.sizes, launch.sizes, strict=True))
    number = SizeValues(sizes, hints)
    loops = [number.of(loop.size) for loop in kernel.loops]
    written = [output.target for output in kernel.outputs]
    read = [access for access in kernel.accesses() if all(access is not one for one in written)]
    read += [output.target for output in kernel.outputs if output.accumulate]
    return bytes_by_buffer(read, actual, loops, number), bytes_by_buffer(written, actual, loops, number)


class SizeValues:
    """Sizes of a kernel as numbers."""

    def __init__(self, sizes: dict[Any, Size], hints: dict[sympy.Symbol, int]) -> None:
        self.sizes, self.hints = sizes, hints

    def of(self, size: Size) -> int:
        size = self.sizes.get(size, size)
        if isinstance(size, int):
            return size
        known = size.subs(self.hints)
        return int(known) if known.is_Integer else 64


def bytes_by_buffer(
    accesses: list[Access], actual: dict[Buffer, Buffer], loops: list[int], number: SizeValues
) -> dict[str, int]:
    found: dict[Buffer, int] = {}
    spans: dict[Buffer, float] = {}
    for access in accesses:
        buffer = actual[access.buffer]
        moved = [size for size, stride in zip(loops, access.strides, strict=True) if stride != 0 or access.indirect]
        count = math.prod(moved) * buffer.dtype.itemsize
        found[buffer] = found.get(buffer, 0) + count
        span = number.of(buffer.span) * buffer.dtype.itemsize
        spans[buffer] = math.inf if access.indirect else max(spans.get(buffer, 0), span)
    return {buffer.name: int(min(count, spans[buffer])) for buffer, count in found.items()}
