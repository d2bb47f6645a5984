"""The joint trace: a program's forward and backward pass as one functional graph, and what is visible of it outside.

The forward runs on fakes with autograd on. What the caller will be able to see afterwards (outputs, changed inputs) is
classified: an input, a view of one, memory that the graph makes, a view of that. Each visible tensor that has a place in
autograd's graph is an *edge*. Where one of them depends on another (a loss and the logits it was computed from), the
graph has *stages*, one autograd node each: a stage ends at the edges of those before it, so that hooks and gradients of
everything visible are exactly eager's. The backward of each stage is then recorded by torch's own engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.autograd.graph import GradientEdge

from .functional import FunctionalGraph, Storage, View
from .inputs import InputSpec
from .recording import Recorder
from .running import Registration, Runner
from .schemas import Unsupported
from .stages import Edge, Root, Stage, build_stages, edge_of


@dataclass(eq=False)
class Memory:
    """Memory that is visible after the call: a changed input's, or made by the graph."""

    storage: Storage
    root: torch.Tensor  # the fake that its views are of, as it is in the end
    input: int | None  # which input it belongs to
    edge: Edge | None = None  # the root's place in autograd's graph, where the graph gave it one
    base_needed: bool = True


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
    random: bool = False


def trace(
    program: Callable[..., Any] | torch.fx.GraphModule,
    specs: list[Any],
    mode: Any,
    decompositions: dict[Any, Any],
    pattern: Pattern | None = None,
) -> Joint:
    """Trace a program; with a pattern, the backward of one stage as it runs then."""
    return Tracer(program, specs, mode, decompositions).run(pattern)


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

    def run(self, pattern: Pattern | None) -> Joint:
        self.add_inputs()
        before = torch.is_grad_enabled()
        with self.mode, self.recorder:
            results = self.runner.run(self.program, self.inputs)
            after = torch.is_grad_enabled()
            torch._C._set_grad_enabled(before)
        outputs = self.classify(results)
        self.settle_registrations(outputs)
        numbers = [output for output in outputs if output.kind == "number"]
        for place, output in enumerate(numbers):
            output.index = place
        forward = [self.functional.current(memory.storage.root) for memory in self.memories]  # type: ignore[arg-type]
        forward += [self.functional.numbers.node_of(output.value) for output in numbers]
        self.make_stages(outputs)
        if pattern is None:
            for index in range(len(self.stages)):
                self.backward(index, None)
        else:
            self.backward(pattern.stage, pattern)
        gradients = [source.gradient for stage in self.stages for source in stage.sources]
        self.functional.graph.output((*forward, *gradients))
        module = torch.fx.GraphModule(self.functional.attributes, self.functional.graph, "Joint")
        module.meta["mutated_primals"] = {
            self.input_nodes[memory.input].name for memory in self.memories if memory.input is not None
        }
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
            self.runner.drew_numbers,
        )

    # -- inputs -----------------------------------------------------------------------------------------------------

    def add_inputs(self) -> None:
        count = 0
        for index, spec in enumerate(self.specs):
            value = spec.make(self.mode) if isinstance(spec, InputSpec) else spec
            node = None
            if isinstance(spec, InputSpec) or isinstance(spec, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                count += 1
                node = self.functional.add_input(f"primals_{count}", value)
            edge = edge_of(value)
            if edge is not None:
                self.input_edges[edge] = index
            self.inputs.append(value)
            self.input_nodes.append(node)
            self.start_edges.append(edge)
        self.start_versions = [value._version if isinstance(value, torch.Tensor) else 0 for value in self.inputs]

    def input_index(self, tensor: torch.Tensor) -> int | None:
        return next((index for index, value in enumerate(self.inputs) if value is tensor), None)

    def versions(self) -> dict[int, int]:
        found = {}
        for index, value in enumerate(self.inputs):
            if isinstance(value, torch.Tensor) and value._version != self.start_versions[index]:
                found[index] = value._version - self.start_versions[index]
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
        return [self.output(value) for value in results]

    def note_input(self, index: int, value: torch.Tensor) -> None:
        storage = self.functional.view_of(value).storage
        changed_history = edge_of(value) != self.start_edges[index]
        if storage.generation == 0 and not changed_history:
            return
        if storage.generation == 0 or (changed_history and self.functional.view_of(value).parent is not None):
            raise Unsupported("an input whose place in autograd's graph was changed without changing its data")
        memory = Memory(storage, value, index, edge_of(value) if changed_history else None)
        self.memory_of[id(storage)] = len(self.memories)
        self.memories.append(memory)

    def output(self, value: Any) -> Output:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            plain = self.functional.numbers.node_of(value)
            if not isinstance(plain, torch.fx.Node):
                return Output("constant", plain)
            return Output("number", value)
        if not isinstance(value, torch.Tensor):
            return Output("constant", value)
        place = self.input_index(value)
        if place is not None:
            return Output("input", fake=value, index=place, edge=edge_of(value))
        if not self.functional.knows(value):
            raise Unsupported("an output that is neither an input nor made by the graph")
        if value.requires_grad and value.is_leaf:
            raise Unsupported("a tensor made inside that requires grad")
        view = self.functional.view_of(value)
        storage = view.storage
        if storage.placeholder is not None:
            owner = next(i for i, node in enumerate(self.input_nodes) if node is storage.placeholder)
            return Output("input", fake=value, index=owner, view=view, edge=edge_of(value))
        index = self.memory_of.get(id(storage))
        if index is None:
            index = self.memory_of[id(storage)] = len(self.memories)
            self.memories.append(Memory(storage, self.root_of(storage, value, view), None))
            self.memories[index].edge = edge_of(self.memories[index].root)
        whole = self.memories[index].root is value
        return Output("memory", fake=value, index=index, view=None if whole else view, edge=edge_of(value))

    def root_of(self, storage: Storage, value: torch.Tensor, view: View) -> torch.Tensor:
        """The tensor that first looked at a storage; operations may have made another tensor in its place since."""
        root = storage.root
        assert root is not None
        return root.value

    # -- hooks ------------------------------------------------------------------------------------------------------

    def settle_registrations(self, outputs: list[Output]) -> None:
        """Hooks on what is visible outside are put there; the others are called inside the backward."""
        visible: dict[Edge, tuple[str, int]] = {}
        for edge, index in self.input_edges.items():
            visible[edge] = ("input", index)
        for index, memory in enumerate(self.memories):
            if memory.edge is not None:
                visible.setdefault(memory.edge, ("memory", index))
        for index, output in enumerate(outputs):
            if output.edge is not None:
                visible.setdefault(output.edge, ("output", index))
        for registration in self.runner.registrations:
            registration.settle(visible)

    # -- stages -----------------------------------------------------------------------------------------------------

    def make_stages(self, outputs: list[Output]) -> None:
        roots = [(memory.edge, index) for index, memory in enumerate(self.memories) if memory.edge is not None]
        seen = [(output.edge, index) for index, output in enumerate(outputs) if output.edge is not None]
        tensors = [self.memories[index].root for _, index in roots]
        self.stages = build_stages(self.input_edges, roots, seen, tensors)

    # -- backward ---------------------------------------------------------------------------------------------------

    def backward(self, number: int, pattern: Pattern | None) -> None:
        """Record the backward of a stage."""
        stage = self.stages[number]
        roots = [root for i, root in enumerate(stage.roots) if pattern is None or pattern.defined >> i & 1]
        for place, root in enumerate(stage.roots):
            root.value = self.tangent(root)
            root.tangent = self.functional.add_input(
                f"tangents_{sum(len(s.roots) for s in self.stages[:number]) + place + 1}", root.value
            )
        wanted = [source for i, source in enumerate(stage.sources) if pattern is None or pattern.needed >> i & 1]
        if not wanted or not roots:
            return
        self.recorder.region, self.recorder.stage, self.recorder.about = "backward", number, {}
        with self.mode, self.recorder, eager_would_raise():
            gradients = torch.autograd.grad(
                [GradientEdge(*root.edge) for root in roots],
                [GradientEdge(*source.edge) for source in wanted],
                [root.value for root in roots],
                retain_graph=True,
                allow_unused=True,
            )
        for source, gradient in zip(wanted, gradients, strict=True):
            if gradient is not None:
                source.gradient = self.functional.node_of(gradient)

    def tangent(self, root: Root) -> torch.Tensor:
        """A gradient as it will come in: laid out like what it is the gradient of."""
        told = root.edge[0]._input_metadata[root.edge[1]]
        size, stride = tuple(told.shape), None
        if root.memory is not None:
            like = self.memories[root.memory].root
            if tuple(like.shape) == size and is_dense(like):
                stride = like.stride()
        with self.mode, torch.no_grad():
            if stride is None:
                return torch.empty(size, dtype=told.dtype, device=told.device)
            return torch.empty_strided(size, stride, dtype=told.dtype, device=told.device)


@contextlib.contextmanager
def eager_would_raise() -> Iterator[None]:
    """A backward that raises does so in eager too, when it runs: not now."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, NotImplementedError):
            raise
        raise Unsupported(f"its backward raises: {error}") from error


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory without holes, in some order of its dimensions."""
    expected: Any = 1
    dims = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)
    for stride, size in dims:
        if stride != expected:
            return False
        expected = stride * size
    return True
