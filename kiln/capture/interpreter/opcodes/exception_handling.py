"""Opcodes of exceptions and ``with``."""

from __future__ import annotations

from typing import Any

from ...._native import MISSING
from ...._native import is_instance as isinstance
from ....bytecode import Instruction
from ....bytecode.opcode_info import OPCODE
from ....platform.python_objects import message_of
from ...guards.source import lookup
from ...shadows.wrap import class_attribute, force
from ...state.exceptions import add_context, traceback_of
from ...state.values import Raised
from ..calls import call
from ..descriptors import bind_class_attribute
from ..frame import NULL, Frame
from ..program_types import native_name, type_of
from ..protocols import force_classes, is_instance
from .table import opcode, push_callable


@opcode("PUSH_EXC_INFO")
def push_exc_info(frame: Frame, instruction: Instruction) -> None:
    error = frame.pop()
    frame.push(frame.trace.exceptions.handled)
    frame.push(error)
    frame.trace.exceptions.handled = error


@opcode("POP_EXCEPT")
def pop_except(frame: Frame, instruction: Instruction) -> None:
    frame.trace.exceptions.handled = frame.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(frame: Frame, instruction: Instruction) -> None:
    classes = force_classes(frame.trace, frame.pop())
    for cls in classes if isinstance(classes, tuple) else (classes,):
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            frame.raise_error(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    frame.push(is_instance(frame.trace, frame.peek(), classes))


@opcode("CHECK_EG_MATCH", "PREP_RERAISE_STAR", "CALL_INTRINSIC_2")
def exception_groups(frame: Frame, instruction: Instruction) -> None:
    raise frame.trace.fail("except* and exception groups, or type parameters")


@opcode("RERAISE")
def reraise(frame: Frame, instruction: Instruction) -> None:
    raise Raised(frame.pop())


@opcode("RAISE_VARARGS")
def raise_varargs(frame: Frame, instruction: Instruction) -> None:
    cause = frame.pop() if instruction.argval == 2 else NULL
    if instruction.argval == 0:
        if frame.trace.exceptions.handled is None:
            raise frame.trace.fail("raising again what a caller is handling")
        raise Raised(frame.trace.exceptions.handled)
    error = exception_instance(frame, frame.pop(), "exceptions must derive from BaseException")
    if cause is not NULL:
        message = "exception causes must derive from BaseException"
        error.__cause__ = None if cause is None else exception_instance(frame, cause, message)
    if id(error) in frame.trace.unbuildable.made:  # it was raised before, perhaps in other circumstances
        add_context(frame.trace, error)
    frame.raise_error(error)


def exception_instance(frame: Frame, value: object, otherwise: str) -> BaseException:
    if isinstance(value, type) and issubclass(value, BaseException):
        value = force(frame.trace, call(frame.trace, value, (), {}))
    if not isinstance(value, BaseException):
        raise Raised(TypeError(otherwise))
    return value


@opcode("BEFORE_WITH")
def before_with(frame: Frame, instruction: Instruction) -> None:
    manager = frame.pop()
    enter = special_method(frame, manager, "__enter__")
    leave = special_method(frame, manager, "__exit__")
    if enter is MISSING or leave is MISSING:
        raise no_context_manager(frame, manager)
    frame.push(leave)
    frame.push(call(frame.trace, enter, (), {}))


@opcode("LOAD_SPECIAL")
def load_special(frame: Frame, instruction: Instruction) -> None:
    """A method of a context manager; the object of the call is always in the method, never beside it."""
    manager, name = frame.pop(), instruction.argval
    method = special_method(frame, manager, name)
    if method is MISSING:
        raise no_context_manager(frame, manager)
    push_callable(frame, method)


def no_context_manager(frame: Frame, manager: object) -> Raised:
    """What CPython raises for an object without these methods, asked of a class like the object's."""
    kind = type_of(frame.trace, manager)
    contents: dict[str, object] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    contents |= {name: lambda *args: None for name in MANAGER_METHODS if lookup(kind, name) is not None}
    namesake = type(native_name(frame.trace, manager), (), contents)()
    return Raised(TypeError(message_of(lambda: enter_natively(namesake))))


MANAGER_METHODS = ("__enter__", "__exit__", "__aenter__", "__aexit__")


def enter_natively(manager: Any) -> None:
    with manager:
        pass


def special_method(frame: Frame, manager: object, name: str) -> object:
    raw = class_attribute(frame.trace, type(manager), name, MISSING)
    if raw is MISSING:
        return raw
    return force(frame.trace, bind_class_attribute(frame.trace, manager, type(manager), name, raw))


# From 3.14 on the object of ``__exit__``, or NULL, lies over it.
BESIDE_METHOD = "LOAD_SPECIAL" in OPCODE


@opcode("WITH_EXCEPT_START")
def with_except_start(frame: Frame, instruction: Instruction) -> None:
    error = frame.peek()
    leave = frame.peek(5 if BESIDE_METHOD else 4)
    frame.push(call(frame.trace, leave, (type(error), error, traceback_of(frame.trace, error)), {}))
