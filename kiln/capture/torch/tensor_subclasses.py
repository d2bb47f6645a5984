"""What subclasses of ``torch.Tensor`` define in Python over torch's own: properties, methods, operators, ``super()``.

The shadow of a tensor is a fake of no class of the program's; the class is in its :class:`TensorInfo`. So what the
class defines has to be looked for before torch's own answer is given.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.nn import Parameter

from ... import operator_functions as operator
from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE, message_of, words
from ..interpreter.attributes import LOADERS
from ..interpreter.calls import call
from ..interpreter.descriptors import NATIVE_DESCRIPTORS, bind_class_attribute
from ..interpreter.operators import BINARY, COMPARE, INPLACE, UNARY
from ..shadows.wrap import class_attribute
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import Raised, TensorInfo, TensorSuper

READ_BY_KILN = words(
    "shape dtype device layout requires_grad is_leaf grad grad_fn data size stride dim storage_offset untyped_storage "
    "numel names output_nr retains_grad is_inference is_conj is_neg is_sparse is_quantized is_nested is_contiguous "
    "element_size _version _base _is_view __getattribute__ __class__"
)
"""Attributes that Kiln itself reads of inputs."""


def own_definition(kind: type, name: str) -> object:
    """What a subclass defines for a name, if it is not torch's; MISSING otherwise."""
    for klass in kind.__mro__:
        if klass is torch.Tensor or klass is Parameter:
            return MISSING
        if name in klass.__dict__:
            return klass.__dict__[name]
    return MISSING


def defines(trace: Trace, tensor: torch.Tensor, name: str) -> bool:
    """Whether the class of a tensor defines a name itself."""
    return own_definition(trace.tensor_info(tensor).kind, name) is not MISSING


@operation
def check_input(trace: Trace, kind: type) -> None:
    """Break the graph for a class that defines one of these attributes in Python."""
    found = next((name for name in READ_BY_KILN if own_definition(kind, name) is not MISSING), None)
    if found is not None:
        raise trace.fail(
            f"a tensor of class {kind.__qualname__}, which defines {found} in Python",
            "keep such tensors out of compiled code",
        )


@operation
def load_own(trace: Trace, info: TensorInfo, name: str) -> tuple[object] | None:
    """An attribute that the class of a tensor defines, in a tuple; None where it is torch's or the instance's."""
    raw = own_definition(info.kind, name)
    if raw is MISSING or name in ("__torch_function__", "__torch_dispatch__", "__module__", "__doc__", "__dict__"):
        return None
    if name in info.attributes and not hasattr(type(raw), "__set__"):
        return None
    return (operations.python_attribute(trace, info, name),)


def load_missing(trace: Trace, info: TensorInfo, name: str) -> object:
    """What ``__getattr__`` of the class gives, or the error."""
    if own_definition(info.kind, "__getattr__") is not MISSING:
        method = class_attribute(trace, info.kind, "__getattr__")
        return call(trace, method, (info.fake, name), {})
    raise Raised(AttributeError(f"'{info.kind.__name__}' object has no attribute '{name}'"))


def check_store(trace: Trace, info: TensorInfo, name: str) -> None:
    """Setting an attribute through a descriptor or ``__setattr__`` of the class is left to Python."""
    raw = own_definition(info.kind, name)
    if hasattr(type(raw), "__set__") or own_definition(info.kind, "__setattr__") is not MISSING:
        raise trace.fail(f"setting {name} of a {info.kind.__qualname__}, which does so in Python")


@operation
def check_operator(trace: Trace, function: object, operands: tuple[Any, ...]) -> None:
    """An operator that the class of an operand defines in Python is left to Python."""
    for operand in operands:
        if isinstance(operand, torch.Tensor):
            for name in methods_of(function):
                check_method(trace, operand, name)


@operation
def check_method(trace: Trace, tensor: torch.Tensor, name: str) -> None:
    """A special method that the class of a tensor defines in Python is left to Python."""
    if not trace.overrides.has_subclasses:
        return
    kind = trace.tensor_info(tensor).kind
    if own_definition(kind, name) is not MISSING:
        raise trace.fail(f"{kind.__qualname__}.{name}, which is defined in Python")


def methods_of(function: object) -> tuple[str, ...]:
    if not _METHODS:
        for row in (*BINARY.values(), *COMPARE.values(), *INPLACE.values(), *UNARY.values()):
            _METHODS.setdefault(row[0], tuple([name for name in row[1:] if type(name) is str]))
        for row in INPLACE.values():
            plain = f"__{row[1][3:]}"  # what an augmented assignment falls back on
            _METHODS[row[0]] = (row[1], plain, plain.replace("__", "__r", 1))
        _METHODS[operator.getitem], _METHODS[operator.setitem] = ("__getitem__",), ("__setitem__",)
    return _METHODS.get(function, ())


_METHODS: dict[object, tuple[str, ...]] = {}


@operation
def tensor_super(trace: Trace, start: type, owner: torch.Tensor) -> TensorSuper:
    kind = trace.tensor_info(owner).kind
    if not issubclass(kind, start):
        namesake = type(kind.__name__, (), {})()
        raise Raised(TypeError(message_of(lambda: super(start, namesake))))
    return TensorSuper(start, owner)


def load_from_tensor_super(trace: Trace, proxy: TensorSuper, name: str) -> object:
    """What comes after a class in the order of a tensor's class, bound to the tensor."""
    from .overrides import attribute_override

    info = trace.tensor_info(proxy.owner)
    order = info.kind.__mro__
    for cls in order[order.index(proxy.start) + 1 :]:
        if name not in cls.__dict__:
            continue
        raw = cls.__dict__[name]
        if cls.__flags__ & HEAP_TYPE:
            trace.guards.classes.watch(cls, name, raw)
        if isinstance(raw, types.GetSetDescriptorType) and issubclass(torch.Tensor, cls):
            custom = attribute_override(trace, proxy.owner, raw)
            return operations.tensor_attribute(trace, proxy.owner, name) if custom is None else custom[0]
        if type(raw) in NATIVE_DESCRIPTORS:
            return raw.__get__(proxy.owner)
        return bind_class_attribute(trace, proxy.owner, info.kind if isinstance(raw, classmethod) else cls, name, raw)
    raise Raised(AttributeError(f"'super' object has no attribute '{name}'"))


LOADERS[TensorSuper] = load_from_tensor_super
