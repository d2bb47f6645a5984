"""The joint trace: runs a program's forward and backward on fakes, and records both as one functional graph.

The forward runs with autograd on. What the caller will be able to see afterwards (outputs, changed inputs) is
classified: an input, a view of one, memory that the graph makes, a view of that. Each visible tensor with a place in
autograd's graph is an *edge*. Where one of them depends on another (a loss and the logits it was computed from), the
graph has *stages*, one autograd node each: a stage ends at the edges of those before it, so that hooks and gradients of
everything visible are those of eager. The backward of each stage is then recorded by torch's own engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
import torch.fx
from torch.autograd.graph import GradientEdge

from ... import _native
from ...platform.fx_graphs import LazyGraphModule
from ...platform.torch_autograd import execution_engine, input_metadata_of, set_grad_enabled
from ...program.graph_meta import set_mutated_primals
from ...program.memory import is_dense
from ...program.unsupported import Unsupported
from . import autocast_state
from .autograd_edges import Edge, Path, edge_of, is_leaf_edge, path_to
from .backward_stages import Place, Root, Stage, build_stages
from .functional_graph import Storage, View, is_symbolic, storage_key
from .graph_runner import GraphRunner
from .input_specs import InputSpec
from .joint_graph import AliasedInputs, JointGraph, Memory, Output, Pattern
from .leaf_order import record_leaf_order
from .recording import Recorder
from .storage_resizes import refuse_resizes
from .view_history import mark_hidden_data, start_of, version_of


def trace(
    program: Callable[..., Any] | torch.fx.GraphModule,
    specs: list[Any],
    mode: Any,
    decompositions: dict[Any, Any],
    pattern: Pattern | None = None,
    aliased: Sequence[tuple[int, Sequence[int]]] = (),
) -> JointGraph:
    """Trace a program; with a pattern, the backward of one stage as it runs then.

    ``aliased``: inputs with those that are views of them, as :mod:`kiln.aot.runtime.aliased_inputs` has them.
    """
    return Tracer(program, specs, mode, decompositions, aliased).run(pattern)


class Tracer:
    """One trace."""

    def __init__(
        self,
        program: Any,
        specs: list[Any],
        mode: Any,
        decompositions: dict[Any, Any],
        aliased: Sequence[tuple[int, Sequence[int]]] = (),
    ) -> None:
        self.program, self.specs, self.mode, self.aliased = program, specs, mode, aliased
        self.recorder = Recorder(decompositions)
        self.functional = self.recorder.functional
        self.runner = GraphRunner(self.recorder)
        self.inputs: list[Any] = []
        self.input_nodes: list[torch.fx.Node | None] = []
        self.input_edges: dict[Edge, int] = {}
        self.start_edges: list[Edge | None] = []
        self.memories: list[Memory] = []
        self.memory_of: dict[int, int] = {}  # by the id of a storage, or of the view where its tensors begin
        self.stages: list[Stage] = []
        self.reshaped_edges: dict[Edge, int] = {}  # of inputs, after a change of their shape
        self.moved_inputs: set[int] = set()  # by a change of their shape, in autograd's graph
        self.hooked_paths: list[tuple[Path, int]] = []
        self.aliases: dict[View, int] = {}

    def run(self, pattern: Pattern | None) -> JointGraph:
        state, before = _native.GlobalState(), torch.is_grad_enabled()
        self.add_inputs()
        try:
            with self.mode, refuse_resizes(self.functional), self.recorder:
                results = self.runner.run(self.program, self.inputs)
        except Exception as error:
            state.restore()
            if isinstance(error, Unsupported) or self.recorder.internal_error is not None:
                raise
            raise Unsupported(f"it raises, or torch cannot run it without data: {error}") from error
        after = torch.is_grad_enabled()
        set_grad_enabled(before)
        if not state.check():
            reason = state.reason()
            state.restore()
            raise Unsupported(f"it leaves a setting of torch changed ({reason})")
        outputs = self.classify(results)
        self.place_hooks(outputs)
        numbers = [output for output in outputs if output.kind == "number"]
        for place, output in enumerate(numbers):
            output.index = place
        own = [memory.storage.root for memory in self.memories if memory.parent is None]
        forward = [self.functional.current(root) for root in own]
        forward += [self.functional.sizes.node_of(output.value) for output in numbers]
        self.make_stages(outputs)
        if pattern is None:
            for index in range(len(self.stages)):
                self.backward(index, None)
        else:
            self.backward(pattern.stage, pattern)
        gradients = [source.gradient for stage in self.stages for source in stage.sources]
        self.functional.graph.output((*forward, *gradients))
        module = LazyGraphModule(self.functional.attributes, self.functional.graph, "Joint")
        changed = [self.input_nodes[memory.input] for memory in self.memories if memory.input is not None]
        set_mutated_primals(module, frozenset(node.name for node in changed if node is not None))
        self.check_memory()
        self.check_aliasing(results)
        return JointGraph(
            functional=self.functional,
            module=module,
            specs=self.specs,
            outputs=outputs,
            memories=self.memories,
            stages=self.stages,
            forward_count=len(forward),
            registrations=self.runner.registrations,
            numbers=[output.value for output in numbers],
            version_changes=self.version_changes(),
            final_grad_mode=after if after != before else None,
            reshaped=self.reshaped_inputs(),
            inputs=self.inputs,
            input_nodes=self.input_nodes,
            random_devices=sorted(self.recorder.random_devices, key=str),
            replayed=self.recorder.replayed,
            has_new_edge=[index in self.moved_inputs for index in range(len(self.inputs))],
            aliases=self.aliases,
            knows_aliasing=bool(self.aliased),
            hooked_paths=self.hooked_paths,
        )

    # -- inputs -----------------------------------------------------------------------------------------------------

    def add_inputs(self) -> None:
        count = 0
        for spec in self.specs:
            value = spec.make(self.mode) if isinstance(spec, InputSpec) else spec
            node = None
            if isinstance(spec, InputSpec) or is_symbolic(spec):
                count += 1
                node = self.functional.add_input(f"primals_{count}", value)
            self.inputs.append(value)
            self.input_nodes.append(node)
        # Under the mode: otherwise torch imports much (a second) to find the device of a fake leaf.
        with self.mode:
            self.start_edges = [edge_of(value) for value in self.inputs]
        self.input_edges = {edge: index for index, edge in enumerate(self.start_edges) if edge is not None}
        self.start_versions = [version_of(value) for value in self.inputs]
        self.start_memory = [storage_key(value) if isinstance(value, torch.Tensor) else None for value in self.inputs]

    def check_memory(self) -> None:
        """No operation records that a tensor was given other memory (``x.data = y``)."""
        for value, before in zip(self.inputs, self.start_memory, strict=True):
            if before is not None and storage_key(value) != before:
                raise Unsupported("an input that was given other memory")

    def check_aliasing(self, results: list[Any]) -> None:
        """A change of memory that several inputs share is refused, unless the trace knows how they share it."""
        if self.aliased:
            self.note_aliases(results)
            return
        keys = [spec.storage_key if isinstance(spec, InputSpec) else None for spec in self.specs]
        if any(keys.count(keys[memory.input]) > 1 for memory in self.memories if memory.input is not None):
            raise AliasedInputs

    def note_aliases(self, results: list[Any]) -> None:
        """The views that are real inputs, the last results; their shapes must be as before: the real ones keep them."""
        members = [index for _, group in self.aliased for index in group]
        for index, value in zip(members, results[len(results) - len(members) :], strict=True):
            view = self.functional.view_of(value)
            if len(view.path()) > 2 or (view.step is not None and view.step.in_place is not None):
                raise Unsupported("an input that shares memory, whose shape is changed")
            if view.parent is not None:
                self.aliases[view] = index

    def version_changes(self) -> dict[int, int]:
        found = {}
        for index, value in enumerate(self.inputs):
            if version_of(value) != self.start_versions[index] and not self.specs[index].is_inference:
                found[index] = version_of(value) - self.start_versions[index]
        return found

    def reshaped_inputs(self) -> dict[int, View]:
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
                mark_hidden_data(self.functional.view_of(value), visible)
        return [self.output(value) for value in results]

    def note_input(self, index: int, value: torch.Tensor) -> None:
        view = self.functional.view_of(value)
        storage, edge = view.storage, edge_of(value)
        if storage.first is not value:
            raise Unsupported("an input that was given the memory of another tensor")
        if storage.generation and self.specs[index].is_view_of_leaf and edge != self.start_edges[index]:
            raise Unsupported("a view of a leaf that was changed: torch makes its place in autograd's graph anew")
        if edge != self.start_edges[index] and view.parent is not None:
            self.moved_inputs.add(index)
            if edge is not None:
                self.reshaped_edges[edge] = index
        if storage.generation == 0:
            if edge != self.start_edges[index] and view.parent is None:
                raise Unsupported("an input whose place in autograd's graph was changed without changing its data")
            return
        edge = self.root_edge(storage)
        changed = edge if edge != self.start_edges[index] else None
        self.memory_of[id(storage)] = self.add_memory(Memory(storage, value, index, storage.root, changed))

    def add_memory(self, memory: Memory) -> int:
        self.memories.append(memory)
        return len(self.memories) - 1

    def root_edge(self, storage: Storage) -> Edge | None:
        """Where a storage's first tensor is in autograd's graph, before its shape was changed if it was."""
        final = self.functional.view_of(storage.first)
        if final.parent is None:
            return edge_of(storage.first)
        root = storage.root
        if storage.written_in(final) and (root.edge is not None or edge_of(storage.first) is not None):
            raise Unsupported("a tensor whose shape was changed in place, and then its content")
        if root.edge is not None and edge_of(storage.first) is None:
            raise Unsupported("a tensor whose shape was changed in place, and that was then detached in place")
        return root.edge

    def output(self, value: Any) -> Output:
        if is_symbolic(value):
            plain = self.functional.sizes.node_of(value)
            return Output("number", value) if isinstance(plain, torch.fx.Node) else Output("constant", plain)
        if not isinstance(value, torch.Tensor):
            return Output("constant", value)
        place = next((index for index, known in enumerate(self.inputs) if known is value), None)
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
        edge = edge_of(value)  # raises where torch would raise
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
            index = self.add_memory(Memory(storage, storage.first, None, storage.root))
            self.memory_of[id(storage)] = index
        return index

    def alias_memory(self, start: View) -> int:
        """A tensor that aliases other memory but has its own history: an argument that a function of the user returned,
        a detached alias that was then changed, or a view that autograd does not know of."""
        index = self.memory_of.get(id(start))
        if index is None:
            storage = start.storage
            parent: tuple[Literal["input", "memory"], int]
            if storage.placeholder is not None:
                parent = ("input", self.owner(storage))
            else:
                parent = ("memory", self.made_memory(storage))
            memory = Memory(storage, start.value, None, start, edge_of(start.value), parent)
            index = self.memory_of[id(start)] = self.add_memory(memory)
        return index

    def check_reshaped(self, storage: Storage, view: View) -> None:
        """Where the first tensor's shape was changed in place, only views of it can be made again."""
        final = self.functional.view_of(storage.first)
        if final.parent is not None and final not in view.path():
            raise Unsupported("views from before and after a change of shape in place")

    # -- hooks ------------------------------------------------------------------------------------------------------

    def place_hooks(self, outputs: list[Output]) -> None:
        """Hooks on what is visible outside are registered there; the others are called inside the backward."""
        visible: dict[Edge, Place] = {edge: ("input", index) for edge, index in self.input_edges.items()}
        for index, memory in enumerate(self.memories):
            if memory.edge is not None:
                visible.setdefault(memory.edge, ("memory", index))
        for edge, index in self.reshaped_edges.items():
            visible.setdefault(edge, ("reshaped", index))
        for index, output in enumerate(outputs):
            if output.edge is not None:
                visible.setdefault(output.edge, ("output", index))
        for registration in self.runner.registrations:
            registration.find_place(visible)
            if registration.is_inner and is_leaf_edge(registration.edge):
                raise Unsupported("a hook on a leaf that is made inside and not returned")

    # -- stages -----------------------------------------------------------------------------------------------------

    def make_stages(self, outputs: list[Output]) -> None:
        roots = [(memory.edge, index) for index, memory in enumerate(self.memories) if memory.edge is not None]
        seen = [(output.edge, index) for index, output in enumerate(outputs) if output.edge is not None]
        tensors = [self.memories[index].root for _, index in roots]
        nodes = [edge[0] for edge, _ in roots]
        inner = [registration.edge for registration in self.runner.registrations if registration.is_inner]
        paths = {edge: path for edge in inner if (path := path_to(nodes, edge[0])) is not None}
        self.hooked_paths = [(path, edge[1]) for edge, path in paths.items()]
        self.stages = build_stages(
            self.input_edges, roots, seen, tensors, list(self.reshaped_edges.items()), list(paths)
        )

    # -- backward ---------------------------------------------------------------------------------------------------

    def backward(self, number: int, pattern: Pattern | None) -> None:
        """Record the backward of a stage."""
        self.functional.sizes.is_backward = True
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
        self.recorder.region, self.recorder.provenance = "backward", {}
        autocast = autocast_state.applied(pattern.autocast if pattern is not None else ())
        before = self.generations()
        with record_leaf_order(stage), self.mode, self.recorder, autocast, raises_unsupported(self.recorder):
            # What autograd.grad calls after it has compared sizes, which are right here.
            gradients = execution_engine().run_backward(
                tuple([GradientEdge(*root.edge) for root in roots]),
                tuple([root.value for root in roots]),
                True,  # keep the graph
                False,  # create no other
                tuple([GradientEdge(*source.edge) for source in wanted]),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        if self.generations() != before:
            raise Unsupported("a backward pass that changes an input, a result or the gradient it is given in place")
        for source, gradient in zip(wanted, gradients, strict=True):
            if gradient is not None:
                source.gradient = self.functional.node_of(gradient)

    def generations(self) -> list[int]:
        """How often everything that is visible outside was changed."""
        visible = [memory.storage for memory in self.memories]
        visible += [storage for storage in self.functional.storages.values() if storage.placeholder is not None]
        return [storage.generation for storage in visible]

    def tangent(self, root: Root) -> torch.Tensor:
        """A gradient as it will come in: laid out like what it is the gradient of."""
        expected = input_metadata_of(root.edge[0])[root.edge[1]]
        size, stride = tuple(expected.shape), None
        if root.memory is not None:
            like = self.memories[root.memory].root
            if tuple(like.shape) == size and is_dense(like):
                stride = like.stride()
        device = expected.device if expected.device.type != "meta" else self.device(root)
        with self.mode, torch.no_grad():
            if stride is None:
                return torch.empty(size, dtype=expected.dtype, device=device)
            return torch.empty_strided(size, stride, dtype=expected.dtype, device=device)

    def device(self, root: Root) -> torch.device:
        """Where a gradient is; to autograd, fakes are on the meta device."""
        if root.memory is not None:
            return self.memories[root.memory].root.device
        devices = {value.device for value in self.inputs if isinstance(value, torch.Tensor)}
        if len(devices) != 1:
            raise Unsupported("a gradient inside, on one of several devices")
        return devices.pop()


@contextlib.contextmanager
def raises_unsupported(recorder: Recorder) -> Iterator[None]:
    """A backward that raises here also raises in eager, but when it runs: the program is left to eager."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (Unsupported, NotImplementedError)) or recorder.internal_error is not None:
            raise
        raise Unsupported(f"its backward raises: {error}") from error
