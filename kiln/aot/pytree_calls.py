"""Calls with pytrees, keywords and constants, as calls over tensors alone; and which compiled version fits a call.

A compiler of graphs takes a function from tensors to tensors. A call is flattened to its leaves; tensors become the
inputs, everything else is a constant of the version that is compiled for it. The result is unflattened from the tensors
that come out and the constants that were beside them while tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from typing import Any

import torch

from .._native import GlobalState, TensorCheck
from ..platform.light_dataclass import dataclass
from ..platform.torch_pytree import TreeSpec, tree_flatten, tree_unflatten
from ..platform.torch_tensors import base_of, storage_address
from .wrapper_subclasses import inner_tensors, plan_of

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
GRAPH_VALUES = (torch.Tensor, *SYMBOLIC)


@dataclass
class Call:
    """The leaves of a call's arguments, tensors apart from constants."""

    spec: TreeSpec
    tensors: list[Any]  # each once; for a compiler that asks (see `symbolic_places`) also its numbers
    places: tuple[tuple[int, int], ...]  # among the leaves, and which tensor is there
    constants: list[Any]  # the leaves, with None where a tensor is

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these tensors in place of the call's own."""
        leaves = list(self.constants)
        for place, index in self.places:
            leaves[place] = tensors[index]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return tuple(args), kwargs

    def key(self) -> tuple[Any, ...]:
        """What must be equal for a compiled version to be considered."""
        constants = tuple(constant_key(value) for value in self.constants)
        plans = tuple(plan and plan.key() for plan in map(plan_of, self.tensors))
        return self.spec, self.places, constants, plans, aliasing(self.checked_tensors())

    def checked_tensors(self) -> list[torch.Tensor]:
        """The tensors whose properties a compiled version depends on, also those inside subclasses."""
        tensors = [each for each in self.tensors if isinstance(each, torch.Tensor)]
        return tensors + [inner for tensor in tensors for inner in inner_tensors(tensor) if inner is not tensor]


def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any], numbers: Collection[int] = ()) -> Call:
    """A call as its leaves; those at the places `numbers` are inputs as well as tensors."""
    leaves, spec = tree_flatten((args, kwargs))
    tensors: dict[Any, tuple[int, Any]] = {}
    places = []
    constants: list[Any] = list(leaves)
    for place, leaf in enumerate(leaves):
        number = place in numbers
        if number or isinstance(leaf, torch.Tensor):
            index, _ = tensors.setdefault(("number", place) if number else id(leaf), (len(tensors), leaf))
            places.append((place, index))
            constants[place] = None
    return Call(spec, [tensor for _, tensor in tensors.values()], tuple(places), constants)


def symbolic_places(args: tuple[Any, ...]) -> frozenset[int]:
    """Which leaves of a call are symbolic numbers: a compiler that gives such examples calls with any number there."""
    leaves = tree_flatten((args, {}))[0]
    return frozenset(place for place, leaf in enumerate(leaves) if isinstance(leaf, SYMBOLIC))


def constant_key(value: Any) -> Any:
    """Equal for constants that are interchangeable: 1, 1.0 and True are not, nor 0.0 and -0.0."""
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, complex):
        return complex, value.real.hex(), value.imag.hex()
    if value is None or isinstance(value, (int, str, bytes, torch.dtype, torch.device, torch.memory_format)):
        return type(value), value
    return type(value), ById(value)


class ById:
    """A key that only the same object has; it keeps the object alive, so that no other gets its address."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def aliasing(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Which tensors share memory and how, and whether torch lets them change in place."""
    groups: dict[int, list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(storage_of(tensor), []).append(index)
    described = []
    for tensor in tensors:
        group = groups[storage_of(tensor)]
        described.append(((group[0], tensor.storage_offset()) if len(group) > 1 else None, leaf_state(tensor)))
    return tuple(described)


def storage_of(tensor: torch.Tensor) -> int:
    try:
        return storage_address(tensor)
    except (NotImplementedError, RuntimeError):  # sparse tensors and others without one storage
        return id(tensor)


def leaf_state(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Whether it is a leaf, and whether a view of one that requires grad."""
    base = base_of(tensor)
    return tensor.is_leaf, base is not None and base.is_leaf and base.requires_grad


@dataclass
class Result:
    """The form of a function's result; known once the function has been traced."""

    spec: TreeSpec | None = None
    leaves: list[Any] = field(default_factory=list)  # constants, and None where a value comes out of the graph
    places: list[int] = field(default_factory=list)

    def flatten(self, result: Any) -> list[Any]:
        """Note the form of a result; gives the graph's outputs."""
        leaves, self.spec = tree_flatten(result)
        self.places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, GRAPH_VALUES)]
        self.leaves = list(leaves)
        for place in self.places:
            self.leaves[place] = None
        return [leaves[place] for place in self.places]

    def unflatten(self, values: Sequence[Any]) -> Any:
        assert self.spec is not None, "traced"
        return tree_unflatten(self.fill(values), self.spec)

    def fill(self, values: Sequence[Any]) -> list[Any]:
        """The leaves of the result, with these outputs of the graph."""
        leaves = list(self.leaves)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = value
        return leaves


@dataclass
class Version:
    """A function compiled for calls of one form."""

    run: Callable[..., Sequence[Any]]
    result: Result
    tensor_check: TensorCheck
    state: GlobalState
    sizes: Callable[[Sequence[torch.Tensor]], bool] | None = None  # what was assumed of dynamic sizes
    held: list[torch.Tensor] = field(default_factory=list)  # that the function closes over

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        return (
            self.state.check()
            and self.tensor_check(*tensors, *self.held)
            and (self.sizes is None or self.sizes(tensors))
        )

    def call(self, call: Call) -> Any:
        return self.result.unflatten(self.run(*call.tensors, *self.held))


class Versions:
    """The compiled versions of one function: the first call of each form makes one."""

    def __init__(self, make: Callable[[Call], Version]):
        self.make = make
        self.by_key: dict[tuple[Any, ...], list[Version]] = {}

    def find(self, call: Call) -> Version:
        known = self.by_key.setdefault(call.key(), [])
        tensors = call.checked_tensors()
        for version in known:
            if version.fits(tensors):
                return version
        made = self.make(call)
        known.append(made)
        return made
