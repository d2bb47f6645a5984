"""From a captured graph to a function: trace, partition, compile, wrap.

The forward is compiled at once. A backward is compiled when it first runs, for the pattern of gradients that it meets:
which of the incoming ones are defined, which of the outgoing ones are wanted. So a gradient that is undefined in eager
is undefined here, and nothing is computed for nobody. All patterns share what the forward saved.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from .._native import GlobalState
from ..platform.locks import new_lock
from ..program.graph import count_operations
from ..program.graph_meta import set_changed_inputs
from ..program.shapes.fake_tensors import make_mode, without_torch_compiler
from ..program.shapes.symbolic_kernels import symbolic_kernels
from ..program.unsupported import Unsupported
from ..report import events
from ..report.stages import stage as report_stage
from .partition.backward_extraction import CannotExtract, extract_backward, saved_names, split_stages
from .partition.graph_cleanup import eliminate_dead
from .partition.joint_nodes import ancestors
from .partition.partitioners import min_cut_partition, saved_bytes
from .partition.random_replay import tie_random_pairs
from .partition.recompute_cost import root_of
from .reporting import report, report_inference
from .runtime.aliased_inputs import Group, Sharing
from .runtime.boxing import Boxed, boxed
from .runtime.higher_order import CallContext, Rerun
from .runtime.run_function import RunText
from .trace import autocast_state
from .trace.hook_calls import with_hooks
from .trace.input_specs import has_symbols, specs_of
from .trace.joint_tracer import Joint, Pattern, SharedInputs, trace

Tensor, STRIDED = torch.Tensor, torch.strided
Key = tuple[int, int] | tuple[int, int, autocast_state.State]
Graph = tuple[torch.fx.GraphModule, list[int]]  # with the places of what it takes
autocast_is_on = autocast_state.is_on


@dataclass
class Compilers:
    """Who compiles what."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    inference: Callable[..., Any]
    partition: Callable[..., Any] | None = None
    decompositions: dict[Any, Any] | None = None
    prepare: Callable[[torch.fx.GraphModule], None] | None = None  # changes a joint graph before it is split


def compile_flat(
    program: torch.fx.GraphModule | Callable[..., Any], examples: Sequence[Any], compilers: Compilers
) -> Callable[..., list[Any]]:
    """A function of the same flat inputs that gives the flat list of results, compiled."""
    try:
        return Compilation(program, examples, compilers).run
    except SharedInputs:
        if not isinstance(program, torch.fx.GraphModule):
            raise
        return sharing(program, compilers).run


def sharing(program: torch.fx.GraphModule, compilers: Compilers) -> Sharing:
    """A program whose inputs share memory, which it changes."""

    def compile_program(module: torch.fx.GraphModule, examples: Sequence[Any], groups: list[Group]) -> Callable:
        first = len(groups)
        shared = [(number, [first + index for index in group.members]) for number, group in enumerate(groups)]
        return Compilation(module, examples, compilers, shared).run

    return Sharing(program, compile_program)


