"""Calls of nodes that are not traced: Python backwards, nodes in C++, and what compiled backwards have inside.

Plain Python on purpose: capture interprets these functions and inlines the user's backward. Errors have eager's texts.
All of it runs with grad mode off, as backward passes do that build no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import _native
from ...aot.partition import random_replay
from ...program.accumulation import Gradients, listed
from ...program.call_markers import abandons_capture, leaf
from .abandoned import CaptureAbandoned, calls_user
from .bailout import Bailout, Pattern
from .checks import follows
from .hook_calls import has_strides

Spec = tuple[Sequence[int], Sequence[int], torch.dtype, torch.device]  # of a gradient: size and strides
Specs = tuple[Spec | None, ...]  # None where there is no gradient
NodeFunction = Callable[..., Gradients]


# -- backwards in Python ----------------------------------------------------------------------------------------------


@calls_user
def call_backward(context: Any, *gradients: Tensor | None) -> Gradients:
    """The backward of an `autograd.Function`: a gradient, or None, for each tensor that its forward was given."""
    filled, tensors, is_boxed, _, is_packed = _native.function_facts(context)
    if is_packed:
        unpack_in_python()
    given = with_zeros(context, filled, gradients)
    result = context.apply_boxed(given) if is_boxed else context.apply(*given)
    if not isinstance(result, tuple):
        result = (result,)
    check_count(context, result, len(tensors))
    found = []
    for place in range(len(tensors)):
        gradient = result[place]
        if tensors[place]:
            if gradient is not None and not isinstance(gradient, Tensor):
                raise RuntimeError(f"expected Variable or None (got {type(gradient).__name__})")
            found.append(gradient)
        elif gradient is not None:
            raise RuntimeError(
                f"function {context.name()} returned a gradient different than None at position {place + 1}, "
                "but the corresponding forward input was not a Variable"
            )
    return tuple(found)


@abandons_capture(lambda: CaptureAbandoned(reason="hooks unpack what a function saved"))
def unpack_in_python() -> None:
    """Each read of what the function saved runs the program's hooks. A graph would read it more often than eager."""


def with_zeros(context: Any, filled: Sequence[bool], gradients: Gradients) -> list[Tensor | None]:
    """Gradients as backward gets them: zeros where none came, unless the function takes None."""
    given = list(gradients)
    for place in range(len(given)):
        if given[place] is None and filled[place]:
            output = _native.function_zeros(context)[place]
            if output is not None:
                given[place] = torch.zeros(output[0], dtype=output[1], device=output[2])
    return given


def check_count(context: Any, result: tuple[Any, ...], expected_count: int) -> None:
    """One for each argument of forward; more may be returned if they are None."""
    surplus = result[expected_count:]
    if len(result) < expected_count or any([gradient is not None for gradient in surplus]):
        raise RuntimeError(
            f"function {context.name()} returned an incorrect number of gradients "
            f"(expected {expected_count}, got {len(result)})"
        )


def validated(
    value: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    index: int,
) -> Tensor:
    """A gradient that Python code returned, converted as torch's engine does between nodes, with the traced strides.

    ``name`` is that of the node, ``index`` that of the gradient among its results.
    """
    if tuple(value.shape) != tuple(size):
        if not can_expand(size, value.shape):
            raise RuntimeError(
                f"Function {name} returned an invalid gradient at index {index} - got {listed(value.shape)} but "
                f"expected shape compatible with {listed(size)}"
            )
        value = value.sum_to_size(size)
    if not value.is_floating_point() and value.is_complex() != dtype.is_complex:
        raise RuntimeError(
            "Expected isFloatingType(grad.scalar_type()) || (input_is_complex == grad_is_complex) to be true, but got "
            "false.  (Could this error message be improved?  If so, please report an enhancement request to PyTorch.)"
        )
    if value.dtype != dtype:
        value = value.to(dtype)
    if value.device != device:
        if value.dim() != 0:
            raise RuntimeError(
                f"Function {name} returned an invalid gradient at index {index} - expected device {device} but got "
                f"{value.device}"
            )
        value = value.to(device)
    if not has_strides(value, stride):
        value = torch.empty_strided(size, stride, dtype=dtype, device=device).copy_(value)
    return value


