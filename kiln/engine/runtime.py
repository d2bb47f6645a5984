"""What graphs of the engine call: hooks, Python backwards and accumulation, by the rules of torch's own engine.

Plain Python on purpose: capture interprets these functions and inlines what users wrote. Errors are eager's, word for
word. All of it runs with grad mode off, as backward passes do that make no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _native
from ..aot.partition import random_replay
from ..program.accumulation import Gradients, is_dense, listed
from ..program.call_markers import caller, foreseen, leaf
from .departure import Foreseen
from .hooks import InnerHook

# Calls code of the program's: where that needs real tensors, the graph of a pass may call it as it is.
calls_user = caller(lambda reason: Foreseen(why=reason, opaque=True))

# -- hooks ----------------------------------------------------------------------------------------------------------


@calls_user
def call_tensor_hook(hook: Callable[..., Any], gradient: Tensor | None) -> Tensor | None:
    """A hook on a tensor, before its node: gives the gradient that goes on."""
    result = hook(gradient)
    return gradient if result is None else replacement(hook, result, gradient)


@calls_user
def call_pre_hook(hook: Callable[..., Any], gradients: Gradients) -> Gradients:
    """A hook on a node, before it."""
    result = hook(gradients)
    return gradients if result is None else replacements(hook, result, gradients)


@calls_user
def call_post_hook(hook: Callable[..., Any], grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients:
    """A hook on a node, after it: what the node gave, and what it was given."""
    result = hook(grad_inputs, grad_outputs)
    return grad_inputs if result is None else replacements(hook, result, grad_inputs)


@calls_user
def call_accumulate_hooks(variable: Tensor, *hooks: Callable[..., Any]) -> None:
    """The hooks of a leaf whose gradient is there. All run before what one of them returned is an error."""
    seen = variable
    for hook in hooks:
        result = hook(seen)
        if result is not None:
            check_replacement(hook, result, seen)
            seen = result
    if seen is not variable:
        raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def retain_grad(retain: Callable[[Tensor | None], None], gradient: Tensor | None) -> None:
    """What `Tensor.retain_grad` has asked for: `retain` is the native hook that sets the tensor's `.grad`."""
    retain(gradient)


retain_grad.__kiln_deferred__ = True  # type: ignore[attr-defined]


def call_inner_hook(inner: InnerHook, gradient: Tensor) -> Tensor:
    """A hook on a tensor inside a compiled function."""
    return call_tensor_hook(inner.function, gradient) if inner.alive else gradient  # type: ignore[return-value]


def call_inner_pre_hook(inner: InnerHook, gradients: Gradients) -> Gradients:
    """A hook on a node inside a compiled function, before it."""
    return none_as_zeros(call_pre_hook(inner.function, gradients), gradients) if inner.alive else gradients


def call_inner_post_hook(inner: InnerHook, grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients:
    """A hook on a node inside a compiled function, after it."""
    if not inner.alive:
        return grad_inputs
    return none_as_zeros(call_post_hook(inner.function, grad_inputs, grad_outputs), grad_inputs)


def none_as_zeros(after: Gradients, before: Gradients) -> Gradients:
    """A gradient that a hook took away is zeros for what follows in the compiled graph."""
    found = []
    for place in range(len(before)):
        old, new = before[place], after[place]
        found.append(torch.zeros_like(old) if new is None and old is not None else new)
    return tuple(found)


def replacements(hook: Callable[..., Any], result: Any, before: Gradients) -> Gradients:
    """What a hook returned for several gradients. None takes one away."""
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(result).__name__}'")
    if len(result) != len(before):
        raise RuntimeError(
            f"hook '{name_of(hook)}' has returned an incorrect number of values "
            f"(got {len(result)}, but expected {len(before)})"
        )
    after = []
    for place in range(len(before)):
        new = result[place]
        after.append(None if new is None else replacement(hook, new, before[place]))
    return tuple(after)


def replacement(hook: Callable[..., Any], new: Any, old: Tensor | None) -> Tensor:
    check_replacement(hook, new, old)
    return laid_out_like(new, old)  # type: ignore[arg-type]


