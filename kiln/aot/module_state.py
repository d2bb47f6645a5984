"""The state of a module, its parameters and buffers, as inputs of a function.

Compiled code takes parameters and buffers as arguments: so it holds no model, gradients flow to them, and what the
program does to a buffer in place is done to an input. A parameter or buffer that `forward` *replaces* by another tensor
is a result of the call, and put into the module afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import torch
from torch.nn import Module

from ..platform.light_dataclass import dataclass
from ..platform.torch_modules import buffers_of, parameters_of


@dataclass(frozen=True)
class Place:
    """Where a module keeps a tensor: a table of a submodule, and the name in it."""

    path: str  # as in state dictionaries
    table: dict[str, Any]
    name: str
    index: int  # among the tensors; tensors that are tied have several places


@dataclass
class ModuleState:
    """The tensors of a module, parameters first, each once, and all their places."""

    module: Module
    names: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    parameter_count: int = 0
    places: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        found: dict[int, int] = {}
        for is_parameter in (True, False):
            for path, module in self.module.named_modules():
                table = parameters_of(module) if is_parameter else buffers_of(module)
                self._add(path, table, found)
            if is_parameter:
                self.parameter_count = len(self.tensors)

    def _add(self, path: str, table: dict[str, Any], found: dict[int, int]) -> None:
        for name, tensor in table.items():
            if tensor is None:
                continue
            full = f"{path}.{name}" if path else name
            if id(tensor) not in found:
                found[id(tensor)] = len(self.tensors)
                self.tensors.append(tensor)
                self.names.append(full)
            self.places.append(Place(full, table, name, found[id(tensor)]))

    @contextlib.contextmanager
    def replaced(self, tensors: Sequence[Any]) -> Iterator[list[tuple[Place, Any]]]:
        """In the block the module has these tensors; gives a list that is filled with what replaced them."""
        before = [place.table.get(place.name) for place in self.places]
        for place in self.places:
            place.table[place.name] = tensors[place.index]
        changed: list[tuple[Place, Any]] = []
        try:
            yield changed
            changed += [
                (place, place.table.get(place.name))
                for place in self.places
                if place.table.get(place.name) is not tensors[place.index]
            ]
        finally:
            for place, tensor in zip(self.places, before, strict=True):
                place.table[place.name] = tensor
