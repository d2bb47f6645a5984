"""Gradient patterns: which gradients a Python backward or its hooks return, predicted before they run.

A trace has to know where there will be no gradient. The bytecode of a backward mostly shows it: ``return gradient * 2,
None``. A wrong prediction is found after the function has run. Then the pass bails out (``calls/bailout.py``), and the
pattern that was seen is recorded for the next trace.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from ...bytecode.opcode_info import LOADS_CONSTANT
from ...platform.torch_autograd import forward_class_of

Pattern = tuple[bool, ...]  # for each value that the function returns: whether it is a gradient
_varying: set[object] = set()
_learned: dict[object, Pattern] = {}  # by code (of hooks by all of theirs), or by the name of a node that is not Python


def hook_in(code: types.CodeType) -> types.CodeType | None:
    """The innermost function that another makes."""
    made = [part for part in code.co_consts if isinstance(part, types.CodeType) and part.co_name in ("fn", "hook")]
    return hook_in(made[0]) or made[0] if made else None


OUTPUT_HOOK = hook_in(BackwardHook.setup_output_hook.__code__)  # of modules with hooks, after their outputs' node


def backward_of(kind: type) -> Any:
    """The user's function, for a class made by ``torch.autograd.Function``."""
    forward_class: Any = forward_class_of(kind, kind)
    for name in ("backward", "vjp"):
        function = getattr(forward_class, name, None)
        base = getattr(torch.autograd.Function, name)
        if function is not None and function is not base:
            return function
    return None


def code_of(function: Any) -> types.CodeType | None:
    """The code of a function, without wrappers that keep ``__wrapped__``, such as `once_differentiable`."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def predict(kind: type, count: int) -> Pattern:
    """Where the backward of this class returns gradients, out of ``count``; everywhere, if nothing is known."""
    code = code_of(backward_of(kind))
    if code is None:
        return (True,) * count
    pattern = _learned.get(code)
    if pattern is None:
        pattern = returned_pattern(code)
    if pattern is None or len(pattern) != count:
        return (True,) * count
    return pattern


def predict_named(name: str, count: int) -> Pattern:
    """The same for a node that is called without being traced."""
    pattern = _learned.get(name, ())
    return pattern if len(pattern) == count else (True,) * count


def learn(kind: type, pattern: Pattern) -> bool:
    """Record what the backward of a class returned. Gives whether this is the first pattern seen of it."""
    code = code_of(backward_of(kind))
    return code is not None and record(code, pattern)


def predict_hooks(hooks: Sequence[Any], there: Pattern, outside: Pattern | None) -> Pattern:
    """Where hooks before or after a node leave gradients; after it, ``outside`` is the pattern of those that came in.

    Hooks may take gradients away. Torch's own on modules do, where no gradient came in for an output.
    """
    codes = tuple(code_of(hook) for hook in hooks)
    pattern = _learned.get(codes)
    if pattern is None and OUTPUT_HOOK in codes:
        pattern = outside
    if pattern is None or len(pattern) != len(there):
        return there
    return tuple(now and before for now, before in zip(pattern, there, strict=True))


def learn_hooks(hooks: Sequence[Any], pattern: Pattern) -> bool:
    return record(tuple(code_of(hook) for hook in hooks), pattern)


def record(key: object, pattern: Pattern) -> bool:
    """Record a pattern; gives whether it is the first one for this key."""
    is_first = key not in _learned
    if not is_first:
        _varying.add(key)
    _learned[key] = pattern
    return is_first


def varies(name: str) -> bool:
    """Whether a node that is called without being traced returned different patterns."""
    return name in _varying


def reset() -> None:
    _learned.clear()
    _varying.clear()


def returned_pattern(code: types.CodeType) -> Pattern | None:
    """The pattern that all return statements agree on."""
    found: set[Pattern] = set()
    instructions = [one for one in dis.get_instructions(code) if one.opname not in ("RESUME", "CACHE", "NOP")]
    for place, instruction in enumerate(instructions):
        if instruction.opname == "RETURN_CONST":
            found.add(constant_pattern(instruction.argval))
        elif instruction.opname == "RETURN_VALUE":
            found.add(pattern_before(instructions, place))
    return found.pop() if len(found) == 1 else None


def constant_pattern(value: object) -> Pattern:
    return tuple(part is not None for part in value) if isinstance(value, tuple) else (value is not None,)


def pattern_before(instructions: list[dis.Instruction], place: int) -> Pattern:
    """The pattern of the value on the stack: the trailing Nones of a tuple display, the rest gradients."""
    last = instructions[place - 1]
    if last.opname in LOADS_CONSTANT:
        return constant_pattern(last.argval)
    if last.opname != "BUILD_TUPLE":
        return (True,)
    pattern: list[bool] = []
    place -= 2
    while len(pattern) < (last.arg or 0) and instructions[place].opname in LOADS_CONSTANT:
        pattern.append(instructions[place].argval is not None)
        place -= 1
    missing = (last.arg or 0) - len(pattern)
    leading = first_items(instructions, place, missing)
    return (*leading, *reversed(pattern))


def first_items(instructions: list[dis.Instruction], place: int, count: int) -> Pattern:
    """The pattern of items made by single loads; a computed item hides those before it."""
    pattern: list[bool] = []
    while len(pattern) < count:
        instruction = instructions[place]
        if instruction.opname.startswith("LOAD_FAST"):
            pattern += [True] * instruction.opname.count("LOAD_FAST")  # newer releases load two at once
        elif instruction.opname in LOADS_CONSTANT:
            pattern.append(instruction.argval is not None)
        else:
            break
        place -= 1
    return (*(True,) * (count - len(pattern)), *reversed(pattern[:count]))
