"""Torch functions: which are leaves of the graph, and those whose meaning is not an operation.

A leaf is native code of torch, a function that torch lets others override (``torch.*``, ``torch.nn.functional.*``,
``Tensor.*``), or a registered operator. Other Python code of torch (modules, initialisers, context managers) is
interpreted like the user's own.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter

from ..._native import is_instance as isinstance
from ...platform.python_objects import words
from ...platform.torch_dispatch import count_dispatch_modes, dispatch_mode_of_key
from ...platform.torch_functions import (
    group_tensors,
    is_compiling,
    is_scripting,
    is_tracing,
    log_api_usage,
)
from ...platform.torch_operators import OpOverload, OpOverloadPacket
from ..guards.tensor_class import METHODS
from ..interpreter.call_rules import RULES, Rule, rule
from ..interpreter.iteration import get_iterator
from ..interpreter.protocols import truth
from ..python.value_builtins import rule_len
from ..shadows import tensors
from ..shadows.symbolic_numbers import OffsetOf, concrete, is_symbolic, may_override
from ..shadows.tensor_effects import operator_called
from ..shadows.tensors import record
from ..shadows.wrap import force
from ..state.annotations import ALLOWED, is_asked_by_torch, is_hashable
from ..state.exceptions import needs_real
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.values import GraphBreak, TensorInfo
from .overrides import override
from .subclass_conversions import LEAF_MODULES, as_subclass_handler, is_native_function
from .tensor_subclasses import defines

# Methods and functions that need values, the autograd graph, storage or text: left to eager between graphs.
REFUSED_NAMES = words(
    "item tolist numpy backward data_ptr storage untyped_storage "
    "_typed_storage share_memory_ is_shared pin_memory __reduce_ex__ __deepcopy__ __array__ __repr__ __format__ "
    "__dlpack__ set_ _make_subclass __bool__ __int__ __float__ __index__ "
    "__complex__ equal is_nonzero allclose map_ map2_ apply_ is_set_to __cuda_array_interface__ to_mkldnn "
    "_nnz sparse_mask to_sparse to_sparse_csr coalesce record_stream cudart resize_as_sparse_ manual_seed "
    "seed initial_seed get_rng_state set_rng_state save load set_printoptions set_default_dtype "
    "set_default_device set_num_threads _is_view is_pinned compile __torch_function__ __setstate__ _version"
)

# Those of them that turn values into Python objects or text.
VALUE_NAMES = words(
    "item tolist numpy __reduce_ex__ __array__ __repr__ __format__ __bool__ __int__ __float__ __index__ __complex__ "
    "equal is_nonzero allclose map_ map2_ apply_ save load"
)


@operation
def is_operation(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether a callee is a leaf of the graph."""
    kind = type(function)
    if kind is types.FunctionType:
        return (function.__module__ in LEAF_MODULES and is_public(function)) or function in ALLOWED
    if kind is types.BuiltinFunctionType:
        return isinstance(function.__self__, torch.Tensor) or is_native_function(function) or function in ALLOWED
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType):
        return issubclass(torch.Tensor, function.__objclass__) and function.__objclass__ is not object
    if kind is types.MethodWrapperType:
        return isinstance(function.__self__, torch.Tensor) or is_property_getter(function)
    if kind is types.MethodType:
        return isinstance(function.__self__, torch.Tensor) and is_operation(trace, function.__func__, args, kwargs)
    return isinstance(function, (OpOverload, OpOverloadPacket)) or function is Parameter


def is_property_getter(function: types.MethodWrapperType) -> bool:
    """``Tensor.shape.__get__``: what overrides get when an attribute is read."""
    owner = function.__self__
    return isinstance(owner, types.GetSetDescriptorType) and issubclass(torch.Tensor, owner.__objclass__)


def is_public(function: types.FunctionType) -> bool:
    name = function.__name__
    return not name.startswith("_") or name.startswith("__")


