"""Leaving a compiled backward pass half-way: what runs next is no longer what was traced.

A hook registered or removed hooks of nodes that are still to run, or a Python backward gave no gradient where one was
expected. The node at hand is finished as eager would, and torch's own engine runs the rest, from the gradients that
wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..program.call_markers import fact, foreseen
from . import predictions, telling
from .turns import turns


@dataclass(frozen=True, slots=True)
class Stop:
    """A place in a traced pass: the node, how far it is, and what the gradients are that go with it."""

    index: int
    phase: str  # the last thing done: "tensor hooks" of one gradient, hooks "before", "applied", hooks "after"
    place: int  # of the gradient, for tensor hooks
    waiting: list[tuple[int, int]]  # node and input number, of gradients that wait
    captured: list[int]  # positions, of gradients that were asked for

    @property
    def next_call(self) -> int:
        """The first node that is still to run."""
        return self.index + (self.phase in ("applied", "after"))


class Left(BaseException):
    """The pass was finished by torch's engine, with these results."""

    def __init__(self, results: list[Any]) -> None:
        super().__init__("the rest of a backward pass was run by torch's engine")
        self.results = results
        self.learned = False  # something that a new trace would foretell


class Foreseen(BaseException):
    """Capture met a surprise before anything ran: at this stop, gradients where the pattern says so; or other hooks.

    ``ran``: a function in C++ did so, inside the graph. ``opaque``: Python code does what capture cannot take into a
    graph, which may call that code as it is.
    """

    def __init__(
        self,
        step: int = 0,
        results: tuple[Any, ...] | None = None,
        ran: bool = False,
        why: str = "hooks come or go",
        opaque: bool = False,
    ) -> None:
        what = why if results is None else "a node gives other gradients than foretold"
        super().__init__(f"{what} while the pass runs")
        self.step = step
        self.ran = ran
        self.opaque = opaque
        self.pattern = None if results is None else pattern_of(results)


def pattern_of(results: tuple[Any, ...]) -> tuple[bool, ...]:
    return tuple(result is not None for result in results)


class Departure:
    """What a running pass needs to be left: made for each call."""

    __kiln_opaque__ = True

    def __init__(self, walk: Any, stops: list[Stop], finish: Any) -> None:
        self.walk = walk
        self.stops = stops
        self.finish = finish  # torch's engine for (roots, gradients) of this pass
        self.hooks: tuple = ()  # hooks and contexts by slot, for opaque calls
        walk.watch()

    @property
    @fact
    @foreseen(lambda self: Foreseen())
    def changed(self) -> bool:
        """Whether hooks came or went since the walk, or something was changed in place that a node saved."""
        return self.walk.changed(0)

    def changed_at(self, step: int) -> bool:
        """Whether that is so for what is still to run after a stop."""
        return self.walk.changed(self.stops[step].next_call)

    @foreseen(lambda self, step, *rest: Foreseen(step))
    def leave(self, step: int, values: tuple, pending: tuple, outputs: tuple | None = None) -> None:
        """Finish the pass without the graph; ``outputs`` are what the node at hand gave, if it ran."""
        telling.handed_over(f"the rest of a pass, left at {self.walk.calls[self.stops[step].index].name}")
        with turns.torch_pass():
            raise Left(self.finish_pass(self.stops[step], values, pending, outputs))

    def finish_pass(self, stop: Stop, values: tuple, pending: tuple, outputs: tuple | None) -> list[Any]:
        """The rest of the node at hand, and then torch's engine: the results of the pass."""
        self.walk.restore(stop.next_call)
        waiting = dict(zip(stop.waiting, pending, strict=False))
        results = dict(zip(stop.captured, pending[len(waiting) :], strict=False))
        finished = self.finish_node(stop, list(values), None if outputs is None else list(outputs), results)
        for edge, value in zip(self.walk.calls[stop.index].edges, finished, strict=True):
            if edge is not None and (value is not None or edge not in waiting):
                before = waiting.get(edge)
                waiting[edge] = value if before is None else before + value
        return self.finish(waiting, results)

    def finish_node(
        self, stop: Stop, values: list[Any], outputs: list[Any] | None, results: dict[int, Any]
    ) -> list[Any]:
        """The rest of the node at hand, from the phase on that comes after the one told."""
        from . import runtime

        call = self.walk.calls[stop.index]
        tensor_hooks, retains, before, after = self.walk.hooks_now(stop.index)
        if stop.phase == "tensor hooks":
            for place, hook in tensor_hooks:
                if place > stop.place:
                    values[place] = runtime.call_tensor_hook(hook, values[place])
            for place, retain in retains:
                retain(values[place])
            if not call.needed:
                results.update((position, values[place]) for place, position in call.captures)
                return [None] * len(call.edges)
            gradients = tuple(values)
            for hook in before:
                gradients = runtime.call_pre_hook(hook, gradients)
            values = list(gradients)
        if stop.phase == "after":
            return values
        if outputs is None:
            outputs = list(self.walk.apply(stop.index, values, None, None))
        for hook in after:
            outputs = list(runtime.call_post_hook(hook, tuple(outputs), tuple(values)))
        return outputs

    @foreseen(lambda self, results, step, *rest: Foreseen(step, results))
    def surprise(self, results: tuple, step: int, values: tuple, pending: tuple) -> None:
        """Hooks or a Python backward gave gradients where none were expected, or the other way round."""
        applied = self.stops[step].phase == "applied"
        learned = self.learn(step, pattern_of(results))
        try:
            self.leave(step, values if applied else results, pending, results if applied else None)
        except Left as left:
            left.learned = learned
            raise

    def learn(self, step: int, pattern: tuple[bool, ...]) -> bool:
        """Remember what the node or the hooks at a stop gave; whether that was new."""
        stop = self.stops[step]
        call = self.walk.calls[stop.index]
        if stop.phase != "applied":
            functions = self.walk.hooks()
            slots = call.pre_hooks if stop.phase == "before" else call.post_hooks
            return predictions.learn_hooks([functions[slot] for slot in slots], pattern)
        if call.kind == "python":
            return predictions.learn(type(call.node), pattern)
        return predictions.learn_named(call.name, pattern)
