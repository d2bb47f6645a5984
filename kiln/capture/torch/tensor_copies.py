"""``copy.deepcopy`` of tensors."""

from __future__ import annotations

import torch

from ...program.memory import storage_key
from ..guards.source import Computed
from ..shadows.tensors import record
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import TensorInfo
from .torch_calls import handler


@handler(torch.Tensor.__deepcopy__)
def tensor_deepcopy(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """Copy a tensor that shares its memory with no other, and has no gradient or attributes.

    Not by ``clone``: the version counter of torch's deep copy is 1.
    """
    tensor, memo = force(trace, args[0]), force(trace, args[1])
    info = trace.tensor_info(tensor)
    if trace.outside.record_of(memo) is not None:
        raise trace.fail("Tensor.__deepcopy__ with a memo from outside")
    if id(tensor) in memo:
        return memo[id(tensor)]
    if info.source is None or info.attributes or shares_memory(trace, info) or not copies_as_clone(info.real):
        raise trace.fail("copy.deepcopy of a tensor that is a view or not a leaf, or has a gradient or attributes")
    trace.guards.add(Computed(copies_as_clone, (info.source,)), "constant", True)
    trace.inputs.deep_copied[id(tensor)] = info
    detached = record(trace, torch.Tensor.detach, (tensor,), {})
    made = record(trace, torch.empty_like, (detached,), {})
    record(trace, torch.Tensor.copy_, (made, detached), {}, method="copy_")
    if tensor.requires_grad:
        record(trace, torch.Tensor.requires_grad_, (made,), {}, method="requires_grad_")
    memo[id(tensor)] = made
    return made


def copies_as_clone(tensor: torch.Tensor) -> bool:
    """Whether a deep copy of a tensor is what ``clone`` gives."""
    plain = type(tensor) is torch.Tensor and tensor.is_leaf and tensor.grad is None and not tensor.__dict__
    if not plain or tensor.storage_offset() or tensor.is_conj() or tensor.is_neg():
        return False
    whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    return whole and torch.ops.aten.is_non_overlapping_and_dense(tensor)


def shares_memory(trace: Trace, info: TensorInfo) -> bool:
    """Whether another input shares the memory: then the copies must share theirs."""
    key = storage_key(info.fake)
    others = [item for item in trace.inputs.tensors() if item is not info]
    return any(storage_key(item.fake) == key for item in others)
