"""The registry of backends, and the call of a backend, whose errors are distinguished from Kiln's."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from .. import exc


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
    """Options that a backend has no parameters for raise at once, not when it gets a graph."""
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
