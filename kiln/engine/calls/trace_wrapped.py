"""``trace_wrapped(*args, fn=f)``: call ``f``, but not while the code around the call is traced.

A hook uses it for functions that belong into the backward pass, not into a graph that is being made:

- in eager, and in captured code (the engine's graph above all), it is a call of ``f``, with all that ``f`` does;
- under ``make_fx`` it becomes one node of the graph, named ``trace_wrapped``, which calls ``f`` each time the graph
  runs. ``f`` has not run then, so its result is assumed to look like the first argument, as that of a hook does; a run
  in which it does not raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...platform.torch_dispatch import count_dispatch_modes
from ...platform.torch_pytree import tree_map


def make_operator(home: str) -> Callable[..., Any]:
    """The operator; ``home`` is the module that graphs name it by."""

    def trace_wrapped(*args: Any, fn: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``fn(*args, **kwargs)``; under ``make_fx``, when the graph runs."""
        if not count_dispatch_modes():
            return fn(*args, **kwargs)
        return under_modes(home, fn, args, kwargs)

    trace_wrapped.__qualname__ = "trace_wrapped"
    return trace_wrapped


def under_modes(home: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from ...platform.torch_proxies import get_proxy_mode

    mode = get_proxy_mode()
    return fn(*args, **kwargs) if mode is None else record(mode, home, fn, args, kwargs)


def record(mode: Any, home: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One node that stands for the call."""
    from ...platform.torch_proxies import disable_proxy_modes_tracing, track_tensor_tree

    tracer = mode.tracer
    proxies, named = tree_map(tracer.unwrap_proxy, (args, kwargs))
    call = tracer.create_proxy("call_function", invocation(home, fn), proxies, named, name="trace_wrapped")
    with disable_proxy_modes_tracing(), torch.no_grad():
        return track_tensor_tree(torch.zeros_like(args[0]), call, constant=None, tracer=tracer)


def invocation(home: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """What the node calls."""
    operator = make_operator(home)

    def self_invoke(*args: Any, **kwargs: Any) -> Any:
        result = operator(*args, fn=fn, **kwargs)
        if not looks_like(result, args[0]):
            raise RuntimeError(
                f"trace_wrapped: {getattr(fn, '__qualname__', fn)} gave {described(result)} for {described(args[0])}; "
                "a graph takes its result to look like its first argument"
            )
        return result

    self_invoke.__module__, self_invoke.__qualname__ = home, "self_invoke"
    return self_invoke


def looks_like(result: object, first: torch.Tensor) -> bool:
    if not isinstance(result, torch.Tensor):
        return False
    return (result.shape, result.dtype, result.device) == (first.shape, first.dtype, first.device)


def described(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__qualname__}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"


trace_wrapped = make_operator(__name__)
