"""What an operator's schema says about mutation and aliasing, and the functional form of operators that mutate.

The form of ``add_`` is ``add``, that of ``add.out`` is ``add.Tensor``; an operator that has none (users' own) is called
on copies of what it changes. In every case the form gives the results that are the operator's own, then the new values
of the changed arguments, in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..unsupported import Unsupported

aten = torch.ops.aten


@dataclass(frozen=True)
class Place:
    """Where an argument is."""

    index: int | None  # None: only by name
    name: str


@dataclass(frozen=True)
class Signature:
    """Which arguments an operator changes, and which one its results are views of."""

    changed: tuple[Place, ...]
    view_of: int | None
    replaces_metadata: bool
    form: Any = None  # a functional form known by hand
    rest: tuple[Any, ...] = ()  # the arguments that may be given by position
    hidden: bool = False  # its results are views, of which autograd knows nothing

    def argument(self, place: Place, args: tuple, keywords: dict) -> Any:
        if place.index is not None and place.index < len(args):
            return args[place.index]
        return keywords.get(place.name)

    def functional(self, function: Any) -> tuple[Any, tuple[Place, ...]]:
        """The functional form, and the arguments that it does not take."""
        if self.form is not None:
            return self.form, ()
        return functional_form(function)

    def without(self, places: tuple[Place, ...], args: tuple, keywords: dict) -> tuple[tuple, dict]:
        """The arguments for a functional form: defaults filled in, which it may not have."""
        args = (*args, *[d.default_value for d in self.rest[len(args) :] if d.name not in keywords])
        names = {place.name for place in places}
        indices = {place.index for place in places}
        kept = tuple([arg for index, arg in enumerate(args) if index not in indices])
        return kept, {name: value for name, value in keywords.items() if name not in names}

    @staticmethod
    def several(form: Any) -> bool:
        """Whether a form gives several results, rather than one that may be a list."""
        return isinstance(form, OnCopies) or len(form._schema.returns) != 1


@functools.cache
def signature(function: torch._ops.OpOverload) -> Signature:
    schema = function._schema
    places = [
        Place(None if argument.kwarg_only else index, argument.name) for index, argument in enumerate(schema.arguments)
    ]
    changed = tuple([place for place, argument in zip(places, schema.arguments, strict=True) if is_written(argument)])
    if changed:
        positional = tuple([argument for argument in schema.arguments if not argument.kwarg_only])
        return Signature(changed, None, torch.Tag.inplace_view in function.tags, rest=positional)
    looked_at = {name for result in schema.returns for name in alias_sets(result)}
    view_of = next((i for i, argument in enumerate(schema.arguments) if is_looked_at(argument, looked_at)), None)
    return Signature((), view_of, False)


def is_looked_at(argument: Any, names: set[str]) -> bool:
    """Whether results are views of an argument; lists of views say so by a star in the argument's aliases."""
    return bool(alias_sets(argument) & names) or (
        argument.alias_info is not None and "*" in argument.alias_info.after_set
    )


def is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def alias_sets(argument: Any) -> set[str]:
    return set() if argument.alias_info is None else set(argument.alias_info.before_set)


@functools.cache
def functional_form(function: torch._ops.OpOverload) -> tuple[Any, tuple[Place, ...]]:
    name = function._opname
    wanted = list(function._schema.arguments)
    places = {argument.name: place for argument, place in zip(wanted, all_places(function), strict=True)}
    outs = [argument for argument in wanted if is_written(argument) and (argument.kwarg_only or argument.is_out)]
    kept = [argument for argument in wanted if argument not in outs] if outs else wanted
    stem = name.removesuffix("_")
    candidates = [name, stem] if outs else [stem, f"{stem}_functional"]
    for candidate in candidates:
        form = find_overload(function.namespace, candidate, function._overloadname, kept)
        if form is not None:
            return form, tuple([places[argument.name] for argument in outs])
    if torch.Tag.nondeterministic_seeded in function.tags:
        raise Unsupported(f"{function}, a random operator without a functional form")
    return OnCopies(function), ()


