"""Traces in which the program's Python code is opaque: the same nodes in the same order, with opaque calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ... import operator_functions as operator
from ..calls import opaque_calls
from .tracer import Tracer, Values

if TYPE_CHECKING:
    from ..._native import NodeCall


class OpaqueTracer(Tracer):
    """Emits opaque calls (`calls/opaque_calls.py`) for hooks, Python backwards and accumulation."""

    def call_opaque(
        self, function: Callable[..., Any], examples: Sequence[Any], pending: tuple[Any, ...], *rest: Any
    ) -> Values:
        """An opaque call: gives fakes of its results, one like each example (None: no result)."""
        results = self.emit(function, (self.hook(0), self.specs(examples), pending, *rest))
        return [
            None if example is None else self.like(example, self.emit(operator.getitem, (results, place)))
            for place, example in enumerate(examples)
        ]

    def call_user(self, function: Callable[..., Any], slot: int, value: Any) -> Any:
        return self.call_opaque(opaque_calls.hook, [value], (), function.__name__, slot, self.node(value))[0]

    def call_hooks(
        self, function: Callable[..., Any], slots: Sequence[int], values: Sequence[Any], *more: Any
    ) -> Sequence[Any]:
        given = self.nodes(values)
        return self.call_opaque(opaque_calls.hooks, values, (), function.__name__, tuple(slots), None, 0, given, *more)

    def call_user_tuple(self, call: NodeCall, phase: str, values: Values, *more: Values) -> Values:
        if phase == "after" and call.kind == "python":
            return values  # the opaque backward has called them
        function, slots = self.tuple_hooks(call, phase)
        pattern = self.pattern_left(call, phase, values, *more)
        _, point, _, pending = self.bailout_point(call, phase, ())
        rest = tuple(self.nodes(values) for values in more)
        examples = [value if kept else None for value, kept in zip(values, pattern, strict=True)]
        return self.call_opaque(
            opaque_calls.hooks,
            examples,
            pending,
            function.__name__,
            tuple(slots),
            pattern,
            point,
            self.nodes(values),
            *rest,
        )

    def check_hooks(self, call: NodeCall, phase: str, values: Sequence[Any], place: int = 0) -> None:
        _, point, given, pending = self.bailout_point(call, phase, values, place)
        self.call_opaque(opaque_calls.check_hooks, (), pending, point, given)

    def check_hooks_after(self, call: NodeCall, values: Sequence[Any], outputs: Sequence[Any]) -> None:
        _, point, given, pending = self.bailout_point(call, "applied", values)
        self.call_opaque(opaque_calls.check_hooks_after, (), pending, point, given, self.nodes(outputs))

    def retain(self, slot: int, value: torch.Tensor | None) -> None:
        self.call_opaque(opaque_calls.retain_grad, (), (), slot, self.node(value))

    def apply_accumulate(self, call: NodeCall, values: Values) -> Values:
        point: int = 0
        pending: tuple[Any, ...] = ()
        if call.accumulate_hooks:
            _, point, _, pending = self.bailout_point(call, "applied", values)
        self.call_opaque(opaque_calls.accumulate, (), pending, call.index, self.node(values[0]), False, point)
        return []

    def call_node(self, call: NodeCall, values: Values, fakes: Values) -> Sequence[Any]:
        wanted = tuple(edge is not None for edge in call.edges)
        _, point, given, pending = self.bailout_point(call, "applied", values)
        return self.call_opaque(opaque_calls.node, fakes, pending, call.index, wanted, point, given)

    def apply_python(self, call: NodeCall, values: Values) -> Values:
        pattern = self.pattern_of_backward(call)
        fakes = [
            self.edge_fake(edge) if there and edge is not None else None
            for edge, there in zip(call.edges, pattern, strict=True)
        ]
        edge_specs = self.specs(fakes)
        _, point, given, pending = self.bailout_point(call, "applied", values)
        patterns: tuple[Any, ...] = (pattern,)
        points: tuple[int, ...] = (point,)
        examples = fakes
        if call.post_hooks:
            left = self.pattern_left(call, "after", fakes, values)
            after = tuple(None if there is None else now for there, now in zip(pattern, left, strict=True))
            patterns, points = (pattern, after), (point, self.bailout_point(call, "after", ())[1])
            examples = [fake if now else None for fake, now in zip(fakes, after, strict=True)]
        return self.call_opaque(
            opaque_calls.backward, examples, pending, call.index, edge_specs, patterns, points, given
        )
