"""A walk over autograd's graph becomes a graph of operations: nodes run on fake tensors, in the engine's order.

Built-in nodes are called with fakes in place of what they saved, and their operations recorded. Python code (hooks, the
backward of a ``torch.autograd.Function``) and effects (on ``.grad``) become calls of functions of ``engine/calls``;
Kiln's capture inlines those when it compiles the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ... import operator_functions as operator
from ...config import config
from ...platform.light_dataclass import dataclass
from ...platform.torch_fake import without_torch_compiler
from ...program import accumulation
from ...program.consumed_lists import set_locals_to_steal
from ...program.shapes.fake_tensors import make_mode
from ..calls import checks, hook_calls, node_calls
from ..calls.bailout import BailoutPoint, Edge, Pattern
from ..walk import gradient_patterns
from ..walk.exclusion import exclusion
from ..walk.refusal import Refused
from . import address_use
from .gradient_ownership import mark_gradients_to_take_over
from .inlined_backward import inline
from .node_comments import add_comments
from .node_meta import Origin, origin_of, set_value
from .recorder import Recorder
from .walk_sizes import WalkSizes

if TYPE_CHECKING:
    from ..._native import NodeCall, TensorDescription, Walk

Values = list[Any]  # gradients: fake tensors, or None


@dataclass(frozen=True, slots=True)
class Traced:
    """The graph of a walk, and what a call of it needs."""

    module: torch.fx.GraphModule
    picks: list[tuple[int, str]]  # which sizes it takes, and how to read them
    guard: Callable[[Sequence[int]], bool]  # whether it holds for other sizes
    points: list[BailoutPoint]
    last_uses: list[int]  # the last call that uses an input, for each


@dataclass(frozen=True, slots=True)
class Unseen:
    """What a Python backward returned for a tensor that takes no gradient: only hooks after it see that."""

    node: torch.fx.Node


@dataclass(slots=True)
class Tracer:
    """The trace of one walk."""

    walk: Walk
    sizes: WalkSizes
    recorder: Recorder = field(default_factory=Recorder)
    fakes: dict[int, torch.Tensor] = field(default_factory=dict)  # by input slot
    buffers: dict[int, Values] = field(default_factory=dict)  # gradients that wait for a call, by its index
    results: dict[int, Any] = field(default_factory=dict)  # captured gradients by position
    points: list[BailoutPoint] = field(default_factory=list)
    calls: list[NodeCall] = field(default_factory=list)
    tensors: list[TensorDescription] = field(default_factory=list)

    def run(self, outputs: int) -> Traced:
        """Trace it all; ``outputs`` gradients are asked for."""
        self.calls = self.walk.calls
        self.tensors = self.walk.tensors
        mode = make_mode(shape_env=self.sizes.environment)
        with exclusion.tracing(), without_torch_compiler(), torch.no_grad(), mode, self.recorder:
            for place, number in enumerate(self.sizes.symbols()):
                self.recorder.numbers.add_input(number, self.recorder.item("sizes", place, number))
            for call in self.calls:
                self.recorder.origin = Origin(call.index, f"{call.name} (NodeCall {call.index})")
                self.trace_call(call)
            self.recorder.origin = dataclasses.replace(self.recorder.origin, label="")
            graph = self.recorder.finish([self.results.get(position) for position in range(outputs)])
        mark_gradients_to_take_over(graph, self.walk)
        add_comments(graph)
        module = torch.fx.GraphModule(torch.nn.Module(), graph, "CompiledAutograd")
        set_locals_to_steal(module, ["inputs"])
        return Traced(module, self.sizes.picks, self.sizes.guard(), self.points, self.last_uses())

    def last_uses(self) -> list[int]:
        """The last call whose operations read an input, for each; -1 where none does, beyond all if it is a result."""
        last = [-1] * len(self.tensors)
        for (name, slot), node in self.recorder.items.items():
            if name == "inputs":
                origins = [origin_of(user) for user in node.users]
                last[slot] = max((len(self.calls) if one is None else one.call for one in origins), default=-1)
        return last

    def trace_call(self, call: NodeCall) -> None:
        """One call: hooks on its gradients, gradients that were asked for, hooks before it, itself, hooks after it."""
        values = self.buffers.pop(call.index, None) or [None] * call.input_count
        if call.needed:  # a gradient that was asked for is captured before hooks see it if the pass goes on
            self.capture(call, values)
        for place, slots in grouped(call.tensor_hooks):
            for slot in slots:
                values[place] = self.call_user(hook_calls.call_tensor_hook, slot, values[place])
            self.check_hooks(call, "tensor hooks", values, place)
        for place, slot in call.retains:
            # A copy, as captured code retains it after later hooks may have changed it.
            self.retain(slot, None if values[place] is None else values[place].clone())
        if not call.needed:
            self.capture(call, values)
            return
        if call.pre_hooks:
            values = self.call_user_tuple(call, "before", values)
        outputs = self.apply(call, values)
        if call.post_hooks:
            outputs = self.call_user_tuple(call, "after", outputs, values)
        self.hand_on(call, outputs)

    def capture(self, call: NodeCall, values: Values) -> None:
        for place, position in call.captures:
            self.results[position] = values[place]

    def hand_on(self, call: NodeCall, outputs: Sequence[Any]) -> None:
        for edge, value in zip(call.edges, outputs, strict=True):
            if edge is None:
                continue
            index, place = edge
            waiting = self.buffers.setdefault(index, [None] * self.calls[index].input_count)
            if value is not None:
                waiting[place] = value if waiting[place] is None else waiting[place] + value

    def apply(self, call: NodeCall, values: Values) -> Values:
        """The results of the node itself."""
        if call.kind == "python" and address_use.adds_to_buffers(call.node):
            raise Refused(f"{call.name} may add to gradients that wait in torch's engine")
        return list(getattr(self, f"apply_{call.kind}")(call, values))

    def apply_root(self, call: NodeCall, values: Values) -> Values:
        return self.saved_fakes(call)

    def saved_fakes(self, call: NodeCall) -> Values:
        return [None if slot is None else self.fake(slot) for slot in call.saved]

    def apply_builtin(self, call: NodeCall, values: Values) -> Sequence[Any]:
        saved = self.saved_fakes(call)
        if call.name in VALUE_DEPENDENT and any(fake is not None and fake.is_complex() for fake in saved):
            raise Refused(f"{call.name} looks at complex values, to refuse a loss that is not well defined")
        return self.walk.apply(call.index, values, saved, self.sizes.values if self.sizes.groups else None)

    def apply_custom(self, call: NodeCall, values: Values) -> Sequence[Any]:
        """A node in C++; it is called without being traced if what it keeps cannot be replaced."""
        if call.traceable:
            return self.apply_builtin(call, values)
        if gradient_patterns.varies(call.name):
            raise Refused(f"{call.name} gives now these gradients and now those")
        pattern = gradient_patterns.predict_named(call.name, len(call.edges))
        fakes = [
            self.edge_fake(edge) if edge is not None and there else None
            for edge, there in zip(call.edges, pattern, strict=True)
        ]
        return self.call_node(call, values, fakes)

    def call_node(self, call: NodeCall, values: Values, fakes: Values) -> Sequence[Any]:
        """A node that is not traced: ``fakes`` are its results."""
        specs = self.specs(fakes)
        wanted = tuple(edge is not None for edge in call.edges)
        function = node_calls.call_node if self.walk.has_saved_tensor_hooks else node_calls.call_function
        results = self.emit(
            function, (self.called_object(call), specs, wanted, *self.bailout_point(call, "applied", values))
        )
        for place, fake in enumerate(fakes):
            if fake is not None:
                self.recorder.bind(fake, self.emit(operator.getitem, (results, place), fake))
        return fakes

    def apply_kiln(self, call: NodeCall, values: Values) -> Sequence[Any]:
        return inline(self, call, values)

    def apply_accumulate(self, call: NodeCall, values: Values) -> Values:
        if call.variable is None:
            raise AssertionError("an accumulation without a leaf")
        variable = self.recorder.nodes[id(self.fake(call.variable))]
        self.emit(accumulation.accumulate_grad_, (variable, self.node(values[0]), False))
        if call.accumulate_hooks:
            self.emit(
                hook_calls.call_accumulate_hooks, (variable, *[self.hook(slot) for slot in call.accumulate_hooks])
            )
            self.check_hooks_after(call, values, ())
        return []

    def apply_python(self, call: NodeCall, values: Values) -> Values:
        """A backward written in Python: a gradient for each edge, of the shape that the next node takes."""
        results = self.emit(node_calls.call_backward, (self.called_object(call), *self.nodes(values)))
        pattern = self.pattern_of_backward(call)
        self.emit(checks.check_pattern, (results, pattern, *self.bailout_point(call, "applied", values)))
        given: Values = []
        for place, edge in enumerate(call.edges):
            if pattern[place] and edge is not None:
                given.append(self.validate(call, results, place, edge))
            elif edge is None and call.post_hooks:
                given.append(Unseen(self.emit(operator.getitem, (results, place))))
            else:
                given.append(None)
        return given

    def pattern_of_backward(self, call: NodeCall) -> Pattern:
        """The predicted pattern of a backward written in Python."""
        predicted = gradient_patterns.predict(type(call.node), len(call.edges))
        return tuple(None if edge is None else there for edge, there in zip(call.edges, predicted, strict=True))

    def validate(self, call: NodeCall, results: torch.fx.Node, place: int, edge: Edge) -> torch.Tensor:
        """A gradient that Python returned, as the node at the end of the edge takes it."""
        fake = self.edge_fake(edge)
        given = self.emit(operator.getitem, (results, place))
        arguments = (given, *self.spec(fake), call.name, place)
        self.recorder.bind(fake, self.emit(node_calls.validated, arguments, fake))
        return fake

    def edge_fake(self, edge: Edge) -> torch.Tensor:
        """A gradient as the node at the end of the edge takes it."""
        index, number = edge
        sizes, dtype, device, cast = self.calls[index].metadata[number]
        if dtype is None:
            raise Refused(f"{self.calls[index].name} does not tell what gradients it takes")
        shape = self.sizes_at(sizes)
        fake: torch.Tensor = torch.ops.aten.empty.memory_format(shape, dtype=cast or dtype, device=device)
        self.forget(fake)
        return fake

    def spec(self, fake: torch.Tensor) -> tuple[Any, ...]:
        """A `Spec` as an argument of a node of the graph."""
        shape = self.recorder.nodes_of(tuple(fake.shape))
        return shape, self.recorder.nodes_of(tuple(fake.stride())), fake.dtype, fake.device

    def specs(self, fakes: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        return tuple(None if fake is None else self.spec(fake) for fake in fakes)

    def call_user(self, function: Callable[..., Any], slot: int, value: Any) -> Any:
        """A hook on one gradient: its result has the spec of its argument."""
        node = self.emit(function, (self.hook(slot), self.node(value)))
        return None if value is None else self.like(value, node)

    def call_user_tuple(self, call: NodeCall, phase: str, values: Values, *more: Values) -> Values:
        """The hooks before or after a node, on all its gradients at once."""
        function, slots = self.tuple_hooks(call, phase)
        given = self.call_in_turn(function, slots, self.nodes(values), *[self.nodes(values) for values in more])
        pattern = self.pattern_left(call, phase, values, *more)
        self.emit(checks.check_pattern, (given, pattern, *self.bailout_point(call, phase, ())))
        return [
            self.like(value, self.emit(operator.getitem, (given, place))) if pattern[place] else None
            for place, value in enumerate(values)
        ]

    def call_in_turn(self, function: Callable[..., Any], slots: Sequence[int], given: Any, *more: Any) -> Any:
        """Hooks on several gradients, each called with the result of the one before."""
        for slot in slots:
            given = self.emit(function, (self.hook(slot), given, *more))
        return given

    def call_hooks(
        self, function: Callable[..., Any], slots: Sequence[int], values: Sequence[Any], *more: Any
    ) -> Sequence[Any]:
        """Hooks on several gradients that return gradients exactly where they were given some."""
        given = self.call_in_turn(function, slots, self.nodes(values), *more)
        return [
            None if value is None else self.like(value, self.emit(operator.getitem, (given, place)))
            for place, value in enumerate(values)
        ]

    def tuple_hooks(self, call: NodeCall, phase: str) -> tuple[Callable[..., Any], Sequence[int]]:
        """The hooks before or after a node, and the function that calls one."""
        return TUPLE_HOOKS[phase], call.pre_hooks if phase == "before" else call.post_hooks

    def pattern_left(self, call: NodeCall, phase: str, values: Values, *more: Values) -> Pattern:
        """The predicted pattern of gradients after these hooks."""
        functions, there = self.walk.hooks(), tuple(value is not None for value in values)
        outside = tuple(value is not None for value in more[0]) if more else None
        _, slots = self.tuple_hooks(call, phase)
        left = gradient_patterns.predict_hooks([functions[slot] for slot in slots], there, outside)
        return tuple(None if isinstance(v, Unseen) else kept for v, kept in zip(values, left, strict=True))

    def like(self, value: torch.Tensor, node: torch.fx.Node) -> torch.Tensor:
        """The result of a node: a new gradient with the spec of another."""
        fake = self.empty_fake(value.shape, value.stride(), value.dtype, value.device)
        set_value(node, fake)
        self.recorder.bind(fake, node)
        return fake

    def empty_fake(
        self, shape: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A fake that no node of the graph makes."""
        fake: torch.Tensor = torch.ops.aten.empty_strided.default(shape, strides, dtype=dtype, device=device)
        self.forget(fake)
        return fake

    def forget(self, fake: torch.Tensor) -> None:
        """Remove the operation that made this fake from the graph."""
        self.recorder.graph.erase_node(self.recorder.nodes.pop(id(fake)))

    def check_hooks(self, call: NodeCall, phase: str, values: Sequence[Any], place: int = 0) -> None:
        """After user code: the pass may bail out here."""
        self.emit(checks.check_hooks, self.bailout_point(call, phase, values, place))

    def check_hooks_after(self, call: NodeCall, values: Sequence[Any], outputs: Sequence[Any]) -> None:
        """The same after user code inside a node, which returned these gradients."""
        self.emit(checks.check_hooks_after, (self.nodes(outputs), *self.bailout_point(call, "applied", values)))

    def retain(self, slot: int, value: torch.Tensor | None) -> None:
        """Implement `Tensor.retain_grad`."""
        self.emit(hook_calls.retain_grad, (self.hook(slot), self.node(value)))

    def bailout_point(
        self, call: NodeCall, phase: str, values: Sequence[Any], place: int = 0
    ) -> tuple[torch.fx.Node, int, tuple[Any, ...], tuple[Any, ...]]:
        """The bailout, the number of a new point, the gradients at hand and those pending at other nodes."""
        waiting: list[Edge] = []
        for index, gradients in sorted(self.buffers.items()):
            there = [(index, number) for number, gradient in enumerate(gradients) if gradient is not None]
            waiting += there or [(index, 0)]  # a node that is reached runs, with or without gradient
        captured = sorted(position for position, value in self.results.items() if value is not None)
        self.points.append(BailoutPoint(call.index, phase, place, waiting, captured))
        pending = [self.buffers[index][number] for index, number in waiting]
        pending += [self.results[position] for position in captured]
        return self.hook(0), len(self.points) - 1, self.nodes(values), self.nodes(pending)

    def emit(self, function: Callable[..., Any], args: tuple[Any, ...], value: Any = None) -> torch.fx.Node:
        return self.recorder.emit(function, args, {}, value)

    def hook(self, slot: int) -> torch.fx.Node:
        return self.recorder.item("hooks", slot, None)

    def called_object(self, call: NodeCall) -> torch.fx.Node:
        """The context or function of a node that is not traced."""
        if call.object is None:
            raise AssertionError(f"{call.name} has no function to call")
        return self.hook(call.object)

    def node(self, value: Any) -> Any:
        if isinstance(value, Unseen):
            return value.node
        return None if value is None else self.recorder.nodes_of(value)

    def nodes(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.node(value) for value in values)

    def fake(self, slot: int) -> torch.Tensor:
        """The fake of an input."""
        fake = self.fakes.get(slot)
        if fake is None:
            fake = self.fakes[slot] = self.new_fake(self.tensors[slot])
            described = self.tensors[slot]
            if described.constant is not None:
                place = self.sizes.number_place(described.position)
                node = None if place is None else self.recorder.item("sizes", place, described.constant)
                self.recorder.plain_numbers[id(fake)] = (described.constant, node)
            else:
                self.recorder.bind(fake, self.recorder.item("inputs", slot, fake))
        return fake

    def new_fake(self, described: TensorDescription) -> torch.Tensor:
        shape = self.sizes_at(described.sizes)
        strides = self.strides_at(shape, described.strides)
        fake = self.empty_fake(shape, strides, described.dtype, described.device)
        if described.requires_grad:  # torch's formulas leave out what needs no gradient
            fake.requires_grad_()
        return fake

    def sizes_at(self, positions: Sequence[int]) -> list[Any]:
        return [self.sizes.values[position] for position in positions]

    def strides_at(self, shape: list[Any], description: tuple[str, Any]) -> list[Any]:
        """Strides that the walk read, or that follow from the order of dimensions, the innermost last."""
        kind, details = description
        if kind == "given":
            return self.sizes_at(details)
        strides: list[Any] = [0] * len(shape)
        step: Any = 1
        for dimension in reversed(details if kind == "permuted" else range(len(shape))):
            strides[dimension] = step
            if not isinstance(shape[dimension], int) or shape[dimension] > 1:
                step = step * shape[dimension]
        return strides


