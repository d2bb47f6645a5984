"""What is known of tensors' values without computing them: uniform random numbers lie between 0 and 1.

Models skip layers with ``if torch.rand([]) < self.layerdrop``; where that probability is 0 the branch is no question of
values. The number is drawn all the same.
"""

from __future__ import annotations

import torch
import torch.fx

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from .trace import Trace

UNIFORM = frozenset({torch.rand, torch.rand_like})  # at least 0, less than 1
EXACT = frozenset({torch.float32, torch.float64})  # others may round up to 1

BELOW = frozenset({operator.lt, torch.lt, torch.Tensor.lt, torch.Tensor.__lt__, "lt"})
BELOW_OR_EQUAL = frozenset({operator.le, torch.le, torch.Tensor.le, torch.Tensor.__le__, "le"})
ABOVE = frozenset({operator.gt, torch.gt, torch.Tensor.gt, torch.Tensor.__gt__, "gt"})
ABOVE_OR_EQUAL = frozenset({operator.ge, torch.ge, torch.Tensor.ge, torch.Tensor.__ge__, "ge"})


def known_truth(trace: Trace, tensor: torch.Tensor) -> bool | None:
    """The truth of a comparison that comes out the same whatever was drawn; None if that is not known."""
    node = trace.tensor_info(tensor).node
    if not isinstance(node, torch.fx.Node) or tensor.numel() != 1 or len(node.args) != 2 or node.kwargs:
        return None
    drawn, limit = node.args
    if not isinstance(drawn, torch.fx.Node) or not isinstance(limit, (int, float)) or type(limit) is bool:
        return None
    if drawn.target not in UNIFORM or len(drawn.users) != 1:  # another use may have changed it in place
        return None
    if node.target in BELOW or node.target in ABOVE_OR_EQUAL:
        below = is_below(drawn, limit, limit <= 0)
        return below if node.target in BELOW or below is None else not below
    if node.target in BELOW_OR_EQUAL or node.target in ABOVE:
        below = is_below(drawn, limit, limit < 0)
        return below if node.target in BELOW_OR_EQUAL or below is None else not below
    return None


def is_below(drawn: torch.fx.Node, limit: float, never: bool) -> bool | None:
    if never:
        return False
    return True if limit >= 1 and drawn.meta["example_value"].dtype in EXACT else None
