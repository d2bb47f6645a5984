"""The backend ``kiln`` compiles graphs to machine code. A graph that cannot be lowered runs operator by operator."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from .._native import OperatorProgram
from ..aot.captured_graphs import compile_captured
from ..aot.compilation import Compilers
from ..aot.runtime.boxing import Boxed, boxed_graph
from ..config import config
from ..platform.torch_fake import without_torch_compiler
from ..program import graph_meta
from ..program.graph import count_operations
from ..program.graph_device import device_of_graph
from ..program.quiet import without_collections
from ..report import events
from ..report.events import raised_text
from ..report.node_places import program_name
from ..report.stages import stage
from ..target.target import Target
from . import program_cache
from .convolutions.bias import split_bias
from .convolutions.layouts import lay_out_convolutions
from .host_part import TwoPrograms, parts_of
from .rewrites.aligned_products import align_products
from .rewrites.equal_nodes import merge_equal_nodes
from .rewrites.joint_rewrites import rewrite_joint
from .rewrites.pooling_offsets import save_offsets
from .targets import target_of

if TYPE_CHECKING:
    from .pipeline import BegunProgram


def compile_captured_graph(
    module: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    check: bool = False,
    disable_kernels: Iterable[str] = (),
    cuda_graphs: bool = False,
    autotune: bool = False,
) -> Callable[..., Any]:
    """A captured graph, differentiated ahead of time, with forward and backward compiled. ``check``: each kernel runs
    beside eager, and `kiln.exc.CheckFailed` names the first that differs. ``disable_kernels``: what ATen is to run,
    besides `config.disable_kernels` (disabled_kernels.py). ``cuda_graphs``: programs are recorded. ``autotune``: calls
    of libraries are measured where there are several ways to make them."""
    disabled = config.disable_kernels | frozenset(disable_kernels)
    settings: dict[str, Any] = {"check": check, "disabled": disabled, "autotune": autotune}
    ahead = None if check or autotune else BackwardsAhead()
    forward, backward, inference = (
        functools.partial(compile_graph, kind=kind, ahead=ahead, **settings)
        for kind in ("forward", "backward", "inference")
    )
    prepare = drop_unread if check else prepare_joint  # ATen's operators run beside the kernels
    compilers = Compilers(forward, backward, inference, prepare=prepare, ahead=ahead.add if ahead is not None else None)
    with without_collections():
        return compile_captured(module, examples, recorded(compilers) if cuda_graphs and not check else compilers)


def record_captured_graph(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A captured graph, differentiated ahead of time, whose operators run one by one, recorded into CUDA graphs."""

    def compiler(module: torch.fx.GraphModule, examples: Sequence[Any] = ()) -> Boxed:
        return boxed_graph(module)

    return compile_captured(module, examples, recorded(Compilers(compiler, compiler, compiler)))


def recorded(compilers: Compilers) -> Compilers:
    """Compilers whose programs are recorded into CUDA graphs."""
    from .cuda_graphs.recorded_program import record_calls

    def recording(compiler: Callable[..., Any], is_backward: bool = False) -> Callable[..., Any]:
        return lambda module, examples: record_calls(compiler(module, examples), module, is_backward)

    return dataclasses.replace(
        compilers,
        forward=recording(compilers.forward),
        backward=recording(compilers.backward, is_backward=True),
        inference=recording(compilers.inference),
    )


def compile_graph(
    module: torch.fx.GraphModule,
    examples: Sequence[Any] = (),
    check: bool = False,
    kind: str = "graph",
    disabled: frozenset[str] = frozenset(),
    autotune: bool = False,
    ahead: BackwardsAhead | None = None,
) -> Boxed:
    """A functional graph as a program: a function of a list that it empties. ``kind``: what its range in torch's
    profiler is called, such as "forward". ``ahead``: what else is to be begun, or was."""
    made = ahead.take(module) if ahead is not None else None
    whole = made is not None or check or device_of_graph(module).type == "cpu"
    parts = None if whole else parts_of(module)
    if parts is None:
        return compile_whole(module, check, kind, disabled, autotune, ahead, made)
    host = compile_whole(parts.host, check, f"{kind}, on the CPU,", disabled, autotune)
    return TwoPrograms(host, compile_whole(parts.rest, check, kind, disabled, autotune, ahead), parts)


def compile_whole(
    module: torch.fx.GraphModule,
    check: bool,
    kind: str,
    disabled: frozenset[str],
    autotune: bool,
    ahead: BackwardsAhead | None = None,
    made: GraphProgram | None = None,
) -> Boxed:
    """A graph as one program, which may have been begun."""
    with stage("program") as record, without_collections(), without_torch_compiler():
        if record is not None:
            record.sizes["nodes"] = count_operations(module.graph)
        how: dict[str, Any] = {"check": check, "disabled": disabled, "autotune": autotune}
        if made is None:
            made = GraphProgram(module, **how)
            made.begin()
        if ahead is not None and kind == "forward" and made.begun is not None:
            ahead.begin(**how)
        program = made.finish()
        if isinstance(program, OperatorProgram):
            program.name = program_name(module, kind)
        return program