# Nodes that, given complex numbers, raise for some values, and do not check that on fake tensors.
VALUE_DEPENDENT = {"LinalgEigBackward0", "LinalgEighBackward0", "LinalgSvdBackward0"}

TUPLE_HOOKS: dict[str, Callable[..., Any]] = {"before": hook_calls.call_pre_hook, "after": hook_calls.call_post_hook}


def grouped(hooks: Sequence[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """Hooks by the gradient that they are on, in order."""
    groups: list[tuple[int, list[int]]] = []
    for place, slot in hooks:
        if not groups or groups[-1][0] != place:
            groups.append((place, []))
        groups[-1][1].append(slot)
    return groups


def number_positions(tensors: Sequence[TensorDescription]) -> dict[int, type]:
    """Which entries of a walk's sizes are the bits of numbers, and of what type."""
    return {one.position: type(one.constant) for one in tensors if one.position is not None}


def trace(walk: Walk, dynamic: frozenset[int], outputs: int, kind: type[Tracer]) -> Traced:
    """The graph of a walk, with symbols for the sizes at these positions. Raises `Refused`."""
    try:
        return kind(walk, WalkSizes(walk.sizes, dynamic, number_positions(walk.tensors))).run(outputs)
    except Refused:
        raise
    except Exception as error:
        is_torch = isinstance(error, (RuntimeError, NotImplementedError))  # an operation that has no fake result
        if config.raise_internal_errors and not is_torch:
            raise
        reason = str(error).strip().split("\n")[0]
        raise Refused(f"an error while tracing, {type(error).__name__}: {reason}") from error
