"""Branches on a tensor's value of which one side only raises: assertions and checks of arguments.

The other side is captured, after a node that raises if the value leads to the raising side. Then the frame runs again
in eager, from its start, and raises the program's own error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..._native import is_instance as isinstance
from ...bytecode import Bytecode, Instruction
from ...bytecode.analysis import reachable, successors
from ...bytecode.opcode_info import LOADS_CONSTANT, LOADS_LOCAL
from ...platform.torch_functions import assert_async, check_tensor_all_with, check_with, compare_regular_values
from ..interpreter.call_rules import rule
from ..interpreter.calls import call_function
from ..interpreter.protocols import truth
from ..shadows.tensors import record
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.value_ranges import known_truth
from ..writeback.rewind import can_rewind
from .torch_calls import handler, needs_value

if TYPE_CHECKING:
    from ..interpreter.frame import Frame


EXACT = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


@operation
def branch_ahead(frame: Frame, value: object) -> bool:
    """The truth of a value, which the next instruction may be a conditional jump on."""
    following = frame.bytecode.instructions[frame.index + 1]
    return branch(frame, following, value) if following.op.startswith("POP_JUMP") else truth(frame.trace, value)


@operation
def branch(frame: Frame, instruction: Instruction, value: object) -> bool:
    """The truth of a value that a conditional jump is about to look at."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or known_truth(frame.trace, value) is not None:
        return truth(frame.trace, value)
    if value.device.type == "meta":  # it has no value: torch raises
        return truth(frame.trace, value)
    wanted = continuing_truth(frame.bytecode, instruction)
    if wanted is None:
        return truth(frame.trace, value)
    assert_in_graph(frame.trace, value if wanted else record(frame.trace, torch.logical_not, (value,), {}))
    return wanted


@handler(torch.Tensor.item)
def item_in_check(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``t.item()`` that only decides whether an error is raised: the tensor stands for the number."""
    value = force(trace, args[0])
    frame = trace.frames[-1]
    if len(args) == 1 and not kwargs and value.dtype in EXACT and value.numel() == 1 and value.device.type != "meta":
        ahead = frame.bytecode.instructions[frame.index + 1 : frame.index + 5]
        if is_number(frame, ahead[0]) and value.dtype is not torch.bool and ahead[1].op == "COMPARE_OP":
            del ahead[:2]
        jump = next((after for after in ahead[:2] if after.op != "TO_BOOL"), None)
        if jump is not None and continuing_truth(frame.bytecode, jump) is not None:
            return as_number(trace, value)
    raise needs_value(trace, torch.Tensor.item)


def as_number(trace: Trace, value: torch.Tensor) -> object:
    """A tensor that compares with numbers like its value: smaller types would truncate the other number."""
    if value.dim():
        value = record(trace, torch.Tensor.squeeze, (value,), {}, method="squeeze")
    if value.dtype in (torch.bool, torch.int64):
        return value
    return record(trace, torch.Tensor.to, (value, torch.int64), {}, method="to")


def is_number(frame: Frame, instruction: Instruction) -> bool:
    """Whether an instruction loads an int that fits into int64."""
    value: object = None
    if instruction.op in LOADS_CONSTANT:
        value = instruction.argval
    elif instruction.op in LOADS_LOCAL:
        value = force(frame.trace, frame.locals.get(instruction.argval))
    return type(value) is torch.SymInt or (type(value) is int and -(2**63) <= value < 2**63)


@rule(check_with)
def rule_check(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    """``torch._check`` of a plain or symbolic truth; a failing check is left to eager."""
    condition = force(trace, args[1])
    if isinstance(condition, (bool, torch.SymBool)) and truth(trace, condition):
        return None
    raise trace.fail("torch._check of a condition that does not hold")


@rule(check_tensor_all_with)
def rule_check_all(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``torch._check_tensor_all``, as an assertion: eager raises the error."""
    condition = force(trace, args[1])
    if not isinstance(condition, torch.Tensor) or condition.dtype is not torch.bool:
        return call_function(trace, check_tensor_all_with, args, kwargs)
    assert_in_graph(trace, record(trace, torch.all, (condition,), {}))
    return None


@rule(compare_regular_values)
def rule_compare_values(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    """``torch.testing.assert_close`` after the checks of shapes and types: the rest can only raise."""
    left, right = (force(trace, value) for value in args[1:3])
    options = {name: kwargs[name] for name in ("rtol", "atol", "equal_nan")}
    assert_in_graph(trace, record(trace, torch.all, (record(trace, torch.isclose, (left, right), options),), {}))


def continuing_truth(bytecode: Bytecode, instruction: Instruction) -> bool | None:
    """The truth with which a conditional jump continues, if the other side only raises; None otherwise."""
    if not instruction.op.startswith("POP_JUMP") or not instruction.op.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    jumps_if = instruction.op.endswith("IF_TRUE")
    if only_raises(bytecode, instruction.index + 1):
        return jumps_if
    if instruction.target is not None and only_raises(bytecode, instruction.target.index):
        return not jumps_if
    return None


def assert_in_graph(trace: Trace, condition: object) -> None:
    """The graph raises if this is not true."""
    if trace.effects.reasons and not can_rewind(trace):
        raise trace.fail("a check of a tensor's value after an effect that cannot be undone")
    record(trace, assert_async, (condition,), {})


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
