"""A walk over autograd's graph becomes a graph of operations: nodes run on fake tensors, as the engine would run them.

Built-in nodes are called with stand-ins for what they saved, and their operations recorded. What is Python (hooks, the
backward of a ``torch.autograd.Function``) and what changes the world (``.grad``) becomes a call of a function of
``runtime.py``; Kiln's capture looks into those when it compiles the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from ..config import config
from ..program import accumulation
from ..program.shapes.fake_tensors import make_mode, without_torch_compiler
from . import addresses, opaque, predictions, runtime
from .departure import Stop
from .kiln_nodes import inline
from .recorder import Recorder
from .refusal import Refused
from .sizes import Sizes
from .stealing import set_locals_to_steal
from .text import comment
from .turns import turns

Values = list[Any]  # gradients: fake tensors, or None


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph for a walk, and what calling it takes."""

    module: torch.fx.GraphModule
    picks: list[tuple[int, str]]  # which sizes it takes, and how to read them
    check: Callable[[Sequence[int]], bool]  # whether other sizes are fine
    stops: list[Stop]  # where the pass may be left half-way
    last_uses: list[int]  # the last call that uses an input, for each


@dataclass(frozen=True, slots=True)
class Unseen:
    """What a Python backward gave for a tensor that takes no gradient: only hooks after it see that."""

    node: torch.fx.Node


