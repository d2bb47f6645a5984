"""The public functions: functions, modules, and backends for ``kiln.compile``, compiled by any compiler of graphs.

A compiler is ``compiler(graph_module, example_inputs) -> callable``; its result is called with tensors, or, where it
has the attribute ``_boxed_call``, with one list that it may empty. Names and arguments are those of the ecosystem.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import Module

from .. import exc
from .._native import GlobalState, TensorCheck
from ..platform.torch_fake import FakeTensor
from ..program.backend_registry import backend_name
from .backend import compile_or_run
from .captured_graphs import compile_captured
from .closure_tensors import compile_closure
from .compilation import Compilers, compile_flat
from .dynamic_sizes import dynamic_dims, symbolic_inputs
from .module_state import ModuleState
from .pytree_calls import Call, Result, Version, Versions, flatten_call, symbolic_places
from .runtime.boxing import mark_boxed
from .wrapper_subclasses import UnwrappedProgram

Compiler = Callable[..., Callable[..., Any]]


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable[..., Any] | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    num_params_buffers: int = 0,
    hasher_type: Any = None,
    static_argnums: Any = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    dynamic: bool = False,
    **accepted: Any,
) -> Callable[..., Any]:
    """``fn`` with its forward and backward compiled by these compilers, for each form of its arguments.

    ``fn`` runs once on tensors without data: what it does to tensors is recorded, and everything else it does happens
    that once; tensors that it closes over are inputs too, the same in every call. (``kiln.compile`` is for programs
    that do more.) Arguments and results are pytrees. Leaves that are no tensors are constants; another constant, or a
    tensor with other metadata, is compiled for anew. With ``dynamic``, sizes are dynamic. The arguments from
    ``num_params_buffers`` to ``static_argnums``, and ``keep_inference_input_mutations``, are accepted and have no
    effect.
    """
    check_accepted("aot_function", accepted)
    if not callable(fn):
        raise exc.NotCallable(fn, "kiln.aot.aot_function")
    compilers = make_compilers(fw_compiler, bw_compiler, partition_fn, decompositions, inference_compiler)
    versions = Versions(lambda call: compile_call(fn, call, compilers, dynamic))

    @functools.wraps(fn, updated=())
    def compiled(*args: Any, **kwargs: Any) -> Any:
        call = flatten_call(args, kwargs)
        version = versions.find(call)
        return version.call(call)

    return compiled


def aot_module(mod: Module, *args: Any, **kwargs: Any) -> Module:
    """A module like ``mod``, its calls compiled as by `aot_function`; parameters and buffers are the graphs' inputs."""
    check_module("aot_module", mod)
    return AheadOfTimeModule(mod, aot_function(StatefulCall(mod), *args, **kwargs))


class AheadOfTimeModule(Module):
    """The result of `aot_module`: the original, called through its compiled versions."""

    def __init__(self, original: Module, compiled: Callable[..., Any]):
        super().__init__()
        self.orig_module = original
        self._compiled = compiled

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return write_back(*self._compiled(*state_arguments(self.orig_module), *args, **kwargs))


def aot_module_simplified(
    mod: Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable[..., Any] | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    **accepted: Any,
) -> Callable[..., Any]:
    """A module compiled at once for these example arguments; gives a function of the arguments.

    Where an example is a fake tensor or a symbolic number, the caller is a compiler, whose guards check that later
    arguments are like it. Where all are real, later calls are checked, and other arguments are compiled for anew.
    """
    check_accepted("aot_module_simplified", accepted)
    check_module("aot_module_simplified", mod)
    compilers = make_compilers(fw_compiler, bw_compiler, partition_fn, decompositions, inference_compiler)
    args = (args,) if isinstance(args, torch.Tensor) else args  # the output of a partial graph may be one tensor
    given = (*state_arguments(mod), *args)
    numbers = symbolic_places(given)
    first = flatten_call(given, {}, numbers)
    trusted = bool(numbers) or any(isinstance(tensor, FakeTensor) for tensor in first.tensors)
    versions = Versions(lambda call: compile_call(StatefulCall(mod), call, compilers))
    version = versions.make(first) if trusted else versions.find(first)

    def forward(*args: Any) -> Any:
        call = flatten_call((*state_arguments(mod), *args), {}, numbers)
        chosen = version if trusted else versions.find(call)
        return write_back(*chosen.call(call))

    methods = {name: getattr(mod, name) for name in ("zero_grad", "named_parameters", "named_buffers")}
    vars(forward).update(methods)
    return forward


