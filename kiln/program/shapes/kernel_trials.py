"""Results of real kernels, run on zeros, where torch's shape rule fails and the kernel may not.

Some rules divide by a count of zero, or ask for a view that a layout does not allow. The kernel runs once, on zeros
with the layout of the arguments; only the layout of its result is used. If the kernel raises as well, the error stands.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

RULE_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)  # of Python's own
MAX_ELEMENTS = 1 << 22  # of the arguments


class CannotTry(Exception):
    """The kernel does not run on zeros, or must not."""


def run_on_zeros(
    function: torch._ops.OpOverload, args: tuple, keywords: dict[str, Any], given: list[FakeTensor]
) -> Any:
    """What the operator gives for zeros like its arguments."""
    drawn = torch.Tag.nondeterministic_seeded in function.tags
    if drawn or function.is_view or function._schema.is_mutable:
        raise CannotTry
    if any(tensor.fake_device.type != "cpu" for tensor in given) or sum(map(elements_spanned, given)) > MAX_ELEMENTS:
        raise CannotTry
    with _disable_current_modes(), torch._C._DisablePythonDispatcher(), torch.inference_mode(False), torch.no_grad():
        real_args, real_keywords = tree_map_only(FakeTensor, zeros_like, (args, keywords))
        try:
            result = function(*real_args, **real_keywords)
        except Exception as error:
            raise CannotTry from error
    arguments = {storage_id(part) for part in tree_leaves((real_args, real_keywords)) if isinstance(part, torch.Tensor)}
    for part in tree_leaves(result):
        if type(part) is not torch.Tensor or part.storage_offset() or storage_id(part) in arguments:
            raise CannotTry
    return result


def storage_id(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def elements_spanned(tensor: torch.Tensor) -> int:
    """How many elements of memory a tensor looks at, holes counted."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def zeros_like(tensor: FakeTensor) -> torch.Tensor:
    memory = torch.zeros(elements_spanned(tensor), dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride())
