"""Calls with pytrees, keywords and constants, as calls over tensors alone; and which compiled version fits a call.

What a compiler of graphs takes is a function from tensors to tensors. A call is taken apart into its leaves; tensors
become the inputs, everything else is a constant that belongs to the version compiled for it. The result is put together
again from the tensors that come out and the constants that were beside them while tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .._native import GlobalState, TensorCheck
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
        """What has to be equal for a compiled version to be asked whether it fits."""
        constants = tuple(constant_key(value) for value in self.constants)
        plans = tuple(plan and plan.key() for plan in map(plan_of, self.tensors))
        return self.spec, self.places, constants, plans, sharing(self.looked_at())

    def looked_at(self) -> list[torch.Tensor]:
        """The tensors whose properties a compiled version depends on: those inside of subclasses, too."""
        tensors = [each for each in self.tensors if isinstance(each, torch.Tensor)]
        return tensors + [inner for tensor in tensors for inner in inner_tensors(tensor) if inner is not tensor]


def take_apart(args: tuple[Any, ...], kwargs: dict[str, Any], numbers: Collection[int] = ()) -> Call:
    """A call as its leaves; those at the places `numbers` are inputs, as tensors are, and not constants."""
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
    """Equal for constants that may stand for each other: 1, 1.0 and True may not, nor may 0.0 and -0.0."""
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, complex):
        return complex, value.real.hex(), value.imag.hex()
    if value is None or isinstance(value, (int, str, bytes, torch.dtype, torch.device, torch.memory_format)):
        return type(value), value
    return type(value), Same(value)


class Same:
    """A key that only the very same object has; it keeps the object, so that no other gets its address."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def sharing(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Which tensors share memory and how, and what torch thinks of changing them in place."""
    groups = storage_groups(tensors)
    described = []
    for tensor in tensors:
        group = groups[storage_of(tensor)]
        described.append(((group[0], tensor.storage_offset()) if len(group) > 1 else None, changeable(tensor)))
    return tuple(described)


def storage_groups(tensors: Sequence[torch.Tensor]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(storage_of(tensor), []).append(index)
    return groups


def storage_of(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse tensors and others without one storage
        return id(tensor)


def changeable(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Whether it is a leaf, and whether a view of one that requires grad."""
    base = tensor._base
    return tensor.is_leaf, base is not None and base.is_leaf and base.requires_grad


@dataclass
class Result:
    """How a function's result is put together; known once the function has been traced."""

    spec: TreeSpec | None = None
    leaves: list[Any] = field(default_factory=list)  # constants, and None where a value comes out of the graph
    places: list[int] = field(default_factory=list)

    def take_apart(self, result: Any) -> list[Any]:
        """Note the form of a result; gives what is to come out of the graph."""
        leaves, self.spec = tree_flatten(result)
        self.places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, GRAPH_VALUES)]
        self.leaves = list(leaves)
        for place in self.places:
            self.leaves[place] = None
        return [leaves[place] for place in self.places]

    def put_together(self, values: Sequence[Any]) -> Any:
        assert self.spec is not None, "traced"
        return tree_unflatten(self.put_together_flat(values), self.spec)

    def put_together_flat(self, values: Sequence[Any]) -> list[Any]:
        """The leaves of the result."""
        leaves = list(self.leaves)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = value
        return leaves


@dataclass
class Version:
    """What was compiled for calls of one form."""

    run: Callable[..., Sequence[Any]]
    result: Result
    tensor_check: TensorCheck
    state: GlobalState
    sizes: Callable[[Sequence[torch.Tensor]], bool] | None = None  # what was assumed of sizes that vary
    held: list[torch.Tensor] = field(default_factory=list)  # what the function reaches by itself

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        return (
            self.state.check()
            and self.tensor_check(*tensors, *self.held)
            and (self.sizes is None or self.sizes(tensors))
        )

    def call(self, call: Call) -> Any:
        return self.result.put_together(self.run(*call.tensors, *self.held))


class Versions:
    """The compiled versions of one function: the first call of each form makes one."""

    def __init__(self, make: Callable[[Call], Version]):
        self.make = make
        self.by_key: dict[tuple[Any, ...], list[Version]] = {}

    def find(self, call: Call) -> Version:
        known = self.by_key.setdefault(call.key(), [])
        tensors = call.looked_at()
        for version in known:
            if version.fits(tensors):
                return version
        made = self.make(call)
        known.append(made)
        return made

    def __len__(self) -> int:
        return sum(len(versions) for versions in self.by_key.values())
