"""Traces in which the program's Python code is opaque (`opaque.py`): the same nodes in the same order, other calls."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from . import opaque
from .trace import Tracer, Values


class OpaqueTracer(Tracer):
    """A trace that has opaque calls for hooks, Python backwards and accumulation."""

    def call_opaque(
        self, function: Callable[..., Any], looks: Sequence[Any], pending: tuple[Any, ...], *rest: Any
    ) -> Values:
        """An opaque call: fakes for its results, one for each of the tensors that they look like (None: no result)."""
        told = tuple(None if look is None else self.told(look) for look in looks)
        results = self.emit(function, (self.hook(0), told, pending, *rest))
        return [
            None if look is None else self.like(look, self.emit(operator.getitem, (results, place)))
            for place, look in enumerate(looks)
        ]

    def call_user(self, function: Callable[..., Any], slot: int, value: Any) -> Any:
        return self.call_opaque(opaque.hook, [value], (), function.__name__, slot, self.node(value))[0]

    def call_hooks(
        self, function: Callable[..., Any], slots: Sequence[int], values: Sequence[Any], *more: Any
    ) -> Sequence[Any]:
        given = self.nodes(values)
        return self.call_opaque(opaque.hooks, values, (), function.__name__, tuple(slots), None, 0, given, *more)

    def call_user_tuple(self, call: Any, phase: str, values: Values, *more: Values) -> Values:
        if phase == "after" and call.kind == "python":
            return values  # they were called with the backward
        function, slots = self.tuple_hooks(call, phase)
        pattern = self.pattern_left(call, phase, values, *more)
        _, step, _, pending = self.stop(call, phase, ())
        rest = tuple(self.nodes(values) for values in more)
        looks = [value if kept else None for value, kept in zip(values, pattern, strict=True)]
        return self.call_opaque(
            opaque.hooks, looks, pending, function.__name__, tuple(slots), pattern, step, self.nodes(values), *rest
        )

    def stay(self, call: Any, phase: str, values: Sequence[Any], place: int = 0) -> None:
        _, step, given, pending = self.stop(call, phase, values, place)
        self.call_opaque(opaque.stay, (), pending, step, given)

    def stay_after(self, call: Any, values: Sequence[Any], outputs: Sequence[Any]) -> None:
        _, step, given, pending = self.stop(call, "applied", values)
        self.call_opaque(opaque.stay_after, (), pending, step, given, self.nodes(outputs))

    def retain(self, slot: int, value: torch.Tensor | None) -> None:
        self.call_opaque(opaque.retain_grad, (), (), slot, self.node(value))

    def apply_accumulate(self, call: Any, values: Values) -> Values:
        step: int = 0
        pending: tuple[Any, ...] = ()
        if call.accumulate_hooks:
            _, step, _, pending = self.stop(call, "applied", values)
        self.call_opaque(opaque.accumulate, (), pending, call.index, self.node(values[0]), False, step)
        return []

    def call_as_it_is(self, call: Any, values: Values, fakes: Values) -> Sequence[Any]:
        wanted = tuple(edge is not None for edge in call.edges)
        _, step, given, pending = self.stop(call, "applied", values)
        return self.call_opaque(opaque.node, fakes, pending, call.index, wanted, step, given)

    def apply_python(self, call: Any, values: Values) -> Values:
        pattern = self.pattern_of_backward(call)
        fakes = [self.edge_fake(edge) if there else None for edge, there in zip(call.edges, pattern, strict=True)]
        expected = tuple(None if fake is None else self.told(fake) for fake in fakes)
        _, step, given, pending = self.stop(call, "applied", values)
        patterns: tuple[Any, ...] = (pattern,)
        steps: tuple[int, ...] = (step,)
        looks = fakes
        if call.post_hooks:
            left = self.pattern_left(call, "after", fakes, values)
            after = tuple(None if there is None else now for there, now in zip(pattern, left, strict=True))
            patterns, steps = (pattern, after), (step, self.stop(call, "after", ())[1])
            looks = [fake if now else None for fake, now in zip(fakes, after, strict=True)]
        return self.call_opaque(opaque.backward, looks, pending, call.index, expected, patterns, steps, given)
