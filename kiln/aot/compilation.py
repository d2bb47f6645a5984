"""From a captured graph, or a function, to a run function: trace, partition, compile, wrap."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from .._native import GlobalState
from ..platform.light_dataclass import dataclass
from ..platform.locks import new_lock
from ..platform.torch_fake import FakeTensor, without_torch_compiler
from ..platform.torch_symbols import keeping_guards
from ..program.graph import count_operations
from ..program.graph_meta import set_changed_inputs, set_visible_results
from ..program.graph_modules import output_values, placeholders
from ..program.shapes.fake_tensors import make_mode
from ..program.shapes.symbolic_kernels import symbolic_kernels
from ..program.unsupported import Unsupported
from ..report import events
from ..report.stages import stage
from .partition.backward_extraction import split_stages
from .partition.graph_cleanup import eliminate_dead
from .partition.node_values import sources_of_values
from .partition.partitioned_graph import partition_graph
from .partition.partitioners import min_cut_partition
from .partition.random_replay import tie_random_pairs
from .partition.recompute_cost import root_of
from .reporting import report, report_inference
from .runtime.aliased_inputs import AliasGroup, AliasVariants
from .runtime.backward_table import BackwardTable, by_source
from .runtime.boxing import Boxed, boxed, written_inputs
from .runtime.higher_order import CallContext, HigherOrderBackward
from .runtime.program_warnings import recorded_warnings, with_warnings
from .runtime.run_function import CompiledGraph, CompiledStage, RunFunctionWriter
from .trace import autocast_state
from .trace.input_specs import has_symbols, specs_of
from .trace.joint_graph import AliasedInputs, JointGraph, Pattern
from .trace.joint_tracer import trace

OFFSET_VIEWS = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)


@dataclass
class Compilers:
    """Who compiles what."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    inference: Callable[..., Any]
    partition: Callable[..., Any] | None = None
    decompositions: dict[Any, Any] | None = None
    prepare: Callable[[torch.fx.GraphModule], None] | None = None  # changes a joint graph before it is split
    ahead: Callable[[torch.fx.GraphModule], None] | None = None  # told of backwards before the forward is compiled


def compile_flat(
    program: torch.fx.GraphModule | Callable[..., Any], examples: Sequence[Any], compilers: Compilers
) -> Callable[..., list[Any]]:
    """A function of the same flat inputs that gives the flat list of results, compiled."""
    try:
        return Compilation(program, examples, compilers).run
    except AliasedInputs:
        if not isinstance(program, torch.fx.GraphModule):
            raise
        return alias_variants(program, compilers).run


def compile_boxed(program: torch.fx.GraphModule, examples: Sequence[Any], compilers: Compilers) -> Boxed:
    """The same as a function of one list, which it empties."""
    try:
        return Compilation(program, examples, compilers, takes_list=True).run
    except AliasedInputs:
        return boxed(alias_variants(program, compilers).run)


def alias_variants(program: torch.fx.GraphModule, compilers: Compilers) -> AliasVariants:
    """A program whose inputs share memory, which it changes."""

    def compile_program(
        module: torch.fx.GraphModule, examples: Sequence[Any], groups: list[AliasGroup]
    ) -> Callable[..., list[Any]]:
        first = len(groups)
        aliased = [(number, [first + index for index in group.members]) for number, group in enumerate(groups)]
        return Compilation(module, examples, compilers, aliased).run

    return AliasVariants(program, compile_program)


