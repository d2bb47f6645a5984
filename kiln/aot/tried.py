"""What an operator gives where torch's rule for tensors without data fails, and the real kernel may not.

Such rules divide by a count of zero, or ask for a view that a layout does not allow. Eager is what counts: the kernel
runs once, on zeros that lie like the arguments, and what it gives is looked at, not its values. If it raises as well,
the error was the program's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)  # of Python's own
MOST_ELEMENTS = 1 << 22  # of the arguments


class CannotTry(Exception):
    """The kernel does not run on zeros, or must not."""


def tried(function: torch._ops.OpOverload, args: tuple, keywords: dict[str, Any], given: list[FakeTensor]) -> Any:
    """What the operator gives for zeros like its arguments."""
    drawn = torch.Tag.nondeterministic_seeded in function.tags
    if drawn or function.is_view or function._schema.is_mutable:
        raise CannotTry
    if any(tensor.fake_device.type != "cpu" for tensor in given) or sum(map(reach, given)) > MOST_ELEMENTS:
        raise CannotTry
    with _disable_current_modes(), torch._C._DisablePythonDispatcher(), torch.inference_mode(False), torch.no_grad():
        real_args, real_keywords = tree_map_only(FakeTensor, zeros_like, (args, keywords))
        try:
            result = function(*real_args, **real_keywords)
        except Exception as error:
            raise CannotTry from error
    arguments = {memory_of(part) for part in tree_leaves((real_args, real_keywords)) if isinstance(part, torch.Tensor)}
    for part in tree_leaves(result):
        if type(part) is not torch.Tensor or part.storage_offset() or memory_of(part) in arguments:
            raise CannotTry
    return result


def memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def reach(tensor: torch.Tensor) -> int:
    """How many elements of memory a tensor looks at, holes counted."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def zeros_like(tensor: FakeTensor) -> torch.Tensor:
    memory = torch.zeros(reach(tensor), dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride())
