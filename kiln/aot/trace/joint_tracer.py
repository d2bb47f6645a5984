"""The joint trace: a program's forward and backward pass as one functional graph, and what is visible of it outside.

The forward runs on fakes with autograd on. What the caller will be able to see afterwards (outputs, changed inputs) is
classified: an input, a view of one, memory that the graph makes, a view of that. Each visible tensor with a place in
autograd's graph is an *edge*. Where one of them depends on another (a loss and the logits it was computed from), the
graph has *stages*, one autograd node each: a stage ends at the edges of those before it, so that hooks and gradients of
everything visible are exactly eager's. The backward of each stage is then recorded by torch's own engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.autograd.graph import GradientEdge

from ... import _native
from ...program.graph_modules import graph_module
from ...program.memory import is_dense
from ...program.unsupported import Unsupported
from . import autocast_state
from .backward_stages import Edge, Path, Root, Stage, build_stages, edge_of, path_to
from .functional_graph import SAME_VALUE, FunctionalGraph, Storage, View, storage_key
from .graph_runner import Registration, Runner
from .input_specs import InputSpec
from .leaf_order import observed
from .recording import Recorder
from .storage_resizes import storages_kept


class SharedInputs(Unsupported):
    """The program changes memory that several of its inputs look at."""

    def __init__(self) -> None:
        super().__init__("inputs that share memory, which the program changes")


@dataclass(eq=False)
class Memory:
    """Memory that is visible after the call: a changed input's, or made by the graph."""

    storage: Storage
    root: torch.Tensor  # the fake that its views are of, as it is in the end
    input: int | None  # which input it belongs to
    edge: Edge | None = None  # the root's place in autograd's graph, where the graph gave it one
    start: View | None = None  # where its tensors begin: the storage's root, or a view that autograd takes for no view
    parent: tuple[str, int] | None = None  # in the latter case, the "input" or "memory" whose content it looks at

    @property
    def counts_alone(self) -> bool:
        """Whether its changes are not counted by the memory that it looks at."""
        return self.start is not None and self.start.step is not None and self.start.step.hidden


@dataclass(eq=False)
class Output:
    """One value that the program returns."""

    kind: str  # "constant", "number", "input", "memory"
    value: Any = None  # constants and numbers
    fake: Any = None
    index: int = -1  # of the input, or of the memory
    view: View | None = None  # how to look at it; None where it is the input or the memory's root itself
    edge: Edge | None = None


@dataclass(frozen=True)
class Pattern:
    """Which incoming gradients of a stage are defined, and which outgoing ones are wanted: bit masks; None is all."""

    stage: int
    defined: int
    needed: int
    autocast: autocast_state.State = ()  # under which it runs


@dataclass
class Joint:
    """All that a trace found."""

    functional: FunctionalGraph
    module: torch.fx.GraphModule
    specs: list[Any]
    outputs: list[Output]
    memories: list[Memory]
    stages: list[Stage]
    forward_count: int  # how many of the graph's outputs are the forward's
    registrations: list[Registration]
    numbers: list[Any]  # symbolic outputs, after the memories
    versions: dict[int, int]  # how often an input was changed
    grad_mode: bool | None  # left behind, where it differs
    metadata: dict[int, View]  # inputs whose shape was changed in place
    inputs: list[Any]  # the fakes
    input_nodes: list[Any]  # placeholders; None for what is no graph input
    random: list[torch.device]  # where random numbers are drawn
    moved: list[bool]  # whether a change of shape gave an input another place in autograd's graph
    members: dict[View, int]  # views that are inputs as well
    is_shared: bool  # which inputs share memory is known
    hooked: list[tuple[Path, int]]  # places inside with hooks, by the way from the roots


def trace(
    program: Callable[..., Any] | torch.fx.GraphModule,
    specs: list[Any],
    mode: Any,
    decompositions: dict[Any, Any],
    pattern: Pattern | None = None,
    shared: Sequence[tuple[int, Sequence[int]]] = (),
) -> Joint:
    """Trace a program; with a pattern, the backward of one stage as it runs then.

    ``shared``: inputs with those that are views of them, as :mod:`kiln.aot.runtime.aliased_inputs` has them.
    """
    tracer = Tracer(program, specs, mode, decompositions)
    tracer.shared = shared
    return tracer.run(pattern)