class Compilation:
    """One compiled program: its forward, and the backwards made so far."""

    run: Callable[..., list[Any]]

    def __init__(
        self,
        program: Any,
        examples: Sequence[Any],
        compilers: Compilers,
        aliased: Sequence[tuple[int, Sequence[int]]] = (),
        takes_list: bool = False,
    ) -> None:
        self.program, self.compilers, self.aliased, self.takes_list = program, compilers, aliased, takes_list
        self.state = GlobalState()
        self.mode = next((value.fake_mode for value in examples if isinstance(value, FakeTensor)), None) or make_mode()
        self.specs = specs_of(examples, placeholders(program) if isinstance(program, torch.fx.GraphModule) else None)
        self.lock = new_lock()
        with recorded_warnings() as warned:
            joint = self.trace(None)
        self.guards = self.guard_count()
        if joint.stages:
            refuse_offsets(joint)
            compiled = self.compile_training(joint)
        else:
            compiled = self.compile_inference(joint)
        run = RunFunctionWriter(compiled, takes_list).write()
        self.run = with_warnings(warned, run) if warned else run

    def trace(self, pattern: Pattern | None) -> JointGraph:
        quiet = torch.autograd.set_detect_anomaly(False)  # fakes have no values to check
        kernels = symbolic_kernels(has_symbols(self.specs), recorded=True)
        guards = keeping_guards(self.mode.shape_env)  # has_new_guards looks for them
        settings = unnumbered_hooks(), quiet, outside_inference_mode(), kernels, guards
        with (
            stage("aot trace") as record,
            events.in_compiler(),
            without_torch_compiler(),
            contextlib.ExitStack() as stack,
        ):
            for setting in settings:
                stack.enter_context(setting)
            table = self.compilers.decompositions or {}
            joint = trace(self.program, self.specs, self.mode, table, pattern, self.aliased)
            if record is not None:
                record.sizes["nodes"] = count_operations(joint.module.graph)
        if self.compilers.prepare is not None:
            self.compilers.prepare(joint.module)
        return joint

    def guard_count(self) -> int:
        environment = self.mode.shape_env
        return len(environment.guards) if environment is not None else 0

    def has_new_guards(self) -> bool:
        """Whether a later trace assumed more of sizes than the entry's guards check."""
        return self.guard_count() != self.guards

    def eager(self) -> Callable[..., Any]:
        return self.program.forward if isinstance(self.program, torch.fx.GraphModule) else self.program

    def run_aliased(self) -> Callable[..., Any]:
        """What runs when inputs share memory that the program changes."""
        if isinstance(self.program, torch.fx.GraphModule):
            return alias_variants(self.program, self.compilers).run
        return self.eager()

    # -- without gradients ------------------------------------------------------------------------------------------

    def compile_inference(self, joint: JointGraph) -> CompiledGraph:
        eliminate_dead(joint.module.graph)
        joint.module.recompile()
        report_inference(self.program, joint.module)
        forward, written = self.compile_forward(self.compilers.inference, joint.module, joint)
        return CompiledGraph(joint, forward, self.eager(), self.run_aliased(), written)

    # -- with gradients ---------------------------------------------------------------------------------------------

    def compile_training(self, joint: JointGraph) -> CompiledGraph:
        tie_random_pairs(joint.module, joint.replayed)
        held = held_inputs(joint)
        parts = partition_graph(joint.module, joint.forward_count, self.compilers.partition or min_cut_partition)
        modules = {"joint": joint.module, "forward": parts.forward, "backward": parts.backward}
        report(self.program, self.specs, self.mode, modules, joint.forward_count)
        backwards = split_stages(parts.backward, stage_groups(joint)) if len(joint.stages) > 1 else [None]
        set_visible_results(parts.forward, joint.forward_count)
        if self.compilers.ahead is not None:
            for part in backwards:
                self.compilers.ahead(parts.backward if part is None else part.module)
        forward, written = self.compile_forward(self.compilers.forward, parts.forward, joint)
        higher = HigherOrderBackward(self.eager(), joint, self.state)
        stages = []
        for number, part in enumerate(backwards):
            table = BackwardTable(self, number, joint, parts, part)
            order = joint.stages[number].order
            name = f"KilnBackward{number or ''}"
            stages.append(CompiledStage(name, table, higher_of_stage(higher, number, order), table.used))
        return CompiledGraph(
            joint,
            forward,
            self.eager(),
            self.run_aliased(),
            written,
            stages,
            parts.saved_tensors,
            parts.saved_numbers,
            held,
        )

    def compile_forward(
        self, compiler: Callable[..., Any], module: torch.fx.GraphModule, joint: JointGraph
    ) -> tuple[Boxed, frozenset[int]]:
        """The compiled graph, and the inputs that it gives their new content itself (`set_changed_inputs`)."""
        changed = changed_inputs(joint)
        set_changed_inputs(module, changed)
        compiled = boxed(call_compiler(compiler, module))
        inputs = [index for index, node in enumerate(joint.input_nodes) if node is not None]
        written = frozenset(inputs[changed[place]] for place in written_inputs(compiled))
        return (autocast_state.without(compiled) if autocast_state.is_on() else compiled), written

    def compile_backward(self, module: torch.fx.GraphModule) -> Boxed:
        return boxed(call_compiler(self.compilers.backward, module))