class StatefulCall:
    """A call of a module with its state as the first arguments."""

    def __init__(self, module: Module):
        self.module = module
        self.__name__ = type(module).__name__

    def __call__(self, tensors: Sequence[Any], training: bytes, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        """The result, and the tensors by which the call replaced parameters and buffers."""
        with ModuleState(self.module).replaced(tensors) as changed:
            result = self.module(*args, **kwargs)
        return result, changed


def state_arguments(module: Module) -> tuple[list[torch.Tensor], bytes]:
    """A module's tensors, and which of its modules are in training mode, as a constant."""
    return ModuleState(module).tensors, bytes(each.training for each in module.modules())


def check_module(function: str, module: Any) -> None:
    if not isinstance(module, Module):
        raise exc.UserError(f"kiln.aot.{function} takes a module, not {type(module).__name__}")


def write_back(result: Any, changed: Sequence[Any]) -> Any:
    for place, value in changed:
        place.table[place.name] = value
    return result


# -- compiling ------------------------------------------------------------------------------------------------------


def make_compilers(
    forward: Compiler,
    backward: Compiler | None,
    partition: Callable[..., Any] | None,
    decompositions: dict[Any, Callable[..., Any]] | None,
    inference: Compiler | None,
) -> Compilers:
    """The compilers of one use; the forward's is the default of the others."""
    for compiler in (forward, backward, inference, partition):
        if compiler is not None and not callable(compiler):
            raise exc.NotCallable(compiler, "kiln.aot")
    return Compilers(
        forward=failing_as_backend(forward),
        backward=failing_as_backend(backward or forward),
        inference=failing_as_backend(inference or forward),
        partition=partition,
        decompositions=decompositions,
    )


def failing_as_backend(compiler: Compiler) -> Compiler:
    """A compiler whose errors are `BackendError`s, whenever it is called: errors of tracing fall back to eager."""

    @functools.wraps(compiler, updated=())
    def call(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            compiled = compiler(graph_module, example_inputs)
        except exc.KilnError:
            raise
        except Exception as error:
            raise exc.BackendError(backend_name(compiler), error) from error
        if not callable(compiled):
            raise exc.InvalidBackend(backend_name(compiler), compiled)
        return compiled

    return call


def compile_call(program: Callable[..., Any], call: Call, compilers: Compilers, dynamic: bool = False) -> Version:
    """Compile a program for calls of this form."""
    state, result = GlobalState(), Result()
    form = dataclasses.replace(call, tensors=[])  # what is compiled holds no arguments

    def flat(*tensors: Any) -> list[Any]:
        args, kwargs = form.arguments(tensors)
        return result.flatten(program(*args, **kwargs))

    dynamic = dynamic and len(call.checked_tensors()) == len(call.tensors)  # sizes inside subclasses are static
    dynamic = dynamic and all(tensor.layout is torch.strided for tensor in call.tensors)  # others fall back to eager
    inputs, assumed = symbolic_inputs(call.tensors) if dynamic else (call.tensors, None)

    def compile_with(whole: Callable[..., Any], held: list[torch.Tensor]) -> Callable[..., Any]:
        whole.__name__ = getattr(program, "__name__", "function")
        return compile_or_run(whole, [*inputs, *held], compilers, compile_unwrapped)

    run, held = compile_closure(flat, compile_with)
    descriptions = [(each, dynamic_dims(each) if dynamic else None, not dynamic) for each in call.checked_tensors()]
    check = TensorCheck(descriptions + [(each, None, True) for each in held])
    return Version(run, result, check, state, assumed and assumed(), held)


def compile_unwrapped(
    program: Callable[..., Sequence[Any]], inputs: Sequence[Any], compilers: Compilers
) -> Callable[..., Sequence[Any]]:
    """Compile a program whose inputs or outputs may be wrapper subclasses."""
    unwrapped = UnwrappedProgram(program, inputs)
    compiled = compile_flat(unwrapped, unwrapped.plain(inputs), compilers)
    if not unwrapped.has_subclasses:
        return compiled

    def run(*inputs: Any) -> list[Any]:
        return unwrapped.wrap_outputs(inputs, compiled(*unwrapped.plain(inputs)))

    return run


def make_aot_backend(
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable[..., Any] | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    inference_compiler: Compiler | None = None,
    **accepted: Any,
) -> Callable[..., Any]:
    """A backend for ``kiln.compile`` that differentiates ahead of time and gives both graphs to these compilers."""
    check_accepted("make_aot_backend", accepted)
    compilers = make_compilers(fw_compiler, bw_compiler, partition_fn, decompositions, inference_compiler)

    def aot_backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        return compile_captured(graph_module, example_inputs, compilers)

    return aot_backend


# Arguments that the ecosystem's functions take, in one release or another, and that have no effect here.
ACCEPTED = frozenset(
    "boxed_forward_device_index compile_region_name compiler_config_extra cudagraphs disable_functionalization "
    "enable_log ignore_shape_env keep_inference_input_mutations pre_grad_passes".split()
)


def check_accepted(function: str, arguments: dict[str, Any]) -> None:
    for name in arguments:
        if name not in ACCEPTED:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


# -- compilers ------------------------------------------------------------------------------------------------------


def nop(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any] = ()) -> Any:
    """The compiler that leaves a graph as it is: it runs op by op."""
    return graph_module


def make_boxed_func(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """A function of tensors as one of a list of them."""

    def boxed(arguments: list[Any]) -> Any:
        return function(*arguments)

    return mark_boxed(boxed)


def make_boxed_compiler(compiler: Compiler) -> Compiler:
    """A compiler whose results take a list of tensors."""

    @functools.wraps(compiler)
    def boxed(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        return make_boxed_func(compiler(graph_module, example_inputs))

    return boxed


op_by_op = make_aot_backend(nop)
