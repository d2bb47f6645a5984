"""Bailing out of a compiled backward pass: the rest of it is no longer what was traced.

A hook registered or removed hooks of nodes that are still to run, or a Python backward returned no gradient where one
was predicted. The node at hand is finished as in eager, and torch's engine runs the rest, from the gradients that are
pending.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...platform.light_dataclass import dataclass
from ...program.accumulation import Gradients
from ...program.call_markers import abandons_capture, fact, opaque_object
from ...report import engine_events
from ..walk import gradient_patterns
from ..walk.exclusion import exclusion
from .abandoned import CaptureAbandoned, pattern_of
from .hook_calls import call_post_hook, call_pre_hook, call_tensor_hook

if TYPE_CHECKING:
    from ..._native import NodeCall, Walk

Pattern = tuple[bool | None, ...]  # where gradients are expected; None: no node takes it
Edge = tuple[int, int]  # the index of a call, the number of its input


@dataclass(frozen=True, slots=True)
class BailoutPoint:
    """A place in a traced pass: the call, how far it is, and which gradients are pending."""

    index: int
    phase: str  # the last thing done: "tensor hooks" of one gradient, hooks "before", "applied", hooks "after"
    place: int  # of the gradient, for tensor hooks
    waiting: list[Edge]  # of gradients that wait for calls
    captured: list[int]  # positions of gradients that were asked for

    @property
    def next_call(self) -> int:
        """The first call that is still to run."""
        return self.index + (self.phase in ("applied", "after"))


class FinishedByTorch(BaseException):
    """The pass bailed out, and torch's engine has finished it with these results."""

    def __init__(self, results: list[Any]) -> None:
        super().__init__("the rest of a backward pass was run by torch's engine")
        self.results = results
        self.learned = False  # whether a new trace would predict better


@opaque_object
class Bailout:
    """What a running pass needs to bail out: made for each call."""

    def __init__(
        self, walk: Walk, points: list[BailoutPoint], finish: Callable[[dict[Edge, Any], dict[int, Any]], list[Any]]
    ) -> None:
        self.walk = walk
        self.points = points
        self.finish = finish  # runs torch's engine from (waiting gradients, results so far)
        self.hooks: tuple[Any, ...] = ()  # hooks and contexts by slot, for opaque calls
        walk.watch()

    def called_object(self, call: NodeCall) -> Any:
        """For opaque calls: the context or function of a node that is not traced."""
        return None if call.object is None else self.hooks[call.object]

    @property
    @fact
    @abandons_capture(lambda self: CaptureAbandoned())
    def changed(self) -> bool:
        """Whether hooks came or went since the walk, or a saved tensor was changed in place."""
        return self.walk.changed(0)

    def changed_after(self, point: int) -> bool:
        """The same for the calls that are still to run after a point."""
        return self.walk.changed(self.points[point].next_call)

    @abandons_capture(lambda self, point, *rest: CaptureAbandoned(point))
    def bail_out(self, point: int, values: Gradients, pending: Gradients, outputs: Gradients | None = None) -> None:
        """Finish the pass without the graph; ``outputs`` are what the call at hand returned, if it ran."""
        engine_events.handed_over(f"the rest of a pass, left at {self.walk.calls[self.points[point].index].name}")
        with exclusion.torch_pass():
            raise FinishedByTorch(self.finish_pass(self.points[point], values, pending, outputs))

    def finish_pass(
        self, point: BailoutPoint, values: Gradients, pending: Gradients, outputs: Gradients | None
    ) -> list[Any]:
        """Run the rest of the call at hand, and then torch's engine; gives the results of the pass."""
        self.walk.restore(point.next_call)
        waiting = dict(zip(point.waiting, pending, strict=False))
        results = dict(zip(point.captured, pending[len(waiting) :], strict=False))
        finished = self.finish_call(point, list(values), None if outputs is None else list(outputs), results)
        for edge, value in zip(self.walk.calls[point.index].edges, finished, strict=True):
            if edge is not None and (value is not None or edge not in waiting):
                before = waiting.get(edge)
                waiting[edge] = value if before is None or value is None else before + value
        return self.finish(waiting, results)

    def finish_call(
        self, point: BailoutPoint, values: list[Any], outputs: list[Any] | None, results: dict[int, Any]
    ) -> list[Any]:
        """The phases of the call at hand that come after that of the point."""
        call = self.walk.calls[point.index]
        tensor_hooks, retains, before, after = self.walk.hooks_now(point.index)
        if point.phase == "tensor hooks":
            for place, hook in tensor_hooks:
                if place > point.place:
                    values[place] = call_tensor_hook(hook, values[place])
            for place, retain in retains:
                retain(values[place])
            if not call.needed:
                results.update((position, values[place]) for place, position in call.captures)
                return [None] * len(call.edges)
            gradients = tuple(values)
            for hook in before:
                gradients = call_pre_hook(hook, gradients)
            values = list(gradients)
        if point.phase == "after":
            return values
        if outputs is None:
            outputs = list(self.walk.apply(point.index, values, None, None))
        for hook in after:
            outputs = list(call_post_hook(hook, tuple(outputs), tuple(values)))
        return outputs

    @abandons_capture(lambda self, results, point, *rest: CaptureAbandoned(point, results))
    def unpredicted(self, results: Gradients, point: int, values: Gradients, pending: Gradients) -> None:
        """Hooks or a Python backward returned gradients where none were predicted, or the other way round."""
        applied = self.points[point].phase == "applied"
        learned = self.learn(point, pattern_of(results))
        try:
            self.bail_out(point, values if applied else results, pending, results if applied else None)
        except FinishedByTorch as finished:
            finished.learned = learned
            raise

    def learn(self, point: int, pattern: tuple[bool, ...]) -> bool:
        """Record what the node or the hooks at a point returned; gives whether that was new."""
        phase, call = self.points[point].phase, self.walk.calls[self.points[point].index]
        if phase != "applied":
            functions = self.walk.hooks()
            slots = call.pre_hooks if phase == "before" else call.post_hooks
            return gradient_patterns.learn_hooks([functions[slot] for slot in slots], pattern)
        if call.kind == "python":
            return gradient_patterns.learn(type(call.node), pattern)
        return gradient_patterns.record(call.name, pattern)
