"""Rules for builtins that look at the frame (``super``, ``locals``) or act outside the program (``print``)."""

from __future__ import annotations

import builtins
import contextlib
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...bytecode.normalize import call_super
from ...bytecode.split_plan import OWN_PREFIX
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..interpreter.program_types import native_name
from ..interpreter.protocols import force_all
from ..shadows.wrap import force
from ..state.exceptions import call_for_program, guard_caller, traceback_of
from ..state.operations import Args, Kwargs, operations
from ..state.trace import Trace
from ..state.values import GraphBreak, Raised, TensorSuper


@rule(super)
def rule_super(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if args:
        return make_super(trace, *force_all(trace, args))
    frame = trace.frames[-1]
    code = frame.code
    if code.co_argcount == 0:
        raise super_error(trace, "super(): no arguments")
    first = code.co_varnames[0]
    if first in frame.cells:
        owner = cell_value(frame.cells[first])
    else:
        owner = frame.locals.get(first, MISSING)
    if owner is MISSING:
        raise super_error(trace, "super(): arg[0] deleted")
    cell = frame.cells.get("__class__")
    if cell is None:
        raise super_error(trace, "super(): __class__ cell not found")
    return super_of_class(trace, cell_value(cell), owner)


def super_of_class(trace: Trace, cls: object, owner: object) -> super | TensorSuper:
    """``super()``, given the contents of the cell ``__class__``, or MISSING."""
    if cls is MISSING:
        raise Raised(RuntimeError("super(): empty __class__ cell"))
    cls = force(trace, cls)
    if not isinstance(cls, type):
        raise Raised(RuntimeError(f"super(): __class__ is not a type ({native_name(trace, cls)})"))
    return make_super(trace, cls, force(trace, owner))


@rule(call_super)
def rule_call_super(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``super()`` in a method, as the bytecode was rewritten."""
    function = force(trace, args[0])
    if function is not super:
        return call(trace, function, (), {})
    cls = cell_value(args[1]) if type(args[1]) is types.CellType else args[1]
    return super_of_class(trace, cls, args[2])


def super_error(trace: Trace, message: str) -> Raised | GraphBreak:
    """The error of ``super()`` outside a method. CPython reads the frame, so the root frame must run in eager."""
    if len(trace.frames) == 1:
        return trace.fail("super() in a function that is no method", whole=True)
    return Raised(RuntimeError(message))


def cell_value(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def make_super(trace: Trace, *args: Any) -> super | TensorSuper:
    if len(args) == 2 and isinstance(args[1], torch.Tensor):
        return operations.tensor_super(trace, args[0], args[1])
    made: super = call_for_program(trace, super, *args)
    return made


@rule(vars(super)["__get__"])
def rule_super_get(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    proxy, owner = force(trace, args[0]), force(trace, args[1])
    if owner is None or object.__getattribute__(proxy, "__self__") is not None:
        return proxy
    return make_super(trace, object.__getattribute__(proxy, "__thisclass__"), owner)


@rule(sys.exception)
def rule_exception(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if trace.exceptions.handled is None:
        guard_caller(trace)
    return trace.exceptions.handled


@rule(sys.exc_info)
def rule_exc_info(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    error = rule_exception(trace, (), {})
    return (None, None, None) if error is None else (type(error), error, traceback_of(trace, error))


@rule(sys.exit)
def rule_exit(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    raise Raised(SystemExit(*force_all(trace, args)))


@rule(globals)
def rule_globals(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    raise trace.fail("globals()", "read and write global variables by name")


@rule(locals)
def rule_locals(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    frame = trace.frames[-1]
    code, values = frame.code, {}
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        if name.startswith(OWN_PREFIX) or not name.isidentifier():
            continue
        if name in frame.cells:
            with contextlib.suppress(ValueError):
                values[name] = frame.cells[name].cell_contents
        elif name in frame.locals:
            values[name] = frame.locals[name]
    return values


@rule(builtins.__import__)
def rule_import(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    module = __import__(*force_all(trace, args), **kwargs)
    trace.outside.pinned(module)
    return module


def add_break_rule(builtin: Callable[..., Any]) -> None:
    """A builtin with effects outside the program is always left to Python."""

    @rule(builtin)
    def rule_outside(trace: Trace, args: Args, kwargs: Kwargs) -> None:
        raise trace.fail(f"a call to {builtin.__name__}(), which acts outside the program's own objects")


for _builtin in (print, input, open, breakpoint, exec, eval, compile):
    add_break_rule(_builtin)
