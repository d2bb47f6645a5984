"""The functional form of operators that mutate.

The form of ``add_`` is ``add``, that of ``add.out`` is ``add.Tensor``; an operator that has none (users' own) is called
on copies of what it changes. In every case the form gives the results that are the operator's own, then the new values
of the changed arguments, in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...platform.torch_dispatch import AutoDispatchBelowAutograd
from ...platform.torch_operators import Argument, OpOverload, operator_name, overload_name, schema_of
from ..unsupported import Unsupported
from .operator_table import operator_of, overloads_of
from .signatures import Place, Signature, alias_sets, is_written, places_of

aten = torch.ops.aten


@functools.cache
def functional_form(function: OpOverload) -> tuple[Callable[..., Any], tuple[Place, ...]]:
    """The functional form, and the arguments that it does not take."""
    name = operator_name(function)
    wanted = list(schema_of(function).arguments)
    places = {argument.name: place for argument, place in zip(wanted, places_of(schema_of(function)), strict=True)}
    outs = [argument for argument in wanted if is_written(argument) and (argument.kwarg_only or argument.is_out)]
    kept = [argument for argument in wanted if argument not in outs] if outs else wanted
    stem = name.removesuffix("_")
    candidates = [name, stem] if outs else [stem, f"{stem}_functional"]
    for candidate in candidates:
        form = find_overload(function.namespace, candidate, overload_name(function), kept)
        if form is not None:
            return form, tuple([places[argument.name] for argument in outs])
    if operator_of(function).random:
        raise Unsupported(f"{function}, a random operator without a functional form")
    return OnCopies(function), ()


def find_overload(namespace: str, name: str, overload: str, arguments: list[Argument]) -> OpOverload | None:
    """An operator that takes exactly these arguments and changes none."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return None
    for found in sorted(overloads_of(packet), key=lambda known: overload_name(known) != overload):
        schema = schema_of(found)
        if any(is_written(argument) for argument in schema.arguments) or any(alias_sets(r) for r in schema.returns):
            continue
        if takes(found, arguments):
            return found
    return None


def takes(function: OpOverload, arguments: list[Argument]) -> bool:
    """Whether an operator has arguments of these names and types."""
    own = [(argument.name, str(argument.type)) for argument in schema_of(function).arguments]
    return own == [(argument.name, str(argument.type)) for argument in arguments]


def gives_several(form: Callable[..., Any]) -> bool:
    """Whether a functional form gives several results, rather than one that may be a list."""
    return not isinstance(form, OpOverload) or len(schema_of(form).returns) != 1


class OnCopies:
    """An operator called on copies of what it changes: gives its own results, then the changed copies."""

    def __init__(self, function: OpOverload) -> None:
        self.function = function
        self.__name__ = f"{operator_name(function)}_on_copies"
        self.__qualname__, self.__module__ = self.__name__, __name__

    def __call__(self, *args: Any, **keywords: Any) -> tuple[Any, ...]:
        signature = operator_of(self.function).signature
        positions, names = list(args), dict(keywords)
        copies = []
        for place in signature.changed:
            copy = copied(signature.argument(place, args, keywords))
            copies.append(copy)
            if place.index is not None and place.index < len(args):
                positions[place.index] = copy
            else:
                names[place.name] = copy
        results = self.function(*positions, **names)
        returned = results if isinstance(results, tuple) else () if results is None else (results,)
        schema = schema_of(self.function)
        own = [
            result for result, declared in zip(returned, schema.returns, strict=False) if declared.alias_info is None
        ]
        return (*own, *copies)


def copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [copied(part) for part in value]
    return None if value is None else value.clone()


# ---- operators whose schema does not tell ---------------------------------------------------------------------------

Rewritten = tuple[Any, tuple[Any, ...], dict[str, Any], Signature | None]
"""The operator to record, its arguments, and its signature where its schema does not tell it."""


def rewrites(*overloads: OpOverload) -> Callable[[Callable[..., Rewritten]], Callable[..., Rewritten]]:
    """Register what is recorded for a call of operators."""

    def register(rule: Callable[..., Rewritten]) -> Callable[..., Rewritten]:
        for overload in overloads:
            operator_of(overload).rewrite = rule
        return rule

    return register


def by_name(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call."""
    names = [argument.name for argument in schema_of(function).arguments]
    return {**dict(zip(names, args, strict=False)), **keywords}


@rewrites(aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default)
def batch_norm(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Rewritten:
    """Changes the running statistics in training, without saying so. What cuDNN reserves for its own backward, the
    fourth result, is not recorded: `library_batch_norm_backward` does without."""
    given = by_name(function, args, keywords)
    statistics = given["running_mean"]
    if not given["training"] or statistics is None:
        return function, args, keywords, None
    form = aten._native_batch_norm_legit_functional.default
    given.setdefault("momentum", given.get("exponential_average_factor"))
    given.setdefault("eps", given.get("epsilon"))
    order = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    changed = (Place(3, "running_mean"), Place(4, "running_var"))
    return form, tuple([given[name] for name in order]), {}, Signature(changed, None, False, form)


@rewrites(aten.cudnn_batch_norm_backward.default, aten.miopen_batch_norm_backward.default)
def library_batch_norm_backward(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Rewritten:
    """The same gradients by ATen's own operator, which needs nothing that the forward reserved."""
    given = by_name(function, args, keywords)
    order = ("grad_output", "input", "weight", "running_mean", "running_var", "save_mean", "save_var")
    form = aten.native_batch_norm_backward.default
    return form, (*[given[name] for name in order], True, given["epsilon"], [True, True, True]), {}, None


class InGradMode:
    """An operator whose kernel keeps things for its backward only where gradients are on; in graphs they are off."""

    def __init__(self, function: OpOverload) -> None:
        self.function = function
        self.__name__ = f"{operator_name(function)}_in_grad_mode"
        self.__qualname__, self.__module__ = self.__name__, __name__

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        with AutoDispatchBelowAutograd(), torch.enable_grad():
            return self.function(*args, **keywords)


@rewrites(aten.mkldnn_rnn_layer.default)
def recurrent_layer(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Rewritten:
    """Gives its workspace only where gradients are on, whatever its argument ``train`` is."""
    if not torch.is_grad_enabled():
        return function, args, keywords, None
    return InGradMode(function), args, keywords, Signature((), None, False)


# Operators that give parts of their argument's memory without saying so, and the view operations that they are.
HIDDEN_VIEWS = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
    aten.unsafe_chunk.default: aten.chunk.default,
}


@rewrites(*HIDDEN_VIEWS)
def hidden_view(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Rewritten:
    return HIDDEN_VIEWS[function], args, keywords, Signature((), 0, False, hidden=True)
