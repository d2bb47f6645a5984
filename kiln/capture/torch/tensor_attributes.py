"""Attributes of tensors, read and set.

Few of them are operations (``T``, ``real``); most are constants that the tensor guards imply. Attributes that the
program sets are kept in :class:`TensorInfo` until the graph has run.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...platform.python_objects import words
from ...platform.torch_dispatch import DisableTorchFunction
from ...platform.torch_fake import UnsupportedFakeTensorException
from ...program.quiet import quiet
from ..guards.guard_program import READERS, GuardProgram
from ..guards.source import Attribute, Computed, InstanceAttribute, Source, source
from ..interpreter.descriptors import bind_class_attribute
from ..python.warning_calls import rule_warn
from ..shadows.symbolic_numbers import concrete, may_override
from ..shadows.tensor_effects import version
from ..shadows.tensors import record
from ..shadows.wrap import class_attribute, force, wrap
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import Lazy, Raised, TensorInfo
from .tensor_subclasses import defines

NODE_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})


def _present(names: str) -> frozenset[str]:
    """Those that this version of torch has; others may be attributes of the program."""
    return frozenset(name for name in words(names) if hasattr(torch.Tensor, name))


PLAIN_ATTRIBUTES = _present(
    "shape dtype device ndim requires_grad is_leaf layout itemsize nbytes is_cuda is_cpu is_sparse is_mkldnn is_meta "
    "is_mps is_xpu is_quantized is_nested is_sparse_csr is_vulkan is_ipu is_xla is_maia is_mtia names retains_grad "
    "output_nr __torch_function__ __torch_dispatch__ __array_priority__ __doc__ __module__ "
    "__class__ __hash__"
) | {"_is_param"}

INPUT_FLAGS = _present("is_leaf output_nr names")  # not implied by the guards on a tensor


def guard_flag(trace: Trace, info: TensorInfo, name: str) -> None:
    """Guard a property of an input."""
    if info.source is None:
        return
    overriding = may_override(info.real)
    place = Computed(past_overrides(name), (info.source,)) if overriding else Attribute(info.source, name)
    trace.guards.add(place, "constant", getattr(info.real, name))


@functools.cache
def past_overrides(name: str) -> Callable[[torch.Tensor], object]:
    """Reads a property of a tensor without asking the ``__torch_function__`` of its class."""

    def read(tensor: torch.Tensor) -> object:
        with DisableTorchFunction():
            return getattr(tensor, name)

    read.__name__ = name
    return read


@operation
def tensor_attribute(trace: Trace, tensor: torch.Tensor, name: str) -> object:
    """``tensor.name`` for what is not a method."""
    info = trace.tensor_info(tensor)
    if name in info.attributes:
        if name == "grad" and info.attributes[name] is None and info.source is not None:
            if info.real.requires_grad and not may_override(info.real):
                warn_of_missing_gradient(trace, info)
        return info.attributes[name]
    if name == "grad":
        return tensor_grad(trace, info)
    if name in NODE_ATTRIBUTES:
        if trace.overrides.has_subclasses and defines(trace, tensor, name):
            raise trace.fail(f"{name} of a tensor whose class defines another one")
        return record(trace, getattr, (tensor, name), {})
    if name == "__class__":
        return info.kind
    if name == "grad_fn" and tensor.grad_fn is None and (info.source is None or info.real.grad_fn is None):
        guard_flag(trace, info, "is_leaf")  # a tensor with a history is none
        return None
    if name == "grad_fn" and info.source is None:
        return operations.load_grad_fn(trace, info)
    if name in INPUT_FLAGS:
        guard_flag(trace, info, name)
    if name == "output_nr" and info.source is not None and trace.autograd.origins.get(tensor.grad_fn) is info:
        return info.real.output_nr  # the fake's history is a stand-in
    if name == "retains_grad" and info.source is not None:
        guard_flag(trace, info, "is_leaf")  # leaves have no need to
        guard_flag(trace, info, name)
        return tensor.retains_grad or info.real.retains_grad
    if name in PLAIN_ATTRIBUTES:
        try:
            return plain_attribute(tensor, name)
        except UnsupportedFakeTensorException as error:  # names of dimensions, in torch 2.11
            raise trace.fail(f"reading {name} of a tensor", error=error) from None
    if name in ("__dict__", "grad_fn", "_version", "_grad", "_base", "_backward_hooks", "_post_accumulate_grad_hooks"):
        raise trace.fail(f"reading {name} of a tensor", "read it outside the compiled function")
    return python_attribute(trace, info, name)


def plain_attribute(tensor: torch.Tensor, name: str) -> object:
    if name == "nbytes" and tensor.layout is torch.strided:
        return tensor.numel() * tensor.itemsize  # torch's own fails for symbolic sizes
    try:
        return getattr(tensor, name)
    except AttributeError:
        raise Raised(AttributeError(f"'Tensor' object has no attribute '{name}'")) from None


def tensor_grad(trace: Trace, info: TensorInfo) -> object:
    if info.source is None:
        if info.fake.grad is None and (info.fake.is_leaf or info.fake.retains_grad):
            return None
        raise trace.fail("reading .grad of a tensor made inside the compiled function")
    if trace.deferred.calls and not info.real.is_leaf:
        raise trace.fail("reading .grad of a tensor that a backward pass may be about to set")
    overriding = may_override(info.real)
    gradient = gradient_quietly(info.real)
    if gradient is None and not overriding and info.real.requires_grad:
        warn_of_missing_gradient(trace, info)
    source = Computed(past_overrides("grad"), (info.source,)) if overriding else GradientOf(info.source)
    return wrap(trace, gradient, source)


def warn_of_missing_gradient(trace: Trace, info: TensorInfo) -> None:
    """Give torch's warning for reading the gradient of a tensor that is no leaf and retains none."""
    guard_flag(trace, info, "is_leaf")
    if info.real.is_leaf:
        return
    guard_flag(trace, info, "retains_grad")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        info.real.grad  # noqa: B018
    for warning in seen:
        rule_warn(trace, (str(warning.message), warning.category), {})


