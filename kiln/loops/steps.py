"""What a program is made of: calls of ATen, launches of kernels, and whole graphs of them.

Lowering turns a graph into a `Lowered` (writes and calls), scheduling turns that into a `Scheduled` (launches and
calls). Values that are not in plain memory are `Opaque`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeAlias

import sympy

from ..platform.light_dataclass import dataclass
from .ir import Access, Buffer, Write, loads_of
from .kernel import Kernel
from .sizes import Size, Strides, hint


@dataclass(frozen=True)
class View:
    """A tensor argument of a call: a whole buffer, or a part of it with other sizes and strides."""

    buffer: Buffer
    shape: tuple[Size, ...]
    strides: Strides
    offset: Size

    def as_access(self) -> Access:
        return Access(self.buffer, self.strides, self.offset)

    @property
    def is_whole(self) -> bool:
        return self.offset == 0 and self.shape == self.buffer.shape and self.strides == self.buffer.strides


@dataclass(eq=False)
class Call:
    """``results = target(*args, **kwargs)``. Arguments are `View`s, `Opaque`s, sizes, lists of those, and constants.

    ``is_sealed``: nothing may be moved across it (random numbers, functions with effects): such calls keep their order.
    """

    node: Any
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Buffer | Opaque | None]
    is_sealed: bool = False
    reads: tuple[Buffer | Opaque, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.reads = tuple(dict.fromkeys(found for value in (self.args, self.kwargs) for found in buffers_in(value)))


@dataclass(eq=False)
class Draw(Call):
    """Takes seed and offset of random numbers from the generator of the program's GPU, and moves its offset on by the
    increment, as an operator of ATen would. Its one result is a buffer of the kind "drawn"."""

    @property
    def increment(self) -> Size:
        found: Size = self.args[1]
        return found


@dataclass(eq=False)
class Opaque:
    """A value that kernels cannot read: no tensor, or none in the plain memory of their device. ``index``: of an input;
    ``tensor``: of a constant."""

    name: str
    index: int = -1
    tensor: Any = None

    def __repr__(self) -> str:
        return self.name


def buffers_in(value: Any) -> list[Buffer | Opaque]:
    if isinstance(value, View):
        return [value.buffer]
    if isinstance(value, Opaque):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [found for part in value for found in buffers_in(part)]
    return []


@dataclass
class Lowered:
    """A graph as a list of writes and calls. ``outputs``: `View`s, `Opaque`s, sizes and constants."""

    inputs: list[Buffer | Opaque | sympy.Expr | int | None]  # None: an input that is not read
    items: list[Write | Call]
    outputs: list[Any]
    called: dict[str, str] = field(default_factory=dict)  # nodes that were not lowered, and why
    origins: dict[Any, tuple[Any, ...]] = field(default_factory=dict)  # the nodes whose expressions are in a node's
    aligned: dict[Buffer, int] = field(default_factory=dict)  # bytes, of inputs whose alignment decides what eager does


@dataclass(eq=False)
class Launch:
    """A kernel run with these buffers and sizes, in the order of ``kernel.buffers`` and ``kernel.sizes``."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    sizes: tuple[Size, ...]
    nodes: tuple[Any, ...] = ()  # that write
    origins: tuple[Any, ...] = ()  # those, and the nodes whose expressions they grew from, in the graph's order

    @property
    def actual(self) -> dict[Buffer, Buffer]:
        """The buffers of the launch, by those of the kernel."""
        return dict(zip(self.kernel.buffers, self.buffers, strict=True))


@dataclass
class Scheduled:
    """A graph as steps: launches of kernels and calls of ATen."""

    inputs: list[Any]
    steps: list[Launch | Call]
    outputs: list[Any]
    called: dict[str, str] = field(default_factory=dict)
    aligned: dict[Buffer, int] = field(default_factory=dict)

    @property
    def kernels(self) -> list[Kernel]:
        return list(dict.fromkeys(step.kernel for step in self.steps if isinstance(step, Launch)))


Step: TypeAlias = Launch | Call


def estimated_bytes(buffer: Buffer | Opaque) -> int:
    """The size of a buffer; a guess where it is dynamic, and 0 for what is not in plain memory."""
    return hint(buffer.span) * buffer.dtype.itemsize if isinstance(buffer, Buffer) else 0


def uses_of(step: Step) -> tuple[set[Any], set[Any]]:
    """What a step reads and what it writes."""
    if isinstance(step, Call):
        return set(step.reads), {result for result in step.results if result is not None}
    actual = step.actual
    writes = {actual[output.target.buffer] for output in step.kernel.outputs}
    reads = {actual[access.buffer] for access in loads_of(*step.kernel.roots())}
    reads |= {actual[output.target.buffer] for output in step.kernel.outputs if output.accumulate}
    return reads, writes
