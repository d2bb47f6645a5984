"""Results of real kernels, run on zeros, where torch's shape rule fails and the kernel may not.

Some rules divide by a count of zero, or ask for a view that a layout does not allow. The kernel runs once, on zeros
with the layout of the arguments; only the layout of its result is used. If the kernel raises as well, the error stands.
"""

from __future__ import annotations

from typing import Any

import torch

from ...platform.torch_dispatch import DisablePythonDispatcher, disable_current_modes
from ...platform.torch_fake import FakeTensor
from ...platform.torch_operators import OpOverload
from ...platform.torch_pytree import tree_leaves, tree_map_only
from ...platform.torch_tensors import storage_address
from ..memory import elements_spanned
from ..operators.operator_table import operator_of

RULE_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)  # of Python's own
MAX_ELEMENTS = 1 << 22  # of the arguments


class CannotTry(Exception):
    """The kernel does not run on zeros, or must not."""


def run_on_zeros(function: OpOverload, args: tuple[Any, ...], keywords: dict[str, Any], given: list[FakeTensor]) -> Any:
    """What the operator gives for zeros like its arguments."""
    operator = operator_of(function)
    if operator.random or function.is_view or operator.mutable:
        raise CannotTry
    if any(tensor.fake_device.type != "cpu" for tensor in given) or sum(map(elements_spanned, given)) > MAX_ELEMENTS:
        raise CannotTry
    with disable_current_modes(), DisablePythonDispatcher(), torch.inference_mode(False), torch.no_grad():
        real_args, real_keywords = tree_map_only(FakeTensor, zeros_like, (args, keywords))
        try:
            result = function(*real_args, **real_keywords)
        except Exception as error:
            raise CannotTry from error
    arguments = {
        storage_address(part) for part in tree_leaves((real_args, real_keywords)) if isinstance(part, torch.Tensor)
    }
    for part in tree_leaves(result):
        if type(part) is not torch.Tensor or part.storage_offset() or storage_address(part) in arguments:
            raise CannotTry
    return result


def zeros_like(tensor: FakeTensor) -> torch.Tensor:
    memory = torch.zeros(elements_spanned(tensor), dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride())
