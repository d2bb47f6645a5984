"""What operations do besides giving a result: changed inputs, random numbers, exceptions that depend on values.

Capture needs to know when running a frame again in eager would not be the same, and whether a graph may raise at all.
"""

from __future__ import annotations

import re
import types

import torch

from .rewind import is_restorable
from .trace import Trace
from .values import GraphBreak, TensorInfo, words

RANDOM = re.compile(
    r"rand|dropout|bernoulli|multinomial|normal|uniform|exponential|geometric|cauchy|poisson|rrelu|binomial|gumbel"
    r"|standard_gamma|dirichlet|lowrank|lstm|gru|rnn|attention|fractional_max_pool|seed"
)

# They change their running statistics without a mark on the tensor.
CHANGES_UNMARKED = re.compile(r"batch_norm|instance_norm|_fq_helper|fake_quant")


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; inference tensors do not count."""
    return -1 if tensor.is_inference() else tensor._version


def note_effects(
    trace: Trace, function: object, args: tuple, kwargs: dict, leaves: list[torch.Tensor], changed: list[torch.Tensor]
) -> None:
    """Remember what makes running the frame again in eager different: random numbers, inputs that were changed."""
    name = getattr(function, "__name__", None) or str(function)
    if CHANGES_UNMARKED.search(name):
        changed = leaves
    elif is_named_in_place(name):  # where nothing is counted, the name must do
        changed = changed + [leaf for leaf in leaves[:1] if leaf.is_inference()]
    touched = changed_inputs(trace, changed) if changed else {}
    reasons = [f"{name} changes a tensor from outside"] if touched else []
    if RANDOM.search(name) and not is_certain(function, name, args, kwargs):
        reasons.append(f"{name} draws random numbers")
    raises = may_raise(function, name, leaves)
    protected = raises and any(frame.protected() for frame in trace.frames)
    conflict = bool((protected and (reasons or trace.effects)) or (reasons and trace.protected))
    if conflict and not all(map(is_restorable, (*trace.changed.values(), *touched.values()))):
        raise conflict_with_try(trace, (reasons or trace.effects)[0])
    trace.raises_late |= conflict or (raises and bool(trace.effects or reasons))
    trace.effects += reasons
    trace.changed |= touched
    trace.protected |= protected
    trace.sheltered |= any(frame.bytecode.handler_at[frame.index] is not None for frame in trace.frames)


def conflict_with_try(trace: Trace, reason: str, whole: bool = False) -> GraphBreak:
    """Should the graph raise inside a try block, eager takes over from the start: what happened must be undone."""
    return trace.fail(
        f"{reason} in a graph whose operations may raise inside a try block",
        "keep in-place operations on arguments and random generators away from the try block",
        whole=whole,
    )


SWITCHABLE = re.compile(r"dropout|rrelu|attention")
SWITCHED_OFF = {"training": False, "train": False, "p": 0, "dropout_p": 0, "dropout": 0}
ARGUMENT_NAMES = {"dropout": ("input", "p", "train"), "dropout_": ("input", "p", "train")}
ARGUMENT_NAMES["scaled_dot_product_attention"] = ("query", "key", "value", "attn_mask", "dropout_p")


def is_certain(function: object, name: str, args: tuple, kwargs: dict) -> bool:
    """Whether a function that may draw random numbers was told not to: not training, or a probability of zero."""
    if not SWITCHABLE.search(name):
        return False
    if isinstance(function, types.FunctionType):
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ()), strict=False))
    else:
        names, defaults = ARGUMENT_NAMES.get(name, ()), {"dropout_p": 0.0} if "attention" in name else {}
    given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    return any(type(given.get(key)) in (bool, int, float) and given[key] == off for key, off in SWITCHED_OFF.items())


def changed_inputs(trace: Trace, changed: list[torch.Tensor]) -> dict[int, TensorInfo]:
    """The graph's inputs that share memory with tensors that were changed."""
    keys = {storage_key(tensor) for tensor in changed}
    inputs = [item for item in trace.inputs if isinstance(item, TensorInfo)]
    return {id(item.fake): item for item in inputs if storage_key(item.fake) in keys}


# Operations of torch that raise because of values; what raises because of shapes has raised on fakes already.
RAISES = re.compile(
    r"index|gather|scatter|select|take|put|embedding|nll|loss|cross_entropy|linalg|cholesky|inv|solve|svd|eig|lu$|lu_|qr"
    r"|multinomial|bernoulli|poisson|binomial|dirichlet|one_hot|bincount|lstsq|matrix_|det$|hist|unpool"
    r"|repeat_interleave|packed|pad_sequence|assert|check|bucketize|searchsorted|gamma|lowrank|_ex$|geqrf|ormqr"
)
DIVIDES = re.compile(r"div|remainder|mod")


def may_raise(function: object, name: str, leaves: list[torch.Tensor]) -> bool:
    """Whether an operation that works on fakes may raise on real tensors."""
    module = getattr(function, "__module__", None) or ""
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        module = "torch" if str(function).startswith(("aten", "prims")) else ""
    own = module.startswith("torch") or module in ("_operator", "builtins") or hasattr(function, "__objclass__")
    if not own:
        return True  # code of the user's behind an operator
    if name.strip("_") in ("getitem", "setitem"):
        return len(leaves) > 1
    if DIVIDES.search(name):
        return not any(leaf.dtype.is_floating_point or leaf.dtype.is_complex for leaf in leaves)
    return RAISES.search(name) is not None


def is_named_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name in IN_PLACE_OPERATORS


IN_PLACE_OPERATORS = words("setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor __setitem__")


def storage_key(tensor: torch.Tensor) -> int:
    """What tells whether two tensors share memory."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata
