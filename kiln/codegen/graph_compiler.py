"""The backend ``kiln`` compiles graphs to machine code. A graph that cannot be lowered runs operator by operator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from .._native import OperatorProgram
from ..aot.captured_graphs import compile_captured
from ..aot.compilation import Compilers
from ..aot.runtime.boxing import Boxed, boxed_graph
from ..config import config
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
from .equal_nodes import merge_equal_nodes
from .joint_rewrites import rewrite_joint
from .pooling_offsets import save_offsets
from .targets import target_of


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
    forward, backward, inference = (
        functools.partial(compile_graph, kind=kind, **settings) for kind in ("forward", "backward", "inference")
    )
    prepare = drop_unread if check else prepare_joint  # ATen's operators run beside the kernels
    compilers = Compilers(forward, backward, inference, prepare=prepare)
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
) -> Boxed:
    """A functional graph as a program: a function of a list that it empties. ``kind``: what its range in torch's
    profiler is called, such as "forward"."""
    with stage("program") as record, without_collections():
        if record is not None:
            record.sizes["nodes"] = count_operations(module.graph)
        program = load_or_compile(module, check, disabled, autotune)
        if isinstance(program, OperatorProgram):
            program.name = program_name(module, kind)
        return program


def load_or_compile(module: torch.fx.GraphModule, check: bool, disabled: frozenset[str], autotune: bool) -> Boxed:
    otherwise, target = EagerGraph(module), target_of(module)
    key = (
        None if check else program_cache.key_of(module, target, disabled, measured_identity(target) if autotune else ())
    )
    with stage("load") as record:
        found = None if events.is_asked_about_code() else program_cache.load(key, module, target, otherwise)
        if record is not None:
            record.sizes["cached programs"] = int(found is not None)
    if isinstance(found, program_cache.StoredRefusal):
        events.not_lowered(found.reason)
    elif found is not None:
        return found
    else:
        from ..lower.lowering import CannotLower  # not imported where the program is in the cache
        from .pipeline import compile_lowered

        try:
            return compile_lowered(module, target, otherwise, key, check, disabled, autotune)
        except CannotLower as reason:
            events.not_lowered(str(reason))
        except Exception as error:
            if config.raise_internal_errors:
                raise
            events.not_lowered(raised_text(error))
    return boxed_graph(module)


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