class Compilation:
    """One compiled program: its forward, and the backwards made so far."""

    def __init__(
        self,
        program: Any,
        examples: Sequence[Any],
        compilers: Compilers,
        shared: Sequence[tuple[int, Sequence[int]]] = (),
    ) -> None:
        self.program, self.compilers, self.shared = program, compilers, shared
        self.state = GlobalState()
        self.mode = find_mode(examples)
        placeholders = None
        if isinstance(program, torch.fx.GraphModule):
            placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        self.specs = specs_of(examples, placeholders)
        self.lock = new_lock()
        with heard() as said:
            joint = self.trace(None)
        self.environment = self.mode.shape_env
        self.guards = self.guard_count()
        if joint.stages:
            refuse_offsets(joint)
            self.compile_training(joint)
        else:
            self.compile_inference(joint)
        if said:
            self.run = saying(said, self.run)

    def trace(self, pattern: Pattern | None) -> Joint:
        quiet = torch.autograd.set_detect_anomaly(False)  # there are no numbers to look at
        kernels = symbolic_kernels(has_symbols(self.specs), recorded=True)
        with report_stage("aot trace") as record:
            with events.at_work(), without_torch_compiler(), unnumbered_hooks(), quiet, as_in_training(), kernels:
                table = self.compilers.decompositions or {}
                joint = trace(self.program, self.specs, self.mode, table, pattern, self.shared)
            if record is not None:
                record.sizes["nodes"] = count_operations(joint.module.graph)
        if self.compilers.prepare is not None:
            self.compilers.prepare(joint.module)
        return joint

    def guard_count(self) -> int:
        return len(self.environment.guards) if self.environment is not None else 0

    def eager(self) -> Callable[..., Any]:
        return self.program.forward if isinstance(self.program, torch.fx.GraphModule) else self.program

    def when_shared(self) -> Callable[..., Any]:
        """What runs when inputs share memory that the program changes."""
        if isinstance(self.program, torch.fx.GraphModule):
            return sharing(self.program, self.compilers).run
        return self.eager()

    # -- without gradients ------------------------------------------------------------------------------------------

    def compile_inference(self, joint: Joint) -> None:
        eliminate_dead(joint.module.graph)
        joint.module.recompile()
        report_inference(self.program, joint.module)
        forward, written = self.compile_forward(self.compilers.inference, joint.module, joint)
        self.run = RunText(joint, torch.is_grad_enabled(), self.when_shared(), written).write(
            forward, self.eager(), [], ([], []), {}
        )

    # -- with gradients ---------------------------------------------------------------------------------------------

    def compile_training(self, joint: Joint) -> None:
        tie_random_pairs(joint.module)
        partition = self.compilers.partition or min_cut_partition
        inputs = [node.meta.get("val") for node in joint.module.graph.nodes if node.op == "placeholder"]
        holds = self.holds(joint)
        with report_stage("partition") as record:
            forward, backward = partition(joint.module, inputs, num_fwd_outputs=joint.forward_count)
            if record is not None:
                record.sizes["forward nodes"] = count_operations(forward.graph)
                record.sizes["backward nodes"] = count_operations(backward.graph)
                record.sizes["bytes saved"] = saved_bytes(forward, joint.forward_count).activation_bytes
        self.forward_count = joint.forward_count
        self.saved_names = saved_names(forward, joint.forward_count)
        kept = output_values(forward)[joint.forward_count :]
        tensors = [i for i, node in enumerate(kept) if isinstance(node.meta.get("val"), torch.Tensor)]
        numbers = [i for i in range(len(kept)) if i not in tensors]
        modules = {"joint": joint.module, "forward": forward, "backward": backward}
        report(self.program, self.specs, self.mode, modules, joint.forward_count)
        self.stages = split_stages(backward, stage_groups(joint)) if len(joint.stages) > 1 else None
        compiled, written = self.compile_forward(self.compilers.forward, forward, joint)
        rerun = Rerun(self.eager(), joint, self.state)
        stages = []
        for number in range(len(joint.stages)):
            module, used = backward, list(range(len(tensors)))
            given: list[int] | None = None
            if self.stages is not None:
                module = self.stages[number].module
                given = list(self.stages[number].saved)
                used = [place - len(numbers) for place in given if place >= len(numbers)]
            table = Backwards(self, number, joint, module, given, len(numbers), len(tensors), used)
            higher = rerun_of(rerun, number, joint.stages[number].order)
            stages.append((f"KilnBackward{number or ''}", table, higher, used))
        self.run = RunText(joint, torch.is_grad_enabled(), self.when_shared(), written).write(
            compiled, self.eager(), stages, (tensors, numbers), holds
        )

    def holds(self, joint: Joint) -> dict[int, str]:
        """Changed inputs, and how they are kept to run again: as they were, if results depend on that."""
        own = (memory.storage for memory in joint.memories if memory.parent is None)
        content = dict(zip(own, output_values(joint.module), strict=False))
        roots = [memory.storage for memory in joint.memories if memory.edge is not None]
        read = ancestors([content.get(storage, storage.node) for storage in roots])
        changed = {memory.input for memory in joint.memories if memory.input is not None} | set(joint.metadata)
        return {
            index: "{name}.clone()" if joint.input_nodes[index] in read else "({name},)"
            for index in sorted(changed)  # type: ignore[type-var]
        }

    def compile_forward(
        self, compiler: Callable[..., Any], module: torch.fx.GraphModule, joint: Joint
    ) -> tuple[Boxed, frozenset[int]]:
        """The compiled graph, and the inputs that it gives their new content.

        A compiler may let a graph write new contents of inputs into them (`graph_meta.set_changed_inputs`); what it
        gives says by ``written_inputs`` which results need not be copied any more.
        """
        changed = changed_inputs(joint)
        set_changed_inputs(module, changed)
        compiled = boxed(self.call_compiler(compiler, module))
        inputs = [index for index, node in enumerate(joint.input_nodes) if node is not None]
        written = frozenset(inputs[changed[place]] for place in getattr(compiled, "written_inputs", ()))
        return (autocast_state.without(compiled) if autocast_state.is_on() else compiled), written

    def call_compiler(self, compiler: Callable[..., Any], module: torch.fx.GraphModule) -> Callable[..., Any]:
        examples = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
        return compiler(module, examples)