@source
class GradientOf(Source):
    """``tensor.grad``, without the warning that torch gives for a tensor that is no leaf."""

    base: Source

    def render(self, base: str, bind: Callable[[object, str], str]) -> str:
        return f"({base}.grad if {base}.is_leaf else {bind(gradient_quietly, 'gradient')}({base}))"

    def describe(self) -> str:
        return f"{self.base.describe()}.grad"


READERS[GradientOf] = GuardProgram.read_gradient


def gradient_quietly(tensor: torch.Tensor) -> torch.Tensor | None:
    with quiet():
        return tensor.grad


@operation
def python_attribute(trace: Trace, info: TensorInfo, name: str) -> object:
    """An attribute that the program (or its owner) put on the tensor, or a Python method of its class."""
    from .tensor_subclasses import load_missing

    namespace = getattr(info.real, "__dict__", None) or {}
    raw = class_attribute(trace, info.kind, name, MISSING)
    if info.source is not None and name in namespace and not hasattr(type(raw), "__set__"):
        return trace.outside.reach(Lazy(namespace[name], InstanceAttribute(info.source, name)))
    if info.source is not None:
        trace.guards.add(info.source, "no_attribute", name)
    if raw is MISSING:
        return load_missing(trace, info, name)
    if isinstance(raw, functools.cached_property):
        raise trace.fail(f"{info.kind.__qualname__}.{name}, a cached property of a tensor")
    return bind_class_attribute(trace, info.fake, info.kind, name, raw)


@operation
def set_tensor_attribute(trace: Trace, tensor: torch.Tensor, name: str, value: Any) -> None:
    from .tensor_subclasses import check_store

    info = trace.tensor_info(tensor)
    if trace.overrides.has_subclasses:
        check_store(trace, info, name)
    if name == "requires_grad":
        guard_flag(trace, info, "is_leaf")
        if not tensor.is_leaf or (info.source is not None and not info.real.is_leaf):
            raise trace.fail("assigning to .requires_grad of a tensor that is no leaf: torch raises")
        record(trace, torch.Tensor.requires_grad_, (tensor, concrete(trace, value)), {}, method="requires_grad_")
    elif name == "data":
        set_data(trace, info, value)
    elif name == "grad" or not hasattr(torch.Tensor, name):
        info.attributes[name] = value
        info.grad_set = True
    else:
        raise trace.fail(f"assigning to .{name} of a tensor", "do it outside the compiled function")


def set_data(trace: Trace, info: TensorInfo, value: Any) -> None:
    """``tensor.data = value``: the same tensor with other contents, shape and memory."""
    value = force(trace, value)
    plain = isinstance(value, torch.Tensor) and value.device == info.fake.device
    plain = plain and not value.is_inference() and version(info.fake) >= 0
    if not plain or trace.effects.in_try or info.kind not in (torch.Tensor, Parameter):
        raise trace.fail("assigning to .data of a tensor here", "do it outside the compiled function")
    trace.inputs.forget_memory()  # the fake gets other memory now
    record(trace, torch.ops.aten.set_data.default, (info.fake, value), {})
    if info.source is not None:
        trace.effects.reasons.append("assigning to .data changes a tensor from outside")
        trace.effects.changed[id(info.fake)] = info
        info.data_set = True
