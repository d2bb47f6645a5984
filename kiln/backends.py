"""Backends: the registry, the built-in ones, and calling one with its errors told apart from Kiln's.

A backend is ``f(graph_module, example_inputs) -> callable``, the ecosystem's protocol.

Besides tensors and numbers, a graph may take *slots* of hooks that it registers on tensors it computes: placeholders
whose ``meta["hook_slot"]`` names the kind (``register_hook``, ``register_node_hook`` …). Their only use is in a call of
that function of ``kiln.capture.registrations`` with the tensor and the slot; what the backend makes of the graph has to
do the same, on the tensor that the gradient flows through. Hooks on inputs that the graph leaves alone are not in it.

A graph may also take a *list* of tensors, which it empties once it has taken them out (``kiln.capture.stealing``): the
example is then a list, with None where the graph takes nothing. Calling the graph module itself is right; what takes
the tensors out and clears the list, as the graph does, lets each die at its last use.

What else a graph tells: placeholders of tensors have ``meta["input_state"]``, what the input is before the program
changes it (``kiln.capture.input_state``); nodes that call a ``torch.autograd.Function`` have
``meta["traceable_backward"]`` and, where it is False, ``meta["traceable_reason"]``.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from . import exc


class Current(threading.local):
    """What a backend may ask about the compilation it is called for."""

    fullgraph: bool = False  # a graph that cannot be compiled is an error


current = Current()
Backend = Callable[..., Any]
_REGISTRY: dict[str, Backend] = {}


def register_backend(backend: Backend | None = None, name: str | None = None) -> Any:
    """Make a backend known by name; as a decorator, with or without arguments, or as a call."""
    if isinstance(backend, str):
        backend, name = None, backend
    if backend is None:
        return lambda function: register_backend(function, name)
    if not callable(backend):
        raise exc.NotCallable(backend)
    _REGISTRY[name or backend.__name__] = backend
    return backend


def list_backends() -> list[str]:
    """The names that ``backend=`` accepts."""
    return sorted(_REGISTRY)


def lookup_backend(backend: str | Backend) -> Backend:
    """The backend behind a name; a callable is its own."""
    if callable(backend):
        return backend
    if not isinstance(backend, str):
        raise exc.UnknownBackend(repr(backend), _REGISTRY)
    if backend not in _REGISTRY:
        raise exc.UnknownBackend(backend, _REGISTRY)
    return _REGISTRY[backend]


def check_options(backend: Backend, name: str, options: dict[str, Any]) -> None:
    """Options that a backend has no parameters for are told of at once, not when it is given a graph."""
    try:
        parameters = inspect.signature(backend).parameters.values() if options else ()
    except (TypeError, ValueError):  # a native one: it will tell
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in list(parameters)[2:] if parameter.kind is not parameter.VAR_POSITIONAL]
    for option in options:
        if option not in known:
            raise exc.UnknownOption(name, option, known)


def backend_name(backend: str | Backend) -> str:
    return backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)


def call_backend(
    options: Any, module: torch.fx.GraphModule, example_inputs: Sequence[Any], where: exc.Location
) -> Callable[..., Any]:
    """Compile a graph captured at a place; what goes wrong in the backend is the backend's."""
    before, current.fullgraph = current.fullgraph, options.fullgraph
    try:
        compiled: Callable[..., Any] = options.backend(module, list(example_inputs), **options.options)
    except exc.KilnError:
        raise
    except Exception as error:
        raise exc.BackendError(options.backend_name, error, stack=[where]) from error
    finally:
        current.fullgraph = before
    if not callable(compiled):
        raise exc.InvalidBackend(options.backend_name, compiled)
    return without_global_hooks(compiled) if isinstance(compiled, torch.fx.GraphModule) else compiled


def without_global_hooks(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """Calls a graph that a backend gives back. Hooks of all modules are not for it: in eager there is no such module.
    Those that somebody registers on it, at any time, are."""

    def run(*args: Any) -> Any:
        return module(*args) if has_hooks(module) else module.forward(*args)

    return run


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether somebody has registered a hook on this very module."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in names)


def eager(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the captured graph op by op."""
    if any(isinstance(example, list) for example in example_inputs):
        from .aot.lists import run_captured

        return run_captured(graph_module, example_inputs) or graph_module.forward
    return graph_module.forward


def print_graph(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Show each graph, then run it op by op."""
    print(graph_module.print_readable(print_output=False))
    return graph_module.forward


def aot_eager(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Differentiate the graph ahead of time, and run forward and backward op by op."""
    from .aot.api import op_by_op

    compiled: Callable[..., Any] = op_by_op(graph_module, example_inputs)
    return compiled


def kiln(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, check: bool = False
) -> Callable[..., Any]:
    """Differentiate the graph ahead of time, and compile forward and backward to machine code. ``check``: each kernel
    runs beside eager, and the first that differs is an error."""
    from .codegen.graph_compiler import compile_captured_graph

    compiled: Callable[..., Any] = compile_captured_graph(graph_module, example_inputs, check=check)
    return compiled


register_backend(kiln, name="kiln")
register_backend(eager, name="eager")
register_backend(aot_eager, name="aot_eager")
register_backend(print_graph, name="print")