@dataclass(slots=True)
class Tracer:
    """The trace of one walk."""

    walk: Any
    sizes: Sizes
    recorder: Recorder = field(default_factory=Recorder)
    fakes: dict[int, torch.Tensor] = field(default_factory=dict)  # by input slot
    buffers: dict[int, Values] = field(default_factory=dict)  # gradients that wait for a call, by its index
    results: dict[int, Any] = field(default_factory=dict)  # captured gradients by position
    stops: list[Stop] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)

    def run(self, outputs: int) -> Traced:
        """Trace it all; ``outputs`` gradients are asked for."""
        self.calls = self.walk.calls
        self.tensors = self.walk.tensors
        mode = make_mode(shape_env=self.sizes.environment)
        with turns.tracing(), without_torch_compiler(), torch.no_grad(), mode, self.recorder:
            for place, number in enumerate(self.sizes.symbols()):
                self.recorder.numbers.add_input(number, self.recorder.item("sizes", place, number))
            for call in self.calls:
                self.recorder.label = f"{call.name} (NodeCall {call.index})"
                self.recorder.call = call.index
                self.step(call)
            self.recorder.label = ""
            graph = self.recorder.finish([self.results.get(position) for position in range(outputs)])
        set_stealing(graph, self.walk)
        comment(graph)
        module = torch.fx.GraphModule(torch.nn.Module(), graph, "CompiledAutograd")
        set_locals_to_steal(module, ["inputs"])
        return Traced(module, self.sizes.picks, self.sizes.check(), self.stops, self.last_uses())

    def last_uses(self) -> list[int]:
        """The last call whose operations read an input, for each; -1 where none does, beyond all if it is a result."""
        places = {slot: node for (name, slot), node in self.recorder.items.items() if name == "inputs"}
        return [
            max((user.meta.get("call", len(self.calls)) for user in places[slot].users), default=-1)
            if slot in places
            else -1
            for slot in range(len(self.tensors))
        ]

    def step(self, call: Any) -> None:
        """One node: hooks on its gradients, gradients that were asked for, hooks before it, itself, hooks after it."""
        values = self.buffers.pop(call.index, None) or [None] * call.input_count
        if call.needed:  # a gradient asked for where the pass goes on is taken before hooks have seen it
            self.capture(call, values)
        for place, slots in grouped(call.tensor_hooks):
            for slot in slots:
                values[place] = self.call_user(runtime.call_tensor_hook, slot, values[place])
            self.stay(call, "tensor hooks", values, place)
        for place, slot in call.retains:
            # A copy: it is retained as it is now, whatever hooks do to it before captured code comes to retain it.
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

    def capture(self, call: Any, values: Values) -> None:
        for place, position in call.captures:
            self.results[position] = values[place]

    def hand_on(self, call: Any, outputs: Sequence[Any]) -> None:
        for edge, value in zip(call.edges, outputs, strict=True):
            if edge is None:
                continue
            index, place = edge
            waiting = self.buffers.setdefault(index, [None] * self.calls[index].input_count)
            if value is not None:
                waiting[place] = value if waiting[place] is None else waiting[place] + value

    def apply(self, call: Any, values: Values) -> Values:
        """What the node itself gives."""
        return list(getattr(self, KINDS[call.kind])(call, values))

    def apply_root(self, call: Any, values: Values) -> Values:
        return [self.fake(slot) for slot in call.saved]

    def apply_builtin(self, call: Any, values: Values) -> Sequence[Any]:
        saved = [None if slot is None else self.fake(slot) for slot in call.saved]
        if call.name in LOOKING and any(fake is not None and fake.is_complex() for fake in saved):
            raise Refused(f"{call.name} looks at complex values, to refuse a loss that is not well defined")
        return self.walk.apply(call.index, values, saved, self.sizes.values if self.sizes.groups else None)

    def apply_custom(self, call: Any, values: Values) -> Sequence[Any]:
        """A node that is called as it is, where what it keeps cannot be replaced."""
        if call.traceable:
            return self.apply_builtin(call, values)
        if predictions.varies(call.name):
            raise Refused(f"{call.name} gives now these gradients and now those")
        pattern = predictions.predict_named(call.name, len(call.edges))
        fakes = [
            self.edge_fake(edge) if edge is not None and there else None
            for edge, there in zip(call.edges, pattern, strict=True)
        ]
        return self.call_as_it_is(call, values, fakes)

    def call_as_it_is(self, call: Any, values: Values, fakes: Values) -> Sequence[Any]:
        """A node whose insides are unknown: ``fakes`` are what it gives."""
        told = tuple(None if fake is None else self.told(fake) for fake in fakes)
        wanted = tuple(edge is not None for edge in call.edges)
        function = runtime.call_node if self.walk.has_saved_tensor_hooks else runtime.call_function
        results = self.emit(function, (self.hook(call.object), told, wanted, *self.stop(call, "applied", values)))
        for place, fake in enumerate(fakes):
            if fake is not None:
                self.recorder.bind(fake, self.emit(operator.getitem, (results, place), fake))
        return fakes

    def apply_kiln(self, call: Any, values: Values) -> Sequence[Any]:
        return inline(self, call, values)

    def apply_accumulate(self, call: Any, values: Values) -> Values:
        variable = self.recorder.nodes[id(self.fake(call.variable))]
        self.emit(accumulation.accumulate_grad_, (variable, self.node(values[0]), False))
        if call.accumulate_hooks:
            self.emit(runtime.call_accumulate_hooks, (variable, *[self.hook(slot) for slot in call.accumulate_hooks]))
            self.stay_after(call, values, ())
        return []

    def apply_python(self, call: Any, values: Values) -> Values:
        """A backward written in Python: one gradient an edge, of the shape that the next node takes."""
        results = self.emit(runtime.call_backward, (self.hook(call.object), *self.nodes(values)))
        pattern = self.pattern_of_backward(call)
        self.emit(runtime.checked, (results, pattern, *self.stop(call, "applied", values)))
        given: Values = []
        for place, edge in enumerate(call.edges):
            if pattern[place]:
                given.append(self.expect(call, results, place, edge))
            elif edge is None and call.post_hooks:
                given.append(Unseen(self.emit(operator.getitem, (results, place))))
            else:
                given.append(None)
        return given

    def pattern_of_backward(self, call: Any) -> tuple[bool | None, ...]:
        """Where a backward written in Python gives gradients; None: nobody takes it."""
        predicted = predictions.predict(type(call.node), len(call.edges))
        return tuple(None if edge is None else there for edge, there in zip(call.edges, predicted, strict=True))

    def expect(self, call: Any, results: torch.fx.Node, place: int, edge: tuple[int, int]) -> torch.Tensor:
        """A gradient that Python gives, as the node at the end of the edge takes it."""
        fake = self.edge_fake(edge)
        given = self.emit(operator.getitem, (results, place))
        arguments = (given, *self.told(fake), call.name, place)
        self.recorder.bind(fake, self.emit(runtime.expected, arguments, fake))
        return fake

    def edge_fake(self, edge: tuple[int, int]) -> torch.Tensor:
        """A gradient as the node at the end of the edge takes it."""
        index, number = edge
        sizes, dtype, device, cast = self.calls[index].metadata[number]
        if dtype is None:
            raise Refused(f"{self.calls[index].name} does not tell what gradients it takes")
        fake = torch.ops.aten.empty.memory_format(self.sizes_at(sizes), dtype=cast or dtype, device=device)
        self.forget(fake)
        return fake

    def told(self, fake: torch.Tensor) -> tuple:
        """What it looks like, for functions that run with the graph."""
        shape = self.recorder.nodes_of(tuple(fake.shape))
        return shape, self.recorder.nodes_of(tuple(fake.stride())), fake.dtype, fake.device

    def call_user(self, function: Callable[..., Any], slot: int, value: Any) -> Any:
        """A hook on one gradient: what it gives looks like what it was given."""
        node = self.emit(function, (self.hook(slot), self.node(value)))
        return None if value is None else self.like(value, node)

    def call_user_tuple(self, call: Any, phase: str, values: Values, *more: Values) -> Values:
        """The hooks before or after a node, on all its gradients at once."""
        function, slots = self.tuple_hooks(call, phase)
        given = self.call_in_turn(function, slots, self.nodes(values), *[self.nodes(values) for values in more])
        pattern = self.pattern_left(call, phase, values, *more)
        self.emit(runtime.checked, (given, pattern, *self.stop(call, phase, ())))
        return [
            self.like(value, self.emit(operator.getitem, (given, place))) if pattern[place] else None
            for place, value in enumerate(values)
        ]

    def call_in_turn(self, function: Callable[..., Any], slots: Sequence[int], given: Any, *more: Any) -> Any:
        """Hooks on several gradients, each given what the one before it gave."""
        for slot in slots:
            given = self.emit(function, (self.hook(slot), given, *more))
        return given

    def call_hooks(
        self, function: Callable[..., Any], slots: Sequence[int], values: Sequence[Any], *more: Any
    ) -> Sequence[Any]:
        """Hooks on several gradients, where what they give is there and not there where what they were given was."""
        given = self.call_in_turn(function, slots, self.nodes(values), *more)
        return [
            None if value is None else self.like(value, self.emit(operator.getitem, (given, place)))
            for place, value in enumerate(values)
        ]

    def tuple_hooks(self, call: Any, phase: str) -> tuple[Callable[..., Any], Sequence[int]]:
        """The hooks before or after a node, and the function that calls one."""
        return TUPLE_HOOKS[phase], call.pre_hooks if phase == "before" else call.post_hooks

    def pattern_left(self, call: Any, phase: str, values: Values, *more: Values) -> tuple[bool | None, ...]:
        """Where these hooks are expected to leave gradients; None: nobody takes it."""
        functions, there = self.walk.hooks(), tuple(value is not None for value in values)
        outside = tuple(value is not None for value in more[0]) if more else None
        _, slots = self.tuple_hooks(call, phase)
        left = predictions.predict_hooks([functions[slot] for slot in slots], there, outside)
        return tuple(None if isinstance(v, Unseen) else kept for v, kept in zip(values, left, strict=True))

    def like(self, value: torch.Tensor, node: torch.fx.Node) -> torch.Tensor:
        """A new gradient that looks like another, held by the node."""
        fake = torch.ops.aten.empty_strided.default(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        self.forget(fake)
        node.meta["val"] = fake
        self.recorder.bind(fake, node)
        return fake

    def forget(self, fake: torch.Tensor) -> None:
        """The operation that made this stand-in is no part of the graph."""
        self.recorder.graph.erase_node(self.recorder.nodes.pop(id(fake)))

    def stay(self, call: Any, phase: str, values: Sequence[Any], place: int = 0) -> None:
        """After user code: here the rest of the pass may turn out to be torch's."""
        self.emit(runtime.stay, self.stop(call, phase, values, place))

    def stay_after(self, call: Any, values: Sequence[Any], outputs: Sequence[Any]) -> None:
        """The same after user code inside a node, which gave these gradients."""
        self.emit(runtime.stay_after, (self.nodes(outputs), *self.stop(call, "applied", values)))

    def retain(self, slot: int, value: torch.Tensor | None) -> None:
        """Set a gradient that somebody asked to be retained."""
        self.emit(runtime.retain_grad, (self.hook(slot), self.node(value)))

    def stop(self, call: Any, phase: str, values: Sequence[Any], place: int = 0) -> tuple:
        """The departure, the number of the stop, the gradients at hand and those that wait for other nodes."""
        waiting: list[tuple[int, int]] = []
        for index, gradients in sorted(self.buffers.items()):
            there = [(index, number) for number, gradient in enumerate(gradients) if gradient is not None]
            waiting += there or [(index, 0)]  # a node that is reached runs, with or without gradient
        captured = sorted(position for position, value in self.results.items() if value is not None)
        self.stops.append(Stop(call.index, phase, place, waiting, captured))
        pending = [self.buffers[index][number] for index, number in waiting]
        pending += [self.results[position] for position in captured]
        return self.hook(0), len(self.stops) - 1, self.nodes(values), self.nodes(pending)

    def emit(self, function: Callable[..., Any], args: tuple, value: Any = None) -> torch.fx.Node:
        return self.recorder.emit(function, args, {}, value)

    def hook(self, slot: int) -> torch.fx.Node:
        return self.recorder.item("hooks", slot, None)

    def node(self, value: Any) -> Any:
        if isinstance(value, Unseen):
            return value.node
        return None if value is None else self.recorder.nodes_of(value)

    def nodes(self, values: Sequence[Any]) -> tuple:
        return tuple(self.node(value) for value in values)

    def fake(self, slot: int) -> torch.Tensor:
        """The stand-in for an input."""
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

    def new_fake(self, described: Any) -> torch.Tensor:
        shape = self.sizes_at(described.sizes)
        strides = self.strides_at(shape, described.strides)
        fake = torch.ops.aten.empty_strided.default(shape, strides, dtype=described.dtype, device=described.device)
        self.forget(fake)
        if described.requires_grad:  # formulas of torch's ask, and leave out what needs none
            fake.requires_grad_()
        return fake

    def sizes_at(self, positions: Sequence[int]) -> list[Any]:
        return [self.sizes.values[position] for position in positions]

    def strides_at(self, shape: list[Any], description: tuple[str, Any]) -> list[Any]:
        """Strides that the walk read, or that follow from an order of the dimensions, the innermost last."""
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


KINDS = {  # the method for each kind of call
    "root": "apply_root",
    "builtin": "apply_builtin",
    "custom": "apply_custom",
    "accumulate": "apply_accumulate",
    "python": "apply_python",
    "kiln": "apply_kiln",
}

# Nodes that, given complex numbers, raise for some values; on fake tensors they do not look.
LOOKING = {"LinalgEigBackward0", "LinalgEighBackward0", "LinalgSvdBackward0"}

TUPLE_HOOKS = {"before": runtime.call_pre_hook, "after": runtime.call_post_hook}


def grouped(hooks: Sequence[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """Hooks by the gradient that they are on, in order."""
    groups: list[tuple[int, list[int]]] = []
    for place, slot in hooks:
        if not groups or groups[-1][0] != place:
            groups.append((place, []))
        groups[-1][1].append(slot)
    return groups


def set_stealing(graph: torch.fx.Graph, walk: Any) -> None:
    """Say of each accumulation whether the gradient's memory is its own from then on.

    It is not where the memory is an input's or was seen by Python, which may keep it, or where something uses it later.
    Hooks after the accumulation see it as well, and for those it is the same memory as ``.grad``: so it is in eager.
    """
    calls = walk.calls
    accumulations = {node.meta["call"] for node in graph.nodes if node.target in GRADIENT_PLACES}
    watched: set[int] = set()  # calls of leaves with hooks after the accumulation
    foreign: set[int] = set()
    of_inputs: set[int] = set()
    last_use: dict[int, torch.fx.Node] = {}
    for node in graph.nodes:
        if is_after(node) and node.meta["call"] in accumulations:
            watched.add(node.meta["call"])
            continue
        memories = {memory for one in used_by(node) if (memory := memory_of(one)) is not None}
        if node.target not in STAYING:
            last_use.update(dict.fromkeys(memories, node))
        if is_foreign(node):
            own = memory_of(node)
            foreign |= memories | ({own} if own is not None else set())
        if node.target is operator.getitem and node.args[0].op == "placeholder":
            of_inputs.add(memory_of(node))
    for node in graph.nodes:
        place = GRADIENT_PLACES.get(node.target, 0)
        if place and isinstance(node.args[place], torch.fx.Node):
            memory = memory_of(node.args[place])
            is_last = memory is not None and last_use[memory] is node
            number = node.meta["call"]
            if is_last and memory in foreign - of_inputs and not calls[number].has_grad:
                if number in watched:
                    raise Refused("hooks after the accumulation of a gradient that Python code may have kept")
                if addresses.are_noted(walk.hooks()):
                    raise Refused("Python code notes addresses, and the gradient of a leaf may be at one of them")
            node.update_arg(place + 1, is_last and memory not in foreign)


def used_by(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """The nodes whose values a call does something with: gradients that wait meanwhile are not among them."""
    if node.target not in opaque.ALL:
        return node.all_input_nodes
    used: list[torch.fx.Node] = []
    torch.fx.node.map_arg([*node.args[: opaque.PENDING], *node.args[opaque.PENDING + 1 :]], used.append)
    return used


def is_after(node: torch.fx.Node) -> bool:
    """Whether it calls hooks that are on a node, after it."""
    if node.target is opaque.hooks:
        return "call_post_hook" in node.args
    return node.target is runtime.call_post_hook


def is_foreign(node: torch.fx.Node) -> bool:
    """Whether others may keep what goes into the call or comes out of it."""
    if node.op != "call_function" or node.target in KEEPS_NOTHING:
        return False
    if node.target is operator.getitem:
        owner: Any = node.args[0]
        return not isinstance(owner.target, torch._ops.OpOverload) or has_twin(owner, node)
    return not isinstance(node.target, torch._ops.OpOverload)


def has_twin(owner: torch.fx.Node, item: torch.fx.Node) -> bool:
    """Whether an operator gives another result that looks the same: those of recurrent layers give one tensor twice."""
    value, results = item.meta["val"], owner.meta["val"]
    if not isinstance(value, torch.Tensor) or owner.target in SEPARATE:
        return False
    alike = [one for one in results if isinstance(one, torch.Tensor) and one.shape == value.shape]
    return len(alike) > 1


SEPARATE = {  # known to give memory of its own for each result
    torch.ops.aten.native_layer_norm_backward.default,
    torch.ops.aten.native_batch_norm_backward.default,
    torch.ops.aten.native_group_norm_backward.default,
}
GRADIENT_PLACES = {
    accumulation.accumulate_grad_: 1,
    opaque.accumulate: 4,
}  # accumulations: which argument is accumulated
STAYING = {runtime.stay, runtime.stay_after, runtime.checked, opaque.stay, opaque.stay_after}
KEEPS_NOTHING = {*GRADIENT_PLACES, *STAYING}


def memory_of(node: torch.fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def number_positions(tensors: Sequence[Any]) -> dict[int, type]:
    """Which entries of a walk's sizes are not sizes but the bits of numbers, and of what kind."""
    return {one.position: type(one.constant) for one in tensors if one.position is not None}


def trace(walk: Any, dynamic: frozenset[int], outputs: int, kind: type[Tracer]) -> Traced:
    """The graph of a walk, with symbols for the sizes at these positions. Raises `Refused`."""
    try:
        return kind(walk, Sizes(walk.sizes, dynamic, number_positions(walk.tensors))).run(outputs)
    except Refused:
        raise
    except Exception as error:
        is_torch = isinstance(error, (RuntimeError, NotImplementedError))  # an operation that has no fake result
        if config.raise_internal_errors and not is_torch:
            raise
        reason = str(error).strip().split("\n")[0]
        raise Refused(f"an error while tracing, {type(error).__name__}: {reason}") from error
