"""What an operator's schema says about mutation and aliasing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...platform.light_dataclass import dataclass
from ...platform.torch_operators import Argument, FunctionSchema


@dataclass(eq=False)  # never changed
class Place:
    """Where an argument is."""

    index: int | None  # None: only by name
    name: str


@dataclass(eq=False)  # never changed
class Signature:
    """Which arguments an operator changes, and which one its results are views of."""

    changed: tuple[Place, ...]
    view_of: int | None
    replaces_metadata: bool
    form: Callable[..., Any] | None = None  # the functional form, where `functional_form` does not find it
    rest: tuple[Argument, ...] = ()  # the arguments that may be given by position
    hidden: bool = False  # its results are views, of which autograd knows nothing

    def argument(self, place: Place, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if place.index is not None and place.index < len(args):
            return args[place.index]
        return keywords.get(place.name)

    def without(
        self, places: tuple[Place, ...], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for a functional form: defaults filled in, which it may not have."""
        args = (*args, *[d.default_value for d in self.rest[len(args) :] if d.name not in keywords])
        names = {place.name for place in places}
        indices = {place.index for place in places}
        kept = tuple([arg for index, arg in enumerate(args) if index not in indices])
        return kept, {name: value for name, value in keywords.items() if name not in names}


def read_signature(schema: FunctionSchema, replaces_metadata: bool) -> Signature:
    places = places_of(schema)
    changed = tuple([place for place, argument in zip(places, schema.arguments, strict=True) if is_written(argument)])
    if changed:
        positional = tuple([argument for argument in schema.arguments if not argument.kwarg_only])
        return Signature(changed, None, replaces_metadata, rest=positional)
    viewed = {name for result in schema.returns for name in alias_sets(result)}
    view_of = next((i for i, argument in enumerate(schema.arguments) if is_viewed(argument, viewed)), None)
    return Signature((), view_of, False)


def places_of(schema: FunctionSchema) -> list[Place]:
    """Where the arguments of an operator are."""
    arguments = schema.arguments
    return [Place(None if argument.kwarg_only else index, argument.name) for index, argument in enumerate(arguments)]


def is_viewed(argument: Argument, names: set[str]) -> bool:
    """Whether results are views of an argument; lists of views say so by a star in the argument's aliases."""
    return bool(alias_sets(argument) & names) or (
        argument.alias_info is not None and "*" in argument.alias_info.after_set
    )


def is_written(argument: Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def alias_sets(argument: Argument) -> set[str]:
    return set() if argument.alias_info is None else set(argument.alias_info.before_set)
