"""``for index in range(0, size, step)`` over a dynamic size: the number of steps is guarded, not the size.

Loops over chunks of a tensor are written like this. With a step of one there is nothing to gain.
"""

from __future__ import annotations

import torch

from ..interpreter.call_rules import rule
from ..interpreter.native_calls import call_without_rule
from ..interpreter.operators import compare
from ..interpreter.protocols import truth
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace


@rule(range)
def rule_range(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    values = [force(trace, arg) for arg in args]
    if kwargs or not in_steps(values) or not is_loop(trace):
        return call_without_rule(trace, range, args, kwargs)
    start, stop, step = values
    index = start
    while truth(trace, compare(trace, "<", index, stop)):
        trace.progress.count_step(trace)
        index += step
    return range(start, index, step)  # the same numbers; the loop cannot read the original stop


def in_steps(values: list[object]) -> bool:
    if len(values) != 3:
        return False
    start, stop, step = values
    return type(start) is int and type(stop) is torch.SymInt and type(step) is int and step > 1


def is_loop(trace: Trace) -> bool:
    """Whether the range is only iterated over by a loop."""
    frame = trace.frames[-1]
    return frame.bytecode.instructions[frame.index + 1].op == "GET_ITER"