def check_replacement(hook: Callable[..., Any], new: Any, old: Tensor | None) -> None:
    if old is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if not isinstance(new, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(new).__name__}'")
    if new.dtype != old.dtype or new.device != old.device or new.layout != old.layout:
        raise RuntimeError(
            f"hook '{name_of(hook)}' has changed the type of value (was {type_name(old)} got {type_name(new)})"
        )
    if new.shape != old.shape:
        raise RuntimeError(f"hook '{name_of(hook)}' has changed the size of value")


def laid_out_like(new: Tensor, old: Tensor) -> Tensor:
    """The graph was traced for the strides of what is replaced, or, where nothing can have those, works with any."""
    if new is old or has_strides(new, old.stride()):
        return new
    return torch.empty_like(old).copy_(new) if is_dense(old) else new.contiguous()


def has_strides(tensor: Tensor, strides: Sequence[int]) -> bool:
    """Whether its elements are where these strides say; along one element, a stride says nothing."""
    size, own = tensor.shape, tensor.stride()
    return all([size[place] == 1 or own[place] == strides[place] for place in range(len(size))])


def name_of(hook: Any) -> str:
    name = getattr(hook, "__name__", None)
    return name if isinstance(name, str) else "<unknown>"


# How torch names types in errors, where that differs from what `Tensor.type()` says.
UNNAMED_DTYPES = {
    torch.bfloat16: "BFloat16",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def type_name(tensor: Tensor) -> str:
    name = tensor.type()
    if tensor.device.type == "meta":
        return f"Meta{name.rsplit('.', 1)[1].removesuffix('Tensor')}Type"
    if tensor.dtype in UNNAMED_DTYPES and tensor.layout is torch.strided:
        return f"{tensor.device.type.upper()}{UNNAMED_DTYPES[tensor.dtype]}Type"
    return name


# -- leaving half-way ----------------------------------------------------------------------------------------------


def stay(departure: Any, step: int, values: Gradients, pending: Gradients) -> None:
    """After user code: where it changed hooks of what is still to run, the rest is torch's."""
    if departure.changed and departure.changed_at(step):
        departure.leave(step, values, pending)


def stay_after(outputs: Gradients, departure: Any, step: int, values: Gradients, pending: Gradients) -> None:
    """The same after user code inside a node, which has given these gradients."""
    if departure.changed and departure.changed_at(step):
        departure.leave(step, values, pending, outputs)


def checked(
    results: Gradients,
    pattern: tuple[bool | None, ...],
    departure: Any,
    step: int,
    values: Gradients,
    pending: Gradients,
) -> None:
    """The same, and where it gave gradients that the graph was not made for; None in the pattern: nobody cares."""
    if (departure.changed and departure.changed_at(step)) or not follows(results, pattern):
        departure.surprise(results, step, values, pending)


def follows(results: Gradients, pattern: tuple[bool | None, ...]) -> bool:
    for place in range(len(pattern)):
        result = results[place]
        if pattern[place] is not None and ((result is not None) != pattern[place] or not is_plain(result)):
            return False
    return True


# -- functions in Python --------------------------------------------------------------------------------------------


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


def call_node_on_fakes(node: Any, told: tuple, *rest: Any) -> Gradients:
    """What `call_node` gives, where all is as foretold."""
    return tuple(
        None if one is None else torch.empty_strided(one[0], one[1], dtype=one[2], device=one[3]) for one in told
    )


@foreseen(lambda *args: Foreseen(why="hooks unpack what a node saved"))
def call_node(
    node: Callable[..., Gradients],
    told: tuple,
    wanted: tuple[bool, ...],
    departure: Any,
    step: int,
    gradients: Gradients,
    pending: Gradients,
) -> Gradients:
    """A node whose insides are unknown, or packed by the program's hooks: it runs as it is, one result an edge.

    ``told`` is what the results look like where there are any; ``wanted``, which of them somebody takes. Hooks that
    unpack see what captured code has done so far: nothing for a graph.
    """
    results = node(*gradients)
    if departure.changed_at(step) or not follows(results, pattern_told(told, wanted)):
        departure.surprise(results, step, gradients, pending)
    return as_told(results, told)


def call_function_inside(
    node: Callable[..., Gradients],
    told: tuple,
    wanted: tuple[bool, ...],
    departure: Any,
    step: int,
    gradients: Gradients,
    pending: Gradients,
) -> Gradients:
    """`call_function` inside a graph that is the whole pass, of which nothing has happened yet: a new one is needed."""
    results = node(*gradients)
    if departure.changed_at(step) or not follows(results, pattern_told(told, wanted)):
        raise Foreseen(step, results, ran=True)
    return as_told(results, told)


@leaf(call_node_on_fakes, inside=call_function_inside)
def call_function(
    node: Callable[..., Gradients],
    told: tuple,
    wanted: tuple[bool, ...],
    departure: Any,
    step: int,
    gradients: Gradients,
    pending: Gradients,
) -> Gradients:
    """`call_node` for a function written in C++: it may run inside a graph, as no Python code can tell when it runs."""
    return call_node(node, told, wanted, departure, step, gradients, pending)


def pattern_told(told: tuple, wanted: tuple[bool, ...]) -> tuple[bool | None, ...]:
    return tuple([there is not None if one else None for there, one in zip(told, wanted, strict=True)])


def as_told(results: Gradients, told: tuple) -> Gradients:
    """Results of a node as the nodes take them that they go to."""
    return tuple(
        None if look is None else expected(value, *look, "node", place)  # type: ignore[arg-type]
        for place, (value, look) in enumerate(zip(results, told, strict=True))
    )


@foreseen(lambda: Foreseen(why="hooks unpack what a function saved"))
def unpack_in_python() -> None:
    """Reading what the function saved runs the program's hooks, each time: nothing for a graph, which reads it more."""


def with_zeros(context: Any, filled: Sequence[bool], gradients: Gradients) -> list[Tensor | None]:
    """Gradients as backward gets them: zeros where none came, unless the function takes None."""
    given = list(gradients)
    for place in range(len(given)):
        if given[place] is None and filled[place]:
            size, dtype, device = _native.function_zeros(context)[place]
            given[place] = torch.zeros(size, dtype=dtype, device=device)
    return given


def check_count(context: Any, result: tuple[Any, ...], expected_count: int) -> None:
    """One for each argument of forward; more may be returned if they are None."""
    surplus = result[expected_count:]
    if len(result) < expected_count or any([gradient is not None for gradient in surplus]):
        raise RuntimeError(
            f"function {context.name()} returned an incorrect number of gradients "
            f"(expected {expected_count}, got {len(result)})"
        )


def expected(
    value: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    index: int,
) -> Tensor:
    """A gradient as the edge that it goes to expects it, after Python code gave it: what torch does between nodes, and
    the strides that the trace predicted. `name` and `index` say whose it is."""
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


def is_plain(value: Any) -> bool:
    """Whether a gradient is one that graphs of the engine are made for: eager takes sparse ones and subclasses too."""
    return value is None or (type(value) is Tensor and value.layout is torch.strided)


def can_expand(small: Sequence[int], large: Sequence[int]) -> bool:
    """Whether a tensor of one size can be expanded to another."""
    missing = len(large) - len(small)
    if missing < 0:
        return False
    return all([small[place] == 1 or small[place] == large[missing + place] for place in range(len(small))])


# -- what compiled functions have in them -----------------------------------------------------------------------------


def constant(tensor: Tensor) -> Callable[[], Tensor]:
    """A function for graphs to call that gives this tensor."""

    def constant() -> Tensor:
        return tensor

    return constant


# -- random numbers ---------------------------------------------------------------------------------------------------


def operator_named(name: str) -> torch._ops.OpOverload:
    """An operator by the name that it has for torch's dispatcher."""
    space, rest = name.split("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


def replay_on_fakes(state: Tensor, name: str, args: tuple, keywords: tuple[tuple[str, Any], ...]) -> Any:
    return operator_named(name)(*args, **dict(keywords))


@leaf(replay_on_fakes)
def replay(state: Tensor, name: str, args: tuple, keywords: tuple[tuple[str, Any], ...]) -> Any:
    """A random operator of a compiled function's forward, once more, with the numbers that it drew then."""
    return random_replay.replay(state, operator_named(name), *args, **dict(keywords))


# -- accumulation ---------------------------------------------------------------------------------------------------
