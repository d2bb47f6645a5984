"""Memory of tensors: whether two share it, whether it is dense, whether elements overlap."""

from __future__ import annotations

from typing import Any

import torch

from ..platform.torch_tensors import storage_address


def storage_key(tensor: torch.Tensor) -> int:
    """The same number for tensors that share memory; one that is not strided shares none."""
    return storage_address(tensor) if tensor.layout is torch.strided else id(tensor)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a block of memory, each once, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    size, stride = tensor.shape, tensor.stride()
    following = 1
    for place in sorted([place for place in range(len(size)) if size[place] != 1], key=lambda place: stride[place]):
        if stride[place] != following:
            return False
        following = following * size[place]
    return True


def elements_spanned(tensor: torch.Tensor) -> int:
    """How many elements of memory a tensor spans, holes counted."""
    if not tensor.numel():
        return 0
    start, end = span(tensor)
    return int(end - start) + 1


def has_overlap(value: torch.Tensor) -> bool:
    """Whether several elements of a tensor may be one in memory."""
    sizes, strides = value.shape, value.stride()
    order = sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size != 1)
    reach = 1
    for stride, size in order:
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def may_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one storage may have elements in common without being the same elements in order."""
    same_places = one.storage_offset() == other.storage_offset() and one.stride() == other.stride()
    if same_places and one.shape == other.shape:
        return False
    (start, end), (other_start, other_end) = span(one), span(other)
    return bool(start <= other_end and other_start <= end) and not are_columns(one, other)


def are_columns(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are different columns of the same rows, as the parts are that a matrix is divided into."""
    numbers = [one.storage_offset(), other.storage_offset(), *one.stride(), *other.stride()]
    if any(not isinstance(number, int) for number in numbers):
        return False  # the number of rows is dynamic
    for width in {stride for stride in one.stride() if stride > 0 and stride in other.stride()}:
        ranges = []
        for tensor in (one, other):
            dims = list(zip(tensor.shape, tensor.stride(), strict=True))
            if not all(isinstance(size, int) for size, stride in dims if stride < width):
                break
            first = tensor.storage_offset() % width
            last = first + sum((size - 1) * stride for size, stride in dims if stride < width)
            ranges.append((first, last))
            if last >= width or any(stride % width for _, stride in dims if stride > width):
                break
        else:
            if ranges[0][1] < ranges[1][0] or ranges[1][1] < ranges[0][0]:
                return True
    return False


def span(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The first and last element of a tensor in its memory."""
    reach = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.storage_offset(), tensor.storage_offset() + sum(reach)
