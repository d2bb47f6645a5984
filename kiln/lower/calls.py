"""What a program does besides kernels: calls of ATen operators (and of other functions that are in the graph)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .ir import Access, Buffer, Size, Strides


@dataclass(frozen=True)
class View:
    """A tensor for a call: memory of a buffer as it lies, or seen with other sizes and strides."""

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
class Opaque:
    """A value that kernels cannot read: no tensor, or none in this machine's plain memory. ``index``: of an input."""

    name: str
    index: int = -1

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