class GraphProgram:
    """The program of a functional graph: from the disk cache, compiled, or the graph operator by operator. `begin` does
    what has to be done now; `finish` gives the program."""

    def __init__(self, module: torch.fx.GraphModule, check: bool, disabled: frozenset[str], autotune: bool) -> None:
        self.module, self.check, self.disabled, self.autotune = module, check, disabled, autotune
        self.found: Boxed | None = None
        self.begun: BegunProgram | None = None
        self.refused: str | None = None

    def begin(self) -> None:
        module = self.module
        otherwise, target = EagerGraph(module), target_of(module)
        measured = measured_identity(target) if self.autotune else ()
        key = None if self.check else program_cache.key_of(module, target, self.disabled, measured)
        with stage("load") as record:
            found = None if events.is_asked_about_code() else program_cache.load(key, module, target, otherwise)
            if record is not None:
                record.sizes["cached programs"] = int(found is not None)
        if isinstance(found, program_cache.StoredRefusal):
            self.refused = found.reason
        elif found is not None:
            self.found = found
        else:
            from .pipeline import BegunProgram  # not imported where the program is in the cache

            self.begun = BegunProgram(module, target, otherwise, key, self.check, self.disabled, self.autotune)
            self.found = self.unless_refused(self.begun.begin)

    def finish(self) -> Boxed:
        if self.begun is not None and self.refused is None:
            self.found = self.unless_refused(self.begun.finish)
        if self.found is not None:
            return self.found
        if self.refused is not None:
            events.not_lowered(self.refused)
        return boxed_graph(self.module)

    def unless_refused(self, work: Callable[[], Boxed | None]) -> Boxed | None:
        from ..lower.lowering import CannotLower

        try:
            return work()
        except CannotLower as reason:
            self.refused = str(reason)
        except Exception as error:
            if config.raise_internal_errors:
                raise
            self.refused = raised_text(error)
        return None


class BackwardsAhead:
    """Backward graphs whose programs are begun while the kernels of the forward are compiled: this thread would only
    wait, and theirs are then compiled while the forward runs. Only where threads compile without Python's lock."""

    def __init__(self) -> None:
        self.waiting: list[torch.fx.GraphModule] = []
        self.begun: dict[torch.fx.GraphModule, GraphProgram] = {}

    def add(self, module: torch.fx.GraphModule) -> None:
        """A graph that will be compiled. Not where the program wants to be told of that: it is told when it happens."""
        if target_of(module).compiles_aside and not events.recordings():
            self.waiting.append(module)

    def begin(self, **how: Any) -> None:
        while self.waiting:
            module = self.waiting.pop()
            # An error shows when the backward is compiled.
            with contextlib.suppress(Exception), stage("backward, ahead"):
                program = GraphProgram(module, **how)
                program.begin()
                self.begun[module] = program

    def take(self, module: torch.fx.GraphModule) -> GraphProgram | None:
        if module in self.waiting:
            self.waiting.remove(module)
        return self.begun.pop(module, None)


def measured_identity(target: Target) -> tuple[str, ...]:
    """What decisions by measuring depend on, besides the graph; nothing where there is no GPU."""
    if not target.is_gpu:
        return ()
    from .choices.measuring import identity_of, is_possible

    if not is_possible():
        return ()
    return ("autotuned", *identity_of(target.device))


def prepare_joint(module: torch.fx.GraphModule) -> None:
    graph_meta.set_normalizes_by_formula(module)
    drop_unread(module)
    if device_of_graph(module).type == "cuda":
        split_bias(module)
        save_offsets(module)
        lay_out_convolutions(module)
        rewrite_joint(module)
        align_products(module)
    merge_equal_nodes(module)


def drop_unread(module: torch.fx.GraphModule) -> None:
    """Drops arguments that operators take but do not read, so that they are not saved for backward."""
    batch_norm = torch.ops.aten.native_batch_norm_backward.default
    for node in module.graph.find_nodes(op="call_function", target=batch_norm):
        gradient, given, weight, _, _, mean, deviation, is_training, *rest = node.args
        if is_training is True:  # the running statistics are not read
            node.args = (gradient, given, weight, None, None, mean, deviation, is_training, *rest)


class EagerGraph:
    """Runs the graph operator by operator, for inputs that are tensor subclasses; built when it is first needed."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.run: Boxed | None = None

    def __call__(self, arguments: list[Any]) -> Any:
        if self.run is None:
            self.run = boxed_graph(self.module)
        return self.run(arguments)