def all_places(function: torch._ops.OpOverload) -> list[Place]:
    arguments = function._schema.arguments
    return [Place(None if argument.kwarg_only else index, argument.name) for index, argument in enumerate(arguments)]


def find_overload(namespace: str, name: str, overload: str, arguments: list) -> torch._ops.OpOverload | None:
    """An operator that takes exactly these arguments and changes none."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return None
    wanted = [(argument.name, str(argument.type)) for argument in arguments]
    for candidate in sorted(packet.overloads(), key=lambda known: known != overload):
        found = getattr(packet, candidate)
        schema = found._schema
        if any(is_written(argument) for argument in schema.arguments) or any(alias_sets(r) for r in schema.returns):
            continue
        if [(argument.name, str(argument.type)) for argument in schema.arguments] == wanted:
            return found
    return None


class OnCopies:
    """An operator called on copies of what it changes: gives its own results, then the changed copies."""

    def __init__(self, function: torch._ops.OpOverload) -> None:
        self.function = function
        self.signature = signature(function)
        self.__name__ = f"{function._opname}_on_copies"
        self.__qualname__, self.__module__ = self.__name__, __name__

    def __call__(self, *args: Any, **keywords: Any) -> tuple:
        positions, names = list(args), dict(keywords)
        copies = []
        for place in self.signature.changed:
            copy = copied(self.signature.argument(place, args, keywords))
            copies.append(copy)
            if place.index is not None and place.index < len(args):
                positions[place.index] = copy
            else:
                names[place.name] = copy
        results = self.function(*positions, **names)
        returned = results if isinstance(results, tuple) else () if results is None else (results,)
        schema = self.function._schema
        own = [result for result, told in zip(returned, schema.returns, strict=False) if told.alias_info is None]
        return (*own, *copies)


def copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [copied(part) for part in value]
    return None if value is None else value.clone()


# -- operators whose schema does not tell ---------------------------------------------------------------------------

Rewritten = tuple[Any, tuple, dict, Signature | None]


def batch_norm(function: Any, args: tuple, keywords: dict) -> Rewritten:
    """Changes the running statistics in training, without saying so."""
    names = [argument.name for argument in function._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **keywords}
    statistics = given["running_mean"]
    if not given["training"] or statistics is None:
        return function, args, keywords, None
    form = aten._native_batch_norm_legit_functional.default
    order = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    changed = (Place(3, "running_mean"), Place(4, "running_var"))
    return form, tuple([given[name] for name in order]), {}, Signature(changed, None, False, form)


class InGradMode:
    """An operator whose kernel keeps things for its backward only where gradients are on; in graphs they are off."""

    def __init__(self, function: torch._ops.OpOverload) -> None:
        self.function = function
        self.__name__ = f"{function._opname}_in_grad_mode"
        self.__qualname__, self.__module__ = self.__name__, __name__

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
            return self.function(*args, **keywords)


def recurrent_layer(function: Any, args: tuple, keywords: dict) -> Rewritten:
    """Gives its workspace only where gradients are on, whatever it is told about training."""
    if not torch.is_grad_enabled():
        return function, args, keywords, None
    return InGradMode(function), args, keywords, Signature((), None, False)


def as_view(view: Any) -> Callable[[Any, tuple, dict], Rewritten]:
    """An operator that gives parts of its argument's memory, without saying so: as the view operation it is."""
    return lambda function, args, keywords: (view, args, keywords, Signature((), 0, False, hidden=True))


FUNCTIONAL_BY_HAND: dict[Any, Callable[[Any, tuple, dict], Rewritten]] = {
    aten.native_batch_norm.default: batch_norm,
    aten.unsafe_split.Tensor: as_view(aten.split.Tensor),
    aten.unsafe_split_with_sizes.default: as_view(aten.split_with_sizes.default),
    aten.unsafe_chunk.default: as_view(aten.chunk.default),
    aten.mkldnn_rnn_layer.default: recurrent_layer,
}
