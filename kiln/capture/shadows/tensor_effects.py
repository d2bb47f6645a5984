"""What operations do besides giving a result: changed inputs, random numbers, exceptions that depend on values.

Capture needs to know when running a frame again in eager would not be the same, and whether a graph may raise at all.
"""

from __future__ import annotations

import math
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import is_grad_enabled  # the program may put another function in its place

from ..._native import is_instance as isinstance
from ...platform.python_objects import words
from ...platform.torch_autograd import is_any_autocast_enabled
from ...platform.torch_dispatch import DisableTorchFunction
from ...platform.torch_functions import native_functions
from ...platform.torch_operators import OpOverload, OpOverloadPacket
from ...platform.torch_tensors import base_of, version_of
from ...program.memory import is_dense, storage_key
from ...program.operators.operator_table import Operator, Raises, operator_named, operator_of, operator_of_packet
from ..guards.source import Computed
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import GraphBreak, TensorInfo

if TYPE_CHECKING:
    from ..interpreter.frame import Frame


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; inference tensors do not count."""
    try:
        return -1 if tensor.is_inference() else version_of(tensor)
    except RuntimeError:  # its memory is that of an inference tensor
        return -1


def note_effects(
    trace: Trace, function: object, args: Args, kwargs: Kwargs, leaves: list[torch.Tensor], changed: list[torch.Tensor]
) -> None:
    """Remember what makes running the frame again in eager different: random numbers, inputs that were changed."""
    name = getattr(function, "__name__", None) or str(function)
    marked = changed
    followed = [leaf for leaf in changed if leaf.requires_grad] if is_grad_enabled() else []
    operator = operator_called(function, name)
    if operator.chooses_attention_kernel:
        assume_attention_kernels(trace)
    if operator.changes_unmarked:
        changed = leaves
    elif operator.in_place:  # versions of inference tensors are not counted
        changed = changed + [leaf for leaf in leaves[:1] if leaf.is_inference()]
    touched = changed_inputs(trace, changed) if changed else {}
    reasons = [f"{name} changes a tensor from outside"] if touched else []
    if operator.random and not draws_nothing(operator, function, args, kwargs):
        reasons.append(f"{name} draws random numbers")
    elif not is_of_torch(operator, function):
        reasons.append(f"{name} may draw random numbers")
    inside = any(frame.protected() for frame in trace.frames)
    raises = may_raise(operator, function, leaves) or any(may_refuse_overlap(one, leaves) for one in marked)
    raises |= bool(marked) and name not in CASTING and may_not_cast(marked[0], (*args, *kwargs.values()))
    if len(leaves) > 1 and marked:
        raises |= note_written(trace, leaves, marked)
    refused = note_history(trace, name, followed, raises, inside)
    late = bool((raises and (reasons or trace.effects.reasons)) or (refused and trace.effects.reasons))
    conflict = bool((inside and late) or (reasons and trace.effects.in_try))
    if conflict and not all(map(is_restorable, (*trace.effects.changed.values(), *touched.values()))):
        raise conflict_with_try(trace, (reasons or trace.effects.reasons)[0])
    protected = inside and (raises or refused)
    trace.effects.raises_late |= conflict or late
    trace.effects.reasons += reasons
    trace.effects.changed |= touched
    trace.effects.in_try |= protected
    trace.effects.in_with = trace.effects.in_with or any(map(is_sheltered, trace.frames))


def attention_kernels() -> tuple[bool, ...]:
    """Which kernels of attention are allowed: their results have different strides."""
    return tuple([allowed() for allowed in ATTENTION_SWITCHES])


ATTENTION_SWITCHES = native_functions(
    *[f"_get_{name}_sdp_enabled" for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")]
)
ATTENTION_WORDS = "the kernels of attention that are allowed"


def assume_attention_kernels(trace: Trace) -> None:
    if not any(words == ATTENTION_WORDS for words, _ in trace.guards.extras):
        now = attention_kernels()
        trace.guards.extras.append((ATTENTION_WORDS, lambda: attention_kernels() == now))


def is_sheltered(frame: Frame) -> bool:
    """Whether what is raised in a frame may end there, or in the native code that called it (as an iteration does)."""
    return frame.bytecode.handler_at[frame.index] is not None or frame.code.co_name in SWALLOWED


SWALLOWED = words("__next__ __getitem__ __getattr__ __getattribute__")


def conflict_with_try(trace: Trace, reason: str, whole: bool = False) -> GraphBreak:
    """Should the graph raise inside a try block, eager takes over from the start: what happened must be undone."""
    return trace.fail(
        f"{reason} in a graph whose operations may raise inside a try block",
        "keep in-place operations on arguments and random generators away from the try block",
        whole=whole,
    )


def operator_called(function: object, name: str) -> Operator:
    """What is known of a function that captured code calls: one cached look-up."""
    if type(function) is OpOverload:
        return operator_of(function)
    return operator_of_packet(function) if type(function) is OpOverloadPacket else operator_named(name)


def draws_nothing(operator: Operator, function: object, args: Args, kwargs: Kwargs) -> bool:
    """Whether the arguments keep a random function from drawing: not training, or a probability of zero."""
    switches = operator.draws_nothing_with
    if not switches:
        return False
    given: dict[str, Any]
    if isinstance(function, types.FunctionType):
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        given = dict(zip(reversed(names), reversed(function.__defaults__ or ()), strict=False))
    else:
        names = tuple([argument.name for argument in operator.arguments])
        given = {argument.name: argument.default_value for argument in operator.arguments}
    given |= {**dict(zip(names, args, strict=False)), **kwargs}
    return any(type(given.get(key)) in (bool, int, float) and given[key] == off for key, off in switches.items())


def note_history(trace: Trace, name: str, followed: list[torch.Tensor], raises: bool, inside: bool) -> bool:
    """Inputs that are changed in a way that autograd follows; gives whether torch may refuse to (some views).

    Their contents could be put back, their history cannot: after such a change nothing in the graph may raise. And it
    gives every view of that memory another history. Fakes of inputs are not views of each other, so no other input may
    have a part in that memory: not now, not later in the trace, in no later call.
    """
    touched = changed_inputs(trace, followed) if followed else {}
    refused = False
    for info in touched.values():
        if not changeable(info.real):
            refused |= id(info.fake) not in trace.effects.changed_history
        else:
            trace.guards.add(Computed(changeable, (info.input_source,)), "constant", True)
    if trace.effects.changed_history and (raises or refused):
        if inside or not trace.options.fullgraph:
            raise trace.fail(f"{name}, which may raise when a tensor from outside has got another history")
        trace.effects.cannot_rewind = True
    if len(touched) > 1:
        raise shared_memory(trace)
    trace.effects.changed_history |= touched
    return refused


def changeable(tensor: torch.Tensor) -> bool:
    """Whether torch lets a tensor be changed in place under autograd, for all that it tells."""
    with DisableTorchFunction():
        return base_of(tensor) is None and not (tensor.is_leaf and tensor.requires_grad)


def check_apart(trace: Trace, real: torch.Tensor) -> None:
    """A tensor that comes in after such a change."""
    changed = trace.effects.changed_history.values()
    if changed and storage_key(real) in {storage_key(info.real) for info in changed}:
        raise shared_memory(trace)


def shared_memory(trace: Trace) -> GraphBreak:
    return trace.fail("an in-place operation, to be differentiated, on memory that two tensors from outside share")


def guard_memory(trace: Trace) -> None:
    """Assume for later calls which inputs share memory, where that matters."""
    if trace.effects.changed_history:
        inputs = trace.inputs.tensors()
        source = Computed(shared_with, tuple([item.input_source for item in inputs]))
        trace.guards.add(source, "constant", shared_with(*[item.real for item in inputs]))
    if trace.effects.written_from and (
        trace.effects.in_try or trace.effects.in_with
    ):  # torch's refusal would come past the handler
        guard_sharing(trace, trace.effects.written_from)
    if len(trace.inputs.deep_copied) > 1:  # copies of what shares memory would share theirs
        guard_sharing(trace, trace.inputs.deep_copied)


def guard_sharing(trace: Trace, inputs: dict[int, TensorInfo]) -> None:
    source = Computed(share_memory, tuple([item.input_source for item in inputs.values()]))
    trace.guards.add(source, "constant", share_memory(*[item.real for item in inputs.values()]))


def shared_with(*tensors: torch.Tensor) -> tuple[int, ...]:
    """For each tensor the first one that it shares memory with."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(storage_key(tensor), place) for place, tensor in enumerate(tensors)])