class Tracer:
    """One trace."""

    def __init__(self, program: Any, specs: list[Any], mode: Any, decompositions: dict[Any, Any]) -> None:
        self.program, self.specs, self.mode = program, specs, mode
        self.recorder = Recorder(decompositions)
        self.functional = self.recorder.functional
        self.runner = Runner(self.recorder)
        self.inputs: list[Any] = []
        self.input_nodes: list[Any] = []
        self.input_edges: dict[Edge, int] = {}
        self.start_edges: list[Edge | None] = []
        self.memories: list[Memory] = []
        self.memory_of: dict[int, int] = {}
        self.stages: list[Stage] = []
        self.reshaped: dict[Edge, int] = {}
        self.hooked: list[tuple[Path, int]] = []
        self.shared: Sequence[tuple[int, Sequence[int]]] = ()  # inputs that others are views of
        self.members: dict[View, int] = {}
        self.results: list[Any] = []

    def run(self, pattern: Pattern | None) -> Joint:
        state, before = _native.GlobalState(), torch.is_grad_enabled()
        self.add_inputs()
        try:
            with self.mode, storages_kept(self.functional), self.recorder:
                results = self.runner.run(self.program, self.inputs)
        except Exception as error:
            state.restore()
            if isinstance(error, Unsupported) or self.recorder.bug is not None:
                raise
            raise Unsupported(f"it raises, or torch cannot run it without data: {error}") from error
        after = torch.is_grad_enabled()
        torch._C._set_grad_enabled(before)
        if not state.check():
            reason = state.reason()
            state.restore()
            raise Unsupported(f"it leaves a setting of torch changed ({reason})")
        self.results = results
        outputs = self.classify(results)
        self.settle_registrations(outputs)
        numbers = [output for output in outputs if output.kind == "number"]
        for place, output in enumerate(numbers):
            output.index = place
        own = [memory.storage.root for memory in self.memories if memory.parent is None]
        forward = [self.functional.current(root) for root in own]  # type: ignore[arg-type]
        forward += [self.functional.numbers.node_of(output.value) for output in numbers]
        self.make_stages(outputs)
        if pattern is None:
            for index in range(len(self.stages)):
                self.backward(index, None)
        else:
            self.backward(pattern.stage, pattern)
        gradients = [source.gradient for stage in self.stages for source in stage.sources]
        self.functional.graph.output((*forward, *gradients))
        module = graph_module(self.functional.attributes, self.functional.graph, "Joint")
        module.meta["mutated_primals"] = {
            self.input_nodes[memory.input].name for memory in self.memories if memory.input is not None
        }
        self.check_memory()
        self.check_sharing()
        return Joint(
            self.functional,
            module,
            self.specs,
            outputs,
            self.memories,
            self.stages,
            len(forward),
            self.runner.registrations,
            [output.value for output in numbers],
            self.versions(),
            after if after != before else None,
            self.changed_metadata(),
            self.inputs,
            self.input_nodes,
            sorted(self.recorder.drew_on, key=str),
            [index in self.reshaped.values() for index in range(len(self.inputs))],
            self.members,
            bool(self.shared),
            self.hooked,
        )

    # -- inputs -----------------------------------------------------------------------------------------------------

    def add_inputs(self) -> None:
        count = 0
        for spec in self.specs:
            value = spec.make(self.mode) if isinstance(spec, InputSpec) else spec
            node = None
            if isinstance(spec, (InputSpec, torch.SymInt, torch.SymFloat, torch.SymBool)):
                count += 1
                node = self.functional.add_input(f"primals_{count}", value)
            self.inputs.append(value)
            self.input_nodes.append(node)
        # Under the mode, which answers where a leaf lies: torch imports a second's worth to ask the fake itself.
        with self.mode:
            self.start_edges = [edge_of(value) for value in self.inputs]
        self.input_edges = {edge: index for index, edge in enumerate(self.start_edges) if edge is not None}
        self.start_versions = [version_of(value) for value in self.inputs]
        self.start_memory = [storage_key(value) if isinstance(value, torch.Tensor) else None for value in self.inputs]

    def check_memory(self) -> None:
        """No operation tells that a tensor was given other memory (``x.data = y``)."""
        for value, before in zip(self.inputs, self.start_memory, strict=True):
            if before is not None and storage_key(value) != before:
                raise Unsupported("an input that was given other memory")

    def check_sharing(self) -> None:
        """A change of memory that several inputs look at is more than the trace knows."""
        changed = [memory.input for memory in self.memories if memory.input is not None]
        if self.shared:
            self.note_members()
            return
        keys = [spec.storage_key if isinstance(spec, InputSpec) else None for spec in self.specs]
        if any(keys.count(keys[index]) > 1 for index in changed):
            raise SharedInputs

    def note_members(self) -> None:
        """The views that real inputs are; each must be what it was, as nothing would tell the real one."""
        members = [index for _, group in self.shared for index in group]
        for index, value in zip(members, self.results[len(self.results) - len(members) :], strict=True):
            view = self.functional.view_of(value)
            if len(view.path()) > 2 or (view.step is not None and view.step.change is not None):
                raise Unsupported("an input that shares memory, whose shape is changed")
            if view.parent is not None:
                self.members[view] = index

    def input_index(self, tensor: torch.Tensor) -> int | None:
        return next((index for index, value in enumerate(self.inputs) if value is tensor), None)

    def versions(self) -> dict[int, int]:
        found = {}
        for index, value in enumerate(self.inputs):
            if version_of(value) != self.start_versions[index] and not self.specs[index].is_inference:
                found[index] = version_of(value) - self.start_versions[index]
        return found

    def changed_metadata(self) -> dict[int, View]:
        found = {}
        for index, value in enumerate(self.inputs):
            if isinstance(value, torch.Tensor):
                view = self.functional.view_of(value)
                if view.parent is not None:
                    found[index] = view
        return found

    # -- what is visible --------------------------------------------------------------------------------------------

    def classify(self, results: list[Any]) -> list[Output]:
        for index, value in enumerate(self.inputs):
            if isinstance(value, torch.Tensor):
                self.note_input(index, value)
        visible = [value for value in (*self.inputs, *results) if isinstance(value, torch.Tensor)]
        for value in results:
            if isinstance(value, torch.Tensor) and self.functional.knows(value):
                hide_data(self.functional.view_of(value), visible)
        return [self.output(value) for value in results]

    def note_input(self, index: int, value: torch.Tensor) -> None:
        view = self.functional.view_of(value)
        storage, edge = view.storage, edge_of(value)
        if storage.first is not value:
            raise Unsupported("an input that was given the memory of another tensor")
        if storage.generation and self.specs[index].is_view_of_leaf and edge != self.start_edges[index]:
            raise Unsupported("a view of a leaf that was changed: torch makes its place in autograd's graph anew")
        if edge != self.start_edges[index] and view.parent is not None:
            self.reshaped[edge] = index  # by an operation that changed its shape  # type: ignore[index]
        if storage.generation == 0:
            if edge != self.start_edges[index] and view.parent is None:
                raise Unsupported("an input whose place in autograd's graph was changed without changing its data")
            return
        edge = self.root_edge(storage)
        changed = edge if edge != self.start_edges[index] else None
        self.memory_of[id(storage)] = self.add_memory(Memory(storage, value, index, changed, storage.root))

    def add_memory(self, memory: Memory) -> int:
        self.memories.append(memory)
        return len(self.memories) - 1

    def root_edge(self, storage: Storage) -> Edge | None:
        """Where a storage's first tensor is in autograd's graph, before its shape was changed if it was."""
        final = self.functional.view_of(storage.first)
        if final.parent is None:
            return edge_of(storage.first)
        root = storage.root
        assert root is not None
        if storage.written_in(final) and (root.edge is not None or edge_of(storage.first) is not None):
            raise Unsupported("a tensor whose shape was changed in place, and then its content")
        if root.edge is not None and edge_of(storage.first) is None:
            raise Unsupported("a tensor whose shape was changed in place, and that was then detached in place")
        return root.edge

    def output(self, value: Any) -> Output:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            plain = self.functional.numbers.node_of(value)
            return Output("number", value) if isinstance(plain, torch.fx.Node) else Output("constant", plain)
        if not isinstance(value, torch.Tensor):
            return Output("constant", value)
        place = self.input_index(value)
        if place is not None:
            return Output("input", fake=value, index=place, edge=edge_of(value))
        if not self.functional.knows(value):
            raise Unsupported("an output that is neither an input nor made by the graph")
        view = self.functional.view_of(value)
        storage = view.storage
        if storage.constant:
            raise Unsupported("an output that is a constant of the graph")
        self.check_reshaped(storage, view)
        start = start_of(view)
        if start.parent is None and storage.placeholder is not None:
            return Output("input", fake=value, index=self.owner(storage), view=view, edge=edge_of(value))
        if start.parent is None:
            index = self.made_memory(storage)
            edge = self.root_edge(storage)
            self.memories[index].edge = None if edge is None or is_leaf_edge(edge) else edge
        else:
            index = self.alias_memory(start)
        first = self.memories[index].root
        edge = edge_of(value)  # may say that torch raises an error about it, as other questions to it would
        if first is not value and value.requires_grad:
            if value.is_leaf:
                raise Unsupported("a view made inside that requires grad on its own")
            if not first.requires_grad:
                raise Unsupported("a view of a tensor that was then detached in place")
        return Output("memory", fake=value, index=index, view=None if first is value else view, edge=edge)

    def owner(self, storage: Storage) -> int:
        return next(i for i, node in enumerate(self.input_nodes) if node is storage.placeholder)

    def made_memory(self, storage: Storage) -> int:
        """Memory that the graph makes."""
        index = self.memory_of.get(id(storage))
        if index is None:
            index = self.add_memory(Memory(storage, storage.first, None, start=storage.root))
            self.memory_of[id(storage)] = index
        return index

    def alias_memory(self, start: View) -> int:
        """A tensor that looks at other memory but whose history is its own: what a function of the user returned of
        its arguments, a detached alias that was then changed, or a view that autograd does not know of."""
        index = self.memory_of.get(id(start))
        if index is None:
            storage = start.storage
            if storage.placeholder is not None:
                parent = ("input", self.owner(storage))
            else:
                parent = ("memory", self.made_memory(storage))
            memory = Memory(storage, start.value, None, edge_of(start.value), start, parent)
            index = self.memory_of[id(start)] = self.add_memory(memory)
        return index

    def check_reshaped(self, storage: Storage, view: View) -> None:
        """Where the first tensor's shape was changed in place, only what was looked at through it can be made again."""
        final = self.functional.view_of(storage.first)
        if final.parent is not None and final not in view.path():
            raise Unsupported("views from before and after a change of shape in place")

    # -- hooks ------------------------------------------------------------------------------------------------------

    def settle_registrations(self, outputs: list[Output]) -> None:
        """Hooks on what is visible outside are put there; the others are called inside the backward."""
        visible: dict[Edge, tuple[str, int]] = {}
        for edge, index in self.input_edges.items():
            visible[edge] = ("input", index)
        for index, memory in enumerate(self.memories):
            if memory.edge is not None:
                visible.setdefault(memory.edge, ("memory", index))
        for edge, index in self.reshaped.items():
            visible.setdefault(edge, ("reshaped", index))
        for index, output in enumerate(outputs):
            if output.edge is not None:
                visible.setdefault(output.edge, ("output", index))
        for registration in self.runner.registrations:
            registration.settle(visible)
            hidden_leaf = registration.place is None and hasattr(registration.edge[0], "variable")
            if hidden_leaf and registration.slot is not None:
                raise Unsupported("a hook on a leaf that is made inside and not returned")

    # -- stages -----------------------------------------------------------------------------------------------------

    def make_stages(self, outputs: list[Output]) -> None:
        roots = [(memory.edge, index) for index, memory in enumerate(self.memories) if memory.edge is not None]
        seen = [(output.edge, index) for index, output in enumerate(outputs) if output.edge is not None]
        tensors = [self.memories[index].root for _, index in roots]
        nodes = [edge[0] for edge, _ in roots]  # type: ignore[index]
        inside = [made.edge for made in self.runner.registrations if made.place is None and made.slot is not None]
        paths = {edge: path_to(nodes, edge[0]) for edge in inside}
        self.hooked = [(path, edge[1]) for edge, path in paths.items() if path is not None]
        hooked = [edge for edge, path in paths.items() if path is not None]
        self.stages = build_stages(self.input_edges, roots, seen, tensors, list(self.reshaped.items()), hooked)

    # -- backward ---------------------------------------------------------------------------------------------------

    def backward(self, number: int, pattern: Pattern | None) -> None:
        """Record the backward of a stage."""
        self.functional.numbers.is_backward = True
        stage = self.stages[number]
        roots = [root for i, root in enumerate(stage.roots) if pattern is None or pattern.defined >> i & 1]
        for place, root in enumerate(stage.roots):
            root.value = self.tangent(root)
            root.tangent = self.functional.add_input(
                f"tangents_{sum(len(s.roots) for s in self.stages[:number]) + place + 1}", root.value
            )
        wanted = [source for i, source in enumerate(stage.sources) if pattern is None or pattern.needed >> i & 1]
        stage.order = list(range(len(stage.sources)))
        if not wanted or not roots:
            return
        self.recorder.region, self.recorder.stage, self.recorder.about = "backward", number, {}
        autocast = autocast_state.under(pattern.autocast if pattern is not None else ())
        before = self.written()
        with observed(stage), self.mode, self.recorder, autocast, eager_would_raise(self.recorder):
            # What autograd.grad calls, once it has compared sizes; these gradients were made to fit.
            gradients = torch.autograd.Variable._execution_engine.run_backward(
                tuple([GradientEdge(*root.edge) for root in roots]),
                tuple([root.value for root in roots]),
                True,  # keep the graph
                False,  # create no other
                tuple([GradientEdge(*source.edge) for source in wanted]),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        if self.written() != before:
            raise Unsupported("a backward pass that changes an input, a result or the gradient it is given in place")
        for source, gradient in zip(wanted, gradients, strict=True):
            if gradient is not None:
                source.gradient = self.functional.node_of(gradient)

    def written(self) -> list[int]:
        """How often everything that is visible outside was changed."""
        visible = [memory.storage for memory in self.memories]
        visible += [storage for storage in self.functional.storages.values() if storage.placeholder is not None]
        return [storage.generation for storage in visible]

    def tangent(self, root: Root) -> torch.Tensor:
        """A gradient as it will come in: laid out like what it is the gradient of."""
        told = root.edge[0]._input_metadata[root.edge[1]]
        size, stride = tuple(told.shape), None
        if root.memory is not None:
            like = self.memories[root.memory].root
            if tuple(like.shape) == size and is_dense(like):
                stride = like.stride()
        device = told.device if told.device.type != "meta" else self.device(root)
        with self.mode, torch.no_grad():
            if stride is None:
                return torch.empty(size, dtype=told.dtype, device=device)
            return torch.empty_strided(size, stride, dtype=told.dtype, device=device)

    def device(self, root: Root) -> torch.device:
        """Where a gradient is; autograd knows of fakes only that they have no data."""
        if root.memory is not None:
            return self.memories[root.memory].root.device
        devices = {value.device for value in self.inputs if isinstance(value, torch.Tensor)}
        if len(devices) != 1:
            raise Unsupported("a gradient inside, on one of several devices")
        return devices.pop()


@contextlib.contextmanager
def eager_would_raise(recorder: Recorder) -> Iterator[None]:
    """A backward that raises does so in eager too, when it runs: not now."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (Unsupported, NotImplementedError)) or recorder.bug is not None:
            raise
        raise Unsupported(f"its backward raises: {error}") from error


def version_of(value: Any) -> int:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def hide_data(view: View, visible: list[torch.Tensor]) -> None:
    """Find ``x.data`` on the way to a view, which is traced as ``x.detach()`` but has a version counter of its own.

    The same is seen of factories, which detach what they make; but there nobody has the tensor before.
    """
    path = view.path()
    for index, part in enumerate(path):
        detached = part.step.detached if part.step is not None else None
        if detached is None or not any(share_counter(detached, one) for one in visible):
            continue
        if not any(share_counter(base, part.value) for base in (detached, *[before.value for before in path[:index]])):
            part.step.hidden = True  # type: ignore[union-attr]


def share_counter(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a change of one tensor counts as a change of the other; inference tensors count none."""
    if one.is_inference() or other.is_inference():
        return True
    version = one._version
    if other._version != version:
        return False
    torch.autograd.graph.increment_version(one)
    try:
        return other._version != version
    finally:
        torch._C._autograd._unsafe_set_version_counter((one,), (version,))


def start_of(view: View) -> View:
    """The last tensor on the way to a view that replaying view operations would not give the same history."""
    for part in reversed(view.path()[1:]):
        step = part.step
        assert step is not None
        if step.hidden:
            return part
        natural = step.differentiable and step.function not in SAME_VALUE and not has_own_history(part)
        if not natural and step.change is None and part.value.requires_grad:
            edge_of(part.value)  # may say that torch raises an error about it
            if not part.value.is_leaf:
                return part
    return view.path()[0]


def has_own_history(view: View) -> bool:
    """Whether a view requires grad and what it is a view of does not: inside a subclass, or once that was detached."""
    parent = view.parent
    assert parent is not None
    reshaped = parent.step is not None and parent.step.change is not None  # its first tensor
    base = view.storage.first if reshaped else parent.value
    return view.value.requires_grad and not base.requires_grad and parent.edge is None


def is_leaf_edge(edge: Edge) -> bool:
    return edge[0].name() == "torch::autograd::AccumulateGrad"
