"""Branches on a tensor's value of which one side only raises: assertions and checks of arguments.

The other side is captured, after a node that raises where the value is not what that takes. Then eager runs the frame
from its start and raises the program's own error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .._native import is_instance as isinstance
from ..bytecode import Bytecode, Instruction
from ..bytecode.analysis import reachable, successors
from .calls import call_function
from .natives import rule
from .rewind import can_rewind
from .rules import known_truth, truth
from .tensors import record
from .trace import Trace
from .wrap import force

if TYPE_CHECKING:
    from .frame import Frame


def branch_ahead(frame: Frame, value: object) -> bool:
    """The truth of a value, which the next instruction may be a conditional jump on."""
    following = frame.bytecode.instructions[frame.index + 1]
    return branch(frame, following, value) if following.op.startswith("POP_JUMP") else truth(frame.trace, value)


def branch(frame: Frame, instruction: Instruction, value: object) -> bool:
    """The truth of a value that a conditional jump is about to look at."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or known_truth(frame.trace, value) is not None:
        return truth(frame.trace, value)
    jumps_if = "TRUE" in instruction.op
    if only_raises(frame.bytecode, instruction.index + 1):
        wanted = jumps_if
    elif instruction.target is not None and only_raises(frame.bytecode, instruction.target.index):
        wanted = not jumps_if
    else:
        return truth(frame.trace, value)
    require(frame.trace, value if wanted else record(frame.trace, torch.logical_not, (value,), {}))
    return wanted


@rule(torch._check_tensor_all_with)
def rule_check_all(trace, args, kwargs):
    """``torch._check_tensor_all``: as in an assertion, the error is eager's."""
    condition = force(trace, args[1])
    if not isinstance(condition, torch.Tensor) or condition.dtype is not torch.bool:
        return call_function(trace, torch._check_tensor_all_with, args, kwargs)
    require(trace, record(trace, torch.all, (condition,), {}))
    return None


def require(trace: Trace, condition: object) -> None:
    """The graph raises if this is not true."""
    if trace.effects and not can_rewind(trace):
        raise trace.fail("a check of a tensor's value after an effect that cannot be undone")
    record(trace, torch._assert_async, (condition,), {})  # type: ignore[attr-defined]


def only_raises(bytecode: Bytecode, start: int) -> bool:
    """Whether everything that control may reach from an instruction ends in an exception that leaves the blocks around.

    (One that is raised in a block entered on the way may be caught, or swallowed by a context manager.)
    """
    if start not in bytecode.raising:
        ends = [
            bytecode.instructions[index]
            for index in reachable(bytecode, start, exceptional=False)
            if not successors(bytecode, bytecode.instructions[index])
        ]
        bytecode.raising[start] = bool(ends) and all(
            end.op in ("RAISE_VARARGS", "RERAISE") and bytecode.handler_at[end.index] is bytecode.handler_at[start]
            for end in ends
        )
    return bytecode.raising[start]