OFFSET_VIEWS = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)


def refuse_offsets(joint: Joint) -> None:
    """`as_strided` counts from where a storage begins, and its derivative goes by where the input does: that is not
    known here, and no guard says it."""
    if joint.members:
        return  # views of memory that starts at its beginning
    inputs = {node for node in joint.input_nodes if node is not None}
    for node in joint.module.graph.nodes:
        if node.target in OFFSET_VIEWS and len(node.args) > 3 and node.args[3] is not None:
            if root_of(node.args[0]) in inputs:
                raise Unsupported("as_strided with an offset, of an input: gradients depend on where it begins")


class Backwards:
    """The backwards of one stage, by pattern; called by the stage's node."""

    def __init__(
        self,
        owner: Compilation,
        number: int,
        joint: Joint,
        module: torch.fx.GraphModule,
        given: list[int] | None,
        number_count: int,
        tensor_count: int,
        used: list[int],
    ) -> None:
        self.owner, self.number, self.module = owner, number, module
        self.given, self.number_count, self.tensor_count, self.used = given, number_count, tensor_count, used
        stage = joint.stages[number]
        self.all_defined = (1 << len(stage.roots)) - 1
        self.all_needed = (1 << len(stage.sources)) - 1
        self.source_count = len(stage.sources)
        self.order = stage.order if stage.order != sorted(stage.order) else None
        self.first_source = sum(len(earlier.sources) for earlier in joint.stages[:number])
        self.layouts = [Layout(root.value) for root in stage.roots]
        self.strides = [layout.strides for layout in self.layouts]
        self.has_hooks = any(r.slot is not None and r.place is None for r in joint.registrations)
        self.table: dict[Key, Boxed | None] = {}
        self.graphs: dict[Key, Graph | None] = {}

    def __call__(self, defined: int, needed: int, saved: list[Any], gradients: list[Any], context: CallContext) -> Any:
        try:
            compiled = self.table[(defined, needed) if not autocast_is_on() else self.key(defined, needed)]
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
                self.table[key] = (
                    autocast_state.without(compiled) if compiled is not None and len(key) > 2 else compiled
                )
            return self.table[key]

    def compile(self, *key: Any) -> Boxed | None:
        with report_stage("backward", str(self.number or "")) as record:
            found = self.graph(*key)
            if found is None:
                return None
            module, places = found
            compiled = boxed(self.owner.call_compiler(self.owner.compilers.backward, module))
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
        """The graph for these gradients under the autocast that is active, not compiled; None where there is none.

        What it takes, and where that is among saved numbers, saved tensors and gradients.
        """
        key = self.key(defined, needed)
        with self.owner.lock:
            if key not in self.graphs:
                self.graphs[key] = self.graph(*key)
            return self.graphs[key]

    def graph(self, defined: int, needed: int, autocast: autocast_state.State = ()) -> Graph | None:
        owner = self.owner
        if self.order is not None:
            needed = by_source(needed, self.order)
        if (defined, needed, autocast) == (self.all_defined, self.all_needed, ()):
            return self.module, self.own_places()
        try:
            with heard(), without_grad_context(owner):
                joint = owner.trace(Pattern(self.number, defined, needed, autocast))
            tie_random_pairs(joint.module)
            module = extract_backward(joint.module, owner.saved_names, owner.forward_count)
        except (CannotExtract, Unsupported, NotImplementedError):  # torch cannot do the latter without data
            return None
        if owner.guard_count() != owner.guards:
            return None  # the guards of this entry are written already
        return self.fit(module, joint)

    def own_places(self) -> list[int]:
        """The stage's own part of what is given: all numbers, the saved tensors that it has, its gradients."""
        first = self.number_count + len(self.used)
        gradients = list(range(first, first + len(self.layouts)))
        if self.given is None:
            return [*range(first), *gradients]
        return [*(self.place_of(place) for place in self.given), *gradients]

    def place_of(self, place: int) -> int:
        """Where something saved by the forward is among what this stage's node is given."""
        return place if place < self.number_count else self.number_count + self.used.index(place - self.number_count)

    def fit(self, module: torch.fx.GraphModule, joint: Joint) -> Graph | None:
        """A backward for another pattern, and where what it takes is among what this stage's node is given."""
        graph = module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        saved_count = self.number_count + self.tensor_count
        stage = joint.stages[self.number]
        mine = {root.tangent.name for root in stage.roots if root.tangent is not None}
        places: list[int] = []
        for place, node in enumerate(placeholders):
            index = self.position(place, saved_count, node.name, mine)
            if index is None and node.users:
                return None
            if index is None:
                graph.erase_node(node)
            else:
                places.append(index)
        gradients = output_values(module)[self.first_source : self.first_source + self.source_count]
        output = next(node for node in reversed(graph.nodes) if node.op == "output")
        output.args = (tuple(gradients),)
        eliminate_dead(graph)
        module.recompile()
        return module, places

    def position(self, place: int, saved_count: int, name: str, mine: set[str]) -> int | None:
        """Where a placeholder's value is among what this stage's node is given."""
        if place < self.number_count:
            return place
        if place < saved_count:
            return self.place_of(place) if place - self.number_count in self.used else None
        if name not in mine:
            return None
        numbers = sorted(int(other.rsplit("_", 1)[1]) for other in mine)
        return self.number_count + len(self.used) + numbers.index(int(name.rsplit("_", 1)[1]))