@operation
def call_torch(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> object:
    """Record a torch call, or do what it means for the trace."""
    if isinstance(function, types.MethodType):
        args, function = (function.__self__, *args), function.__func__
    if isinstance(function, (types.BuiltinFunctionType, types.MethodWrapperType)) and isinstance(
        function.__self__, torch.Tensor
    ):
        args = (function.__self__, *args)
        function = METHODS.get(function.__name__) or getattr(torch.Tensor, function.__name__)  # as tensors have it now
    name = getattr(function, "__name__", "")
    custom = override(trace, function, args, kwargs) if function is not torch.Tensor.as_subclass else None
    if custom is not None:
        return custom[0]
    if name == "__get__" and isinstance(function, types.MethodWrapperType):
        return load_property(trace, function, args)
    handler = HANDLERS.get(function) if is_hashable(function) else None
    if handler is not None:
        return handler(trace, args, kwargs)
    if name in REFUSED_NAMES:
        raise needs_value(trace, function)
    if operator_called(function, name).quantized:
        raise trace.fail(f"{tensors.function_name(function)}: quantized tensors stay outside graphs")
    if type(function) is types.FunctionType and function not in ALLOWED and not fit_in_graph(trace, args, kwargs):
        from ..interpreter.calls import call_function

        return call_function(trace, function, args, kwargs)  # its arguments include functions or objects to call
    method = method_name(function, args)
    if method is not None and trace.overrides.has_subclasses and defines(trace, args[0], method):
        method = None  # the graph would call what the class defines
    return record(trace, function, args, kwargs, method=method, exact=bool(ALLOWED) and function in ALLOWED)


def needs_value(trace: Trace, function: object) -> GraphBreak:
    reason = trace.fail(
        f"{tensors.function_name(function)}: it needs a tensor's value, storage, text or autograd graph",
        "call it outside the compiled function (the graph breaks here otherwise)",
    )
    return reason if getattr(function, "__name__", "") in VALUE_NAMES else needs_real(trace, reason)


def fit_in_graph(trace: Trace, args: Args, kwargs: Kwargs) -> bool:
    """Whether the graph can hold all arguments."""
    try:
        tensors.prepare(trace, (args, kwargs))
    except GraphBreak:
        return False
    return True


def method_name(function: object, args: Args) -> str | None:
    """The name for a ``call_method`` node, if the callee is a method of tensors."""
    if not args or not isinstance(args[0], torch.Tensor):
        return None
    if isinstance(function, types.MethodDescriptorType):
        name = function.__name__ if not function.__name__.startswith("__") else None
    elif isinstance(function, types.FunctionType) and function.__module__ == "torch._tensor":
        name = function.__name__ if not function.__name__.startswith("_") else None
    else:
        return None
    # The method may have been replaced by one that calls it.
    return name if name is not None and getattr(torch.Tensor, name, None) is function else None


def load_property(trace: Trace, getter: Any, args: Args) -> object:
    """``Tensor.prop.__get__`` reached from native code."""
    from .tensor_attributes import tensor_attribute

    return tensor_attribute(trace, args[0], getter.__self__.__name__)


HANDLERS: dict[object, Rule] = {}


def handler(*functions: object) -> Callable[[Rule], Rule]:
    """Register what a call of these functions of torch means, where it is not an operation."""

    def register(function: Rule) -> Rule:
        for target in functions:
            HANDLERS[target] = function
        return function

    return register


HANDLERS[torch.Tensor.as_subclass] = as_subclass_handler


@handler(torch.Tensor.__len__)
def tensor_len(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return rule_len(trace, args, kwargs)


@handler(torch.Tensor.__iter__)
def tensor_iter(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return get_iterator(trace, args[0])


@handler(torch.Tensor.__bool__)
def tensor_bool(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return truth(trace, args[0])


@handler(torch.Tensor.__hash__)
def tensor_hash(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return id(force(trace, args[0]))  # by identity, as in eager; each tensor has one shadow


@handler(torch.Tensor.__contains__)
def tensor_contains(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    raise trace.fail("`in` on a tensor: it needs the tensor's values")


def guard_offsets(trace: Trace) -> None:
    """Guard the storage offsets of inputs, once the program reads one (offsets of views follow from them)."""
    for item in trace.inputs.items:
        if isinstance(item, TensorInfo) and item.source is not None and not is_symbolic(item.fake.storage_offset()):
            place = OffsetOf(item.source, may_override(item.real))
            trace.guards.add(place, "constant", item.real.storage_offset())


def _layout_query(name: str) -> None:
    @handler(getattr(torch.Tensor, name))
    def query(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        """Sizes and strides are plain or symbolic numbers that the guards imply: no node."""
        tensor = force(trace, args[0])
        rest = [concrete(trace, arg) for arg in args[1:]]
        if name == "storage_offset":
            guard_offsets(trace)
        try:
            return getattr(tensor, name)(*rest, **{key: concrete(trace, value) for key, value in kwargs.items()})
        except Exception as error:
            raise trace.fail(f"Tensor.{name} fails: {error}", error=error) from error


for _name in ("size", "stride", "dim", "numel", "nelement", "ndimension", "storage_offset", "element_size"):
    _layout_query(_name)


@handler(torch.Tensor.data_ptr)
def refuse_pointer(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    raise needs_real(trace, trace.fail("data_ptr() of a tensor"))


@rule(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, is_compiling)
def rule_is_compiling(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """True for user code. Code of torch must do what it does in eager (Adam would compute in another order)."""
    return not is_asked_by_torch(trace)


_JIT: Any = torch.jit


@rule(_JIT.is_scripting, _JIT.is_tracing, is_scripting, is_tracing)
def rule_never(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return False


if torch.distributed.is_available():

    @rule(torch.distributed.is_initialized, torch.distributed.distributed_c10d.is_initialized)
    def rule_initialized(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        """Whether there is a process group; guarded."""
        found = torch.distributed.is_initialized()
        words = f"torch.distributed is {'' if found else 'not '}initialised"
        if not any(known == words for known, _ in trace.guards.extras):
            trace.guards.extras.append((words, lambda: torch.distributed.is_initialized() is found))
        return found


@rule(group_tensors)
def rule_group_tensors(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """Groups tensors by properties that guards imply; the real function runs."""
    lists = [[force(trace, tensor) for tensor in force(trace, group)] for group in force(trace, args[0])]
    rest = [concrete(trace, value) for value in (*args[1:], *kwargs.values())]
    try:
        return group_tensors(lists, *rest)
    except RuntimeError as error:
        raise trace.fail(f"tensors that cannot be grouped: {error}", error=error) from None


RULES.update(
    {
        torch.Size.numel: lambda trace, args, kwargs: math.prod(force(trace, args[0])),
        torch.is_tensor: lambda trace, args, kwargs: isinstance(force(trace, args[0]), torch.Tensor),
        # Calls under a dispatch mode are not compiled, so there is none.
        count_dispatch_modes: lambda trace, args, kwargs: 0,
        dispatch_mode_of_key: lambda trace, args, kwargs: None,
        torch.distributed.is_available: lambda trace, args, kwargs: torch.distributed.is_available(),
        torch.jit.annotate: lambda trace, args, kwargs: args[1],
        log_api_usage: lambda trace, args, kwargs: None,
    }
)
