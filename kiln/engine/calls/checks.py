"""Checks after the program's code: where a pass bails out.

Plain Python on purpose: capture interprets these functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...program.accumulation import Gradients
from .bailout import Bailout, Pattern


def check_hooks(bailout: Bailout, point: int, values: Gradients, pending: Gradients) -> None:
    """Bail out if the program's code has changed hooks of what is still to run."""
    if bailout.changed and bailout.changed_after(point):
        bailout.bail_out(point, values, pending)


def check_hooks_after(outputs: Gradients, bailout: Bailout, point: int, values: Gradients, pending: Gradients) -> None:
    """The same after the program's code inside a node, which has returned these gradients."""
    if bailout.changed and bailout.changed_after(point):
        bailout.bail_out(point, values, pending, outputs)


def check_pattern(
    results: Gradients, pattern: Pattern, bailout: Bailout, point: int, values: Gradients, pending: Gradients
) -> None:
    """The same, and bail out if gradients came that the graph was not made for."""
    if (bailout.changed and bailout.changed_after(point)) or not follows(results, pattern):
        bailout.unpredicted(results, point, values, pending)


def follows(results: Gradients, pattern: Pattern) -> bool:
    for place in range(len(pattern)):
        result = results[place]
        if pattern[place] is not None and ((result is not None) != pattern[place] or not is_plain(result)):
            return False
    return True


def is_plain(value: Any) -> bool:
    """Whether graphs of the engine are made for such a gradient: eager takes sparse ones and subclasses too."""
    return value is None or (type(value) is Tensor and value.layout is torch.strided)