class Layout:
    """How a gradient is laid out where the trace took it to be so. Strides are None where they are symbolic."""

    def __init__(self, value: torch.Tensor) -> None:
        self.strides: tuple[int, ...] | None = None
        if all(isinstance(stride, int) for stride in value.stride()):
            self.strides = tuple(value.stride())
        sizes = zip(value.stride(), range(value.dim()), strict=True)
        order = [dim for _, dim in sorted(sizes, key=lambda pair: (-pair[0], pair[1]))]
        self.order = order if order != sorted(order) else None
        self.inverse = [order.index(dim) for dim in range(len(order))]

    def laid_out(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.order is None:
            return gradient.contiguous()
        return gradient.permute(self.order).contiguous().permute(self.inverse)


def by_source(mask: int, order: list[int]) -> int:
    """A mask of edges as one of sources."""
    return sum(1 << source for place, source in enumerate(order) if mask >> place & 1)


def rerun_of(rerun: Rerun, number: int, order: list[int]) -> Callable[..., Any]:
    def higher(defined: int, needed: int, inputs: list[Any], gradients: list[Any], context: CallContext) -> list[Any]:
        found = rerun(number, defined, by_source(needed, order), inputs, gradients, context)
        return [found[place] for place in order]

    return higher


class without_grad_context:
    """The state in which the program was traced first, for tracing it again inside a backward."""

    def __init__(self, owner: Compilation) -> None:
        self.owner = owner

    def __enter__(self) -> None:
        self.now = GlobalState()
        self.owner.state.restore()

    def __exit__(self, *error: Any) -> None:
        self.now.restore()


@contextlib.contextmanager
def as_in_training() -> Iterator[None]:
    """In inference mode operations take another way through torch, which cannot be recorded: nothing is differentiated
    without it either."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def unnumbered_hooks() -> Iterator[None]:
    """Hooks on fakes do not count: numbers of hooks can be seen."""
    following = RemovableHandle.next_id
    try:
        yield
    finally:
        RemovableHandle.next_id = following


@contextlib.contextmanager
def heard() -> Iterator[list[warnings.WarningMessage]]:
    """What the program warns of while it is traced, which it would do in each call: kept, and not counted as said."""
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            yield said
        finally:
            torch.set_warn_always(always)


def saying(said: list[warnings.WarningMessage], run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that warns as the program does."""

    def warn_and_run(*inputs: Any) -> Any:
        for told in said:
            warnings.warn_explicit(told.message, told.category, told.filename, told.lineno)
        return run(*inputs)

    return warn_and_run


def changed_inputs(joint: Joint) -> dict[int, int]:
    """The results of a graph that are nothing but new contents of inputs, and those inputs, both by place."""
    inputs = [index for index, node in enumerate(joint.input_nodes) if node is not None]
    results = [memory for memory in joint.memories if memory.parent is None]
    return {
        place: inputs.index(memory.input)
        for place, memory in enumerate(results)
        if memory.input in inputs and memory.edge is None and not joint.is_shared
        if memory.input not in joint.metadata and not joint.specs[memory.input].is_inference
    }


def stage_groups(joint: Joint) -> list[tuple[list[str], list[int]]]:
    groups, first = [], 0
    for stage in joint.stages:
        positions = list(range(first, first + len(stage.sources)))
        groups.append(([root.tangent.name for root in stage.roots if root.tangent is not None], positions))
        first += len(stage.sources)
    return groups


def output_values(module: torch.fx.GraphModule) -> list[Any]:
    return list(next(node for node in reversed(module.graph.nodes) if node.op == "output").args[0])


def find_mode(examples: Sequence[Any]) -> Any:
    """The mode of the fakes among the examples, or a new one."""
    from torch._subclasses.fake_tensor import FakeTensor

    for value in examples:
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return make_mode()