def can_expand(small: Sequence[int], large: Sequence[int]) -> bool:
    """Whether a tensor of one size can be expanded to another."""
    missing = len(large) - len(small)
    if missing < 0:
        return False
    return all([small[place] == 1 or small[place] == large[missing + place] for place in range(len(small))])


# -- nodes that run as they are ---------------------------------------------------------------------------------------


def empty_results(specs: Specs) -> Gradients:
    return tuple(
        None if spec is None else torch.empty_strided(spec[0], spec[1], dtype=spec[2], device=spec[3]) for spec in specs
    )


def call_node_on_fakes(node: Any, specs: Specs, *rest: Any) -> Gradients:
    """What `call_node` returns if the prediction holds."""
    return empty_results(specs)


@abandons_capture(lambda *args: CaptureAbandoned(reason="hooks unpack what a node saved"))
def call_node(
    node: NodeFunction,
    specs: Specs,
    wanted: tuple[bool, ...],
    bailout: Bailout,
    point: int,
    gradients: Gradients,
    pending: Gradients,
) -> Gradients:
    """A node that cannot be traced, or whose saved tensors the program's hooks packed: it runs as it is.

    ``specs`` predicts its results, one an edge; ``wanted`` says which of them are used. Hooks that unpack see what
    captured code has done so far, so that no graph can contain them.
    """
    results = node(*gradients)
    if bailout.changed_after(point) or not follows(results, pattern_of_specs(specs, wanted)):
        bailout.unpredicted(results, point, gradients, pending)
    return as_specified(results, specs)


def call_function_inside(
    node: NodeFunction,
    specs: Specs,
    wanted: tuple[bool, ...],
    bailout: Bailout,
    point: int,
    gradients: Gradients,
    pending: Gradients,
) -> Gradients:
    """`call_function` inside a graph that is the whole pass: bailing out is not possible, a new graph is needed."""
    results = node(*gradients)
    if bailout.changed_after(point) or not follows(results, pattern_of_specs(specs, wanted)):
        raise CaptureAbandoned(point, results, ran=True)
    return as_specified(results, specs)


@leaf(call_node_on_fakes, inside=call_function_inside)
def call_function(node: NodeFunction, *arguments: Any) -> Gradients:
    """`call_node` for a function written in C++: it may run inside a graph, as no Python code sees when it runs."""
    return call_node(node, *arguments)


def pattern_of_specs(specs: Specs, wanted: tuple[bool, ...]) -> Pattern:
    return tuple([spec is not None if one else None for spec, one in zip(specs, wanted, strict=True)])


def as_specified(results: Gradients, specs: Specs) -> Gradients:
    """Results of a node as the nodes take them that they go to."""
    return tuple(
        None if value is None or spec is None else validated(value, *spec, "node", place)
        for place, (value, spec) in enumerate(zip(results, specs, strict=True))
    )


# -- what compiled backwards have inside ------------------------------------------------------------------------------


def constant(tensor: Tensor) -> Callable[[], Tensor]:
    """A function for graphs to call that gives this tensor."""

    def constant() -> Tensor:
        return tensor

    return constant


def operator_named(name: str) -> Any:
    """An operator by the name that it has for torch's dispatcher."""
    space, rest = name.split("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


def replay_on_fakes(state: Tensor, name: str, args: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...]) -> Any:
    return operator_named(name)(*args, **dict(keywords))


@leaf(replay_on_fakes)
def replay(state: Tensor, name: str, args: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...]) -> Any:
    """A random operator of a compiled function's forward, once more, with the numbers that it drew then."""
    return random_replay.replay(state, operator_named(name), *args, **dict(keywords))
