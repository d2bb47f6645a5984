"""The compiled backwards of a stage, one for each pattern of gradients: which are defined, which are wanted.

A backward is compiled when it first runs. So a gradient that is undefined in eager is undefined here, and only wanted
gradients are computed. All patterns share what the forward saved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.fx

from ..._native import GlobalState
from ...program.graph import count_operations
from ...program.graph_modules import output_values, placeholders
from ...program.unsupported import Unsupported
from ...report.stages import stage
from ..partition.backward_extraction import StageModule, extract_backward
from ..partition.graph_cleanup import eliminate_dead
from ..partition.graph_writers import CannotExtract
from ..partition.partitioned_graph import PartitionedGraph
from ..partition.random_replay import tie_random_pairs
from ..trace import autocast_state
from ..trace.hook_calls import with_hooks
from ..trace.joint_graph import JointGraph, Pattern
from .boxing import Boxed
from .higher_order import CallContext
from .program_warnings import recorded_warnings

Tensor, STRIDED = torch.Tensor, torch.strided
Key = tuple[int, int] | tuple[int, int, autocast_state.State]
Graph = tuple[torch.fx.GraphModule, list[int]]  # and the positions of its inputs among what the stage's node has
is_autocast_on = autocast_state.is_on


class BackwardCompiler(Protocol):
    """Who traces and compiles backwards: `kiln.aot.compilation.Compilation`."""

    lock: Any
    state: GlobalState  # of torch when the program was first traced

    def trace(self, pattern: Pattern | None) -> JointGraph: ...

    def compile_backward(self, module: torch.fx.GraphModule) -> Boxed: ...

    def has_new_guards(self) -> bool: ...


class BackwardTable:
    """The backwards of one stage; called by the stage's autograd node."""

    def __init__(
        self,
        owner: BackwardCompiler,
        number: int,
        joint: JointGraph,
        partitioned: PartitionedGraph,
        part: StageModule | None = None,
    ) -> None:
        """``part``: the backward of this stage, where there are several."""
        self.owner, self.number, self.partitioned = owner, number, partitioned
        self.number_count = partitioned.saved_numbers
        self.saved_count = partitioned.saved_numbers + partitioned.saved_tensors
        self.module = partitioned.backward if part is None else part.module
        self.saved = range(self.saved_count) if part is None else part.saved  # by position among all that is saved
        self.used = [place - self.number_count for place in self.saved if place >= self.number_count]  # tensors
        stage = joint.stages[number]
        self.all_defined = (1 << len(stage.roots)) - 1
        self.all_needed = (1 << len(stage.sources)) - 1
        self.source_count = len(stage.sources)
        self.order = stage.order if stage.order != sorted(stage.order) else None
        self.first_source = sum(len(earlier.sources) for earlier in joint.stages[:number])
        self.layouts = [GradientLayout(root.value) for root in stage.roots]
        self.strides = [layout.strides for layout in self.layouts]
        self.has_hooks = any(registration.is_inner for registration in joint.registrations)
        self.table: dict[Key, Boxed | None] = {}
        self.graphs: dict[Key, Graph | None] = {}

    def __call__(self, defined: int, needed: int, saved: list[Any], gradients: list[Any], context: CallContext) -> Any:
        try:
            compiled = self.table[(defined, needed) if not is_autocast_on() else self.key(defined, needed)]
        except KeyError:
            compiled = self.make(*self.key(defined, needed))
        if compiled is None:
            return NotImplemented
        for place, strides in enumerate(self.strides):
            gradient = gradients[place]
            if gradient is not None:
                if type(gradient) is not Tensor or gradient.layout is not STRIDED:
                    return NotImplemented
                if gradient.stride() != strides:
                    gradients[place] = self.layouts[place].laid_out(gradient)
        arguments = [*context.numbers, *saved, *gradients]
        saved.clear()
        gradients.clear()
        found = with_hooks(context.hooks, compiled, arguments) if self.has_hooks else compiled(arguments)
        return found if self.order is None else [found[place] for place in self.order]

    def key(self, defined: int, needed: int) -> Key:
        autocast = autocast_state.current()
        return (defined, needed, autocast) if autocast else (defined, needed)

    def make(self, *key: Any) -> Boxed | None:
        with self.owner.lock:
            if key not in self.table:
                compiled = self.compile(*key)
                if compiled is not None and len(key) > 2:
                    compiled = autocast_state.without(compiled)
                self.table[key] = compiled
            return self.table[key]

    def compile(self, *key: Any) -> Boxed | None:
        with stage("backward", str(self.number or "")) as record:
            found = self.graph(*key)
            if found is None:
                return None
            module, places = found
            compiled = self.owner.compile_backward(module)
            if record is not None:
                record.sizes["nodes"] = count_operations(module.graph)
        if places == list(range(self.number_count + len(self.used) + len(self.layouts))):
            return compiled

        def run(arguments: list[Any]) -> Any:
            chosen = [arguments[place] for place in places]
            arguments.clear()
            return compiled(chosen)

        return run

    def graph_for(self, defined: int, needed: int) -> Graph | None:
        """The graph for these gradients under the active autocast, not compiled; None where there is none.

        Its inputs are among saved numbers, saved tensors and gradients, at the positions that come with it.
        """
        key = self.key(defined, needed)
        with self.owner.lock:
            if key not in self.graphs:
                self.graphs[key] = self.graph(*key)
            return self.graphs[key]

    def graph(self, defined: int, needed: int, autocast: autocast_state.State = ()) -> Graph | None:
        if self.order is not None:
            needed = by_source(needed, self.order)
        if (defined, needed, autocast) == (self.all_defined, self.all_needed, ()):
            first = self.number_count + len(self.used)
            return self.module, [*map(self.place_of, self.saved), *range(first, first + len(self.layouts))]
        try:
            with recorded_warnings(), in_state(self.owner.state):
                joint = self.owner.trace(Pattern(self.number, defined, needed, autocast))
            tie_random_pairs(joint.module, joint.replayed)
            module = extract_backward(joint.module, self.partitioned.saved_keys, self.partitioned.output_count)
        except (CannotExtract, Unsupported, NotImplementedError):  # torch raises the latter without data
            return None
        if self.owner.has_new_guards():
            return None  # the guards of this entry are already compiled
        return self.fit(module, joint)

    def place_of(self, place: int) -> int:
        """Where a saved value is among what this stage's node has."""
        return place if place < self.number_count else self.number_count + self.used.index(place - self.number_count)

    def fit(self, module: torch.fx.GraphModule, joint: JointGraph) -> Graph | None:
        """A backward for another pattern, with only this stage's gradients and inputs."""
        graph = module.graph
        roots = joint.stages[self.number].roots
        tangents = [root.tangent.name for root in roots if root.tangent is not None]
        places: list[int] = []
        for place, node in enumerate(placeholders(module)):
            index = self.position(place, node.name, tangents)
            if index is None and node.users:
                return None
            if index is None:
                graph.erase_node(node)
            else:
                places.append(index)
        gradients = output_values(module)[self.first_source : self.first_source + self.source_count]
        graph.output_node().args = (tuple(gradients),)
        eliminate_dead(graph)
        module.recompile()
        return module, places

    def position(self, place: int, name: str, tangents: list[str]) -> int | None:
        """Where a placeholder's value is among what this stage's node has."""
        if place < self.number_count:
            return place
        if place < self.saved_count:
            return self.place_of(place) if place - self.number_count in self.used else None
        return self.number_count + len(self.used) + tangents.index(name) if name in tangents else None


class GradientLayout:
    """The layout that a trace assumed of a gradient. Strides are None where they are symbolic."""

    def __init__(self, value: torch.Tensor) -> None:
        self.strides: tuple[int, ...] | None = None
        if all(isinstance(stride, int) for stride in value.stride()):
            self.strides = tuple(value.stride())
        dims = zip(value.stride(), range(value.dim()), strict=True)
        order = [dim for _, dim in sorted(dims, key=lambda pair: (-pair[0], pair[1]))]
        self.order = order if order != sorted(order) else None
        self.inverse = [order.index(dim) for dim in range(len(order))]

    def laid_out(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.order is None:
            return gradient.contiguous()
        return gradient.permute(self.order).contiguous().permute(self.inverse)


def by_source(mask: int, order: list[int]) -> int:
    """A mask of a node's edges as one of a stage's sources."""
    return sum(1 << source for place, source in enumerate(order) if mask >> place & 1)


@contextlib.contextmanager
def in_state(state: GlobalState) -> Iterator[None]:
    """In the block torch's settings are those of a snapshot."""
    now = GlobalState()
    state.restore()
    try:
        yield
    finally:
        now.restore()