def call_compiler(compiler: Callable[..., Any], module: torch.fx.GraphModule) -> Callable[..., Any]:
    compiled: Callable[..., Any] = compiler(module, [node.meta.get("val") for node in placeholders(module)])
    return compiled


def refuse_offsets(joint: JointGraph) -> None:
    """`as_strided` counts from the start of a storage, and its derivative depends on where the input starts: that is
    not known here, and no guard checks it."""
    if joint.aliases:
        return  # views of memory from its start
    inputs = {node for node in joint.input_nodes if node is not None}
    for node in joint.module.graph.nodes:
        if node.target in OFFSET_VIEWS and len(node.args) > 3 and node.args[3] is not None:
            if root_of(node.args[0]) in inputs:
                raise Unsupported("as_strided with an offset, of an input: gradients depend on where it begins")


def held_inputs(joint: JointGraph) -> dict[int, bool]:
    """Changed inputs, which are kept to run again; and whether as copies, because results depend on the old content."""
    own = (memory.storage for memory in joint.memories if memory.parent is None)
    content = dict(zip(own, output_values(joint.module), strict=False))
    roots = [memory.storage for memory in joint.memories if memory.edge is not None]
    read = sources_of_values([content.get(storage, storage.node) for storage in roots])
    return {index: joint.input_nodes[index] in read for index in sorted({*joint.changed_inputs, *joint.reshaped})}


def higher_of_stage(rerun: HigherOrderBackward, number: int, order: list[int]) -> Callable[..., list[Any]]:
    def higher(defined: int, needed: int, inputs: list[Any], gradients: list[Any], context: CallContext) -> list[Any]:
        found = rerun(number, defined, by_source(needed, order), inputs, gradients, context)
        return [found[place] for place in order]

    return higher


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """In inference mode operations take another path through torch, which cannot be recorded. Without it, too, nothing
    is differentiated here."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def unnumbered_hooks() -> Iterator[None]:
    """Hooks on fakes get no numbers of their own: programs can see the numbers of hooks."""
    following = RemovableHandle.next_id
    try:
        yield
    finally:
        RemovableHandle.next_id = following


def changed_inputs(joint: JointGraph) -> dict[int, int]:
    """The results of a graph that are only new contents of inputs, and those inputs, both by position."""
    inputs = [index for index, node in enumerate(joint.input_nodes) if node is not None]
    results = [memory for memory in joint.memories if memory.parent is None]
    return {
        place: inputs.index(memory.input)
        for place, memory in enumerate(results)
        if memory.input in inputs and memory.edge is None and not joint.knows_aliasing
        if memory.input not in joint.reshaped and not joint.specs[memory.input].is_inference
    }


def stage_groups(joint: JointGraph) -> list[tuple[list[str], list[int]]]:
    """For each stage the names of its tangents, and the positions of its gradients."""
    groups, first = [], 0
    for part in joint.stages:
        positions = list(range(first, first + len(part.sources)))
        groups.append(([root.tangent.name for root in part.roots if root.tangent is not None], positions))
        first += len(part.sources)
    return groups
