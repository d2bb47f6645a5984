"""The inputs of the graph: tensors, symbolic numbers and objects from outside."""

from __future__ import annotations

import types
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch.fx

from ..._native import is_instance as isinstance
from ...platform.light_dataclass import dataclass
from ...program.consumed_lists import consumed
from ..guards.source import Source
from .values import TensorInfo

if TYPE_CHECKING:
    from ..autograd.hook_registrations import SlotInput
    from ..shadows.list_examples import Examples


@dataclass(eq=False)
class SymbolInput:
    """A symbolic number as a graph input."""

    symbol: str
    source: Source
    node: torch.fx.Node
    value: object
    real: int | float  # what it is in this call


@dataclass(eq=False)
class ObjectInput:
    """An object that operations take (a random generator, the slot of a hook) as a graph input."""

    source: Source
    node: torch.fx.Node
    value: object


@dataclass(eq=False, slots=True)
class GraphInputs:
    """The inputs of the graph, and the constants that its module holds."""

    consumed: tuple[str, ...] = ()  # parameters whose lists the graph empties
    examples: Examples | None = None  # what is known of the items of such lists
    items: list[TensorInfo | SymbolInput | ObjectInput | SlotInput] = field(default_factory=list)
    symbols: dict[str, Source] = field(default_factory=dict)  # symbolic number -> where it is read
    numbers: dict[str | Source, SymbolInput] = field(default_factory=dict)  # by symbol and by source
    constants: dict[str, object] = field(default_factory=dict)  # attributes of the graph module
    numbered_addresses: dict[tuple[str, int], int] = field(default_factory=dict)  # see input_state.py
    deep_copied: dict[int, TensorInfo] = field(default_factory=dict)  # each into memory of its own
    by_memory: dict[int, list[TensorInfo]] = field(default_factory=dict)  # by the memory of fakes
    indexed: int = 0  # how many items are in `by_memory`

    @classmethod
    def of(cls, function: types.FunctionType) -> GraphInputs:
        """The inputs of a graph of this function, none so far."""
        lists = consumed(function)
        return cls(lists.names, lists.examples)

    def tensors(self) -> list[TensorInfo]:
        return [item for item in self.items if isinstance(item, TensorInfo)]

    def sharing_memory(self, keys: set[int], key_of: Any) -> list[TensorInfo]:
        """The tensors whose fakes lie in memory with these keys."""
        for item in self.items[self.indexed :]:
            if isinstance(item, TensorInfo):
                self.by_memory.setdefault(key_of(item.fake), []).append(item)
        self.indexed = len(self.items)
        return [item for key in keys for item in self.by_memory.get(key, ())]

    def forget_memory(self) -> None:
        """A fake has got other memory: index all anew."""
        self.by_memory.clear()
        self.indexed = 0