def changed_inputs(trace: Trace, changed: list[torch.Tensor]) -> dict[int, TensorInfo]:
    """The graph's inputs that share memory with tensors that were changed."""
    found = trace.inputs.sharing_memory({storage_key(tensor) for tensor in changed}, storage_key)
    return {id(item.fake): item for item in found}


def may_raise(operator: Operator, function: object, leaves: list[torch.Tensor]) -> bool:
    """Whether an operation that works on fakes may raise on real tensors."""
    if not is_of_torch(operator, function):
        return True  # the user's code
    if operator.asserts_on_gpu and leaves and all(leaf.device.type == "cuda" for leaf in leaves):
        return False  # the GPU stops later, as in eager
    if operator.raises is Raises.ON_INDICES:
        return len(leaves) > 1
    if operator.raises is Raises.ON_INTEGERS:
        return not any(leaf.dtype.is_floating_point or leaf.dtype.is_complex for leaf in leaves)
    return operator.raises is Raises.ON_VALUES or (operator.one_dtype and has_several_dtypes(leaves))


def is_of_torch(operator: Operator, function: object) -> bool:
    """Whether a function is torch's or Python's own."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return operator.is_own
    module = getattr(function, "__module__", None) or ""
    return module.startswith("torch") or module in ("_operator", "builtins") or hasattr(function, "__objclass__")


def has_several_dtypes(leaves: list[torch.Tensor]) -> bool:
    """Whether operands have several dtypes, and autocast gives them none in common."""
    return any([leaf.dtype is not leaves[0].dtype for leaf in leaves]) and not is_any_autocast_enabled()


def may_refuse_overlap(changed: torch.Tensor, leaves: list[torch.Tensor]) -> bool:
    """Whether torch may refuse an in-place change because memory overlaps. Fakes do not notice."""
    if changed.layout is not torch.strided:
        return False
    shape = zip(changed.shape, changed.stride(), strict=True)
    if any(type(stride) is int and stride == 0 and (type(size) is not int or size > 1) for size, stride in shape):
        return True
    key = storage_key(changed)
    others = [leaf for leaf in leaves if leaf is not changed and storage_key(leaf) == key]
    return any(overlap_in_part(changed, other) for other in others)


CASTING = words("copy_ setitem __setitem__ masked_fill_ fill_ index_put_")
DTYPES = {float: torch.float32, complex: torch.complex64}


def may_not_cast(changed: torch.Tensor, operands: tuple[Any, ...]) -> bool:
    """Whether torch may refuse an in-place change because the result does not fit its dtype. Fakes do not notice."""
    dtypes = [item.dtype if isinstance(item, torch.Tensor) else DTYPES.get(type(item)) for item in operands]
    return not all(dtype is None or torch.can_cast(dtype, changed.dtype) for dtype in dtypes)


def overlap_in_part(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two views of one memory overlap in a part; torch looks at dense ones only. Yes if sizes are symbols."""
    views = [(tuple(view.shape), view.stride(), view.storage_offset()) for view in (one, other)]
    if any(type(number) is not int for shape, strides, offset in views for number in (*shape, *strides, offset)):
        return True
    if views[0] == views[1] or not (is_dense(one) and is_dense(other)):
        return False
    (begin, end), (other_begin, other_end) = ((offset, offset + math.prod(shape)) for shape, _, offset in views)
    return begin < other_end and other_begin < end


def note_written(trace: Trace, leaves: list[torch.Tensor], changed: list[torch.Tensor]) -> bool:
    """Inputs written to from other inputs; gives whether any share memory, which torch may refuse."""
    targets = changed_inputs(trace, changed)
    if not targets:
        return False
    met = changed_inputs(trace, leaves)
    if len(met) == 1:
        return False
    trace.effects.written_from |= met
    return share_memory(*[info.real for info in met.values()])


def share_memory(*tensors: torch.Tensor) -> bool:
    """Whether any two tensors do."""
    return len(set(map(storage_key, tensors))) < len(tensors)


MOST_COPIED = 1 << 16  # elements of a changed input that is still copied


def is_restorable(info: TensorInfo) -> bool:
    """Whether an input is small and has kept its form, as far as symbolic sizes tell."""
    real: torch.Tensor = info.real
    fake = info.fake
    if info.data_set or real.layout is not torch.strided or real.numel() > MOST_COPIED:
        return False
    if any(stride == 0 and size > 1 for size, stride in zip(real.shape, real.stride(), strict=True)):
        return False  # torch does not write to elements that share memory
    return bool(real.dim() == fake.dim() and real.untyped_storage().nbytes() == fake.untyped_storage().nbytes())
