"""Opcodes of CPython 3.11 to 3.13, one handler each, in one table.

A handler gets the frame and the instruction; it returns nothing, or the signal that the frame stopped. Operators on
values are in ``operators.py``. Method loads always push ``NULL, bound method``: the program cannot tell.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import torch

from ..bytecode import Instruction
from . import operators
from .attributes import delete_attribute, load_attribute, store_attribute
from .calls import call
from .frame import NULL, RETURNED, YIELDED, Frame
from .raising import add_context, generator_stopped, traceback_of
from .rules import get_iterator, is_instance, next_item, truth
from .symbols import concrete
from .values import DELETED, Lazy, Raised
from .wrap import class_attribute, force

Handler = Callable[[Frame, Instruction], object]
HANDLERS: dict[str, Handler] = {}

CALLABLE_FIRST = sys.version_info >= (3, 13)  # the order of NULL and callable on the stack


def opcode(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


# -- stack and variables --------------------------------------------------------------------------------------------


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "COPY_FREE_VARS", "SETUP_ANNOTATIONS", "EXTENDED_ARG")
def nothing(frame, instruction):
    return None


@opcode("POP_TOP", "END_FOR_POP")
def pop_top(frame, instruction):
    frame.stack.pop()


@opcode("PUSH_NULL")
def push_null(frame, instruction):
    frame.push(NULL)


@opcode("COPY")
def copy(frame, instruction):
    frame.push(frame.stack[-instruction.arg])


@opcode("SWAP")
def swap(frame, instruction):
    stack, depth = frame.stack, instruction.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@opcode("LOAD_CONST")
def load_const(frame, instruction):
    frame.push(instruction.argval)


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE")
def load_fast(frame, instruction):
    frame.push(local(frame, instruction.argval))


def local(frame: Frame, name: str) -> object:
    if name in frame.cells:
        return frame.cells[name]
    if name not in frame.locals:
        frame.raise_error(
            UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
        )
    return frame.locals[name]


@opcode("LOAD_FAST_LOAD_FAST")
def load_fast_twice(frame, instruction):
    for name in instruction.argval:
        frame.push(local(frame, name))


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(frame, instruction):
    name = instruction.argval
    if name in frame.cells:
        frame.push(frame.cells.pop(name))
    else:
        frame.push(frame.locals.pop(name, NULL))


@opcode("STORE_FAST")
def store_fast(frame, instruction):
    store_local(frame, instruction.argval, frame.pop_raw())


def store_local(frame: Frame, name: str, value: object) -> None:
    """Names of cells hold cells: comprehensions inlined by 3.12 put the cell of the enclosing scope back like this."""
    if name in frame.cell_names:
        frame.cells.pop(name, None)
        value = force(frame.trace, value)
        if type(value) is types.CellType:
            frame.cells[name] = value
            return
    if value is NULL:
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = value


@opcode("STORE_FAST_STORE_FAST")
def store_fast_twice(frame, instruction):
    for name in instruction.argval:
        store_local(frame, name, frame.pop_raw())


@opcode("STORE_FAST_LOAD_FAST")
def store_and_load(frame, instruction):
    first, second = instruction.argval
    store_local(frame, first, frame.pop_raw())
    frame.push(local(frame, second))


@opcode("DELETE_FAST")
def delete_fast(frame, instruction):
    local(frame, instruction.argval)
    frame.locals.pop(instruction.argval, None)


@opcode("MAKE_CELL")
def make_cell(frame, instruction):
    name = instruction.argval
    if name in frame.locals:
        frame.cells[name] = types.CellType(frame.locals.pop(name))
    else:
        frame.cells[name] = types.CellType()


@opcode("LOAD_DEREF", "LOAD_CLASSDEREF")
def load_deref(frame, instruction):
    name = instruction.argval
    try:
        frame.push(frame.cells[name].cell_contents)
    except ValueError:
        if name in frame.code.co_freevars:
            if frame is frame.trace.root:  # only the function itself, run as it is, can say this
                raise frame.trace.fail(f"free variable {name!r} is not bound yet", whole=True)
            message = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            frame.raise_error(NameError(message, name=name))
        frame.raise_error(
            UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
        )


@opcode("STORE_DEREF")
def store_deref(frame, instruction):
    frame.cells[instruction.argval].cell_contents = frame.pop_raw()


@opcode("DELETE_DEREF")
def delete_deref(frame, instruction):
    load_deref(frame, instruction)
    frame.stack.pop()
    del frame.cells[instruction.argval].cell_contents


@opcode("LOAD_GLOBAL", "LOAD_NAME")
def load_global(frame, instruction):
    if instruction.op == "LOAD_GLOBAL" and instruction.flag and not CALLABLE_FIRST:
        frame.push(NULL)
    frame.push(frame.trace.load_global(frame.globals, instruction.argval))
    if instruction.op == "LOAD_GLOBAL" and instruction.flag and CALLABLE_FIRST:
        frame.push(NULL)


@opcode("STORE_GLOBAL", "STORE_NAME")
def store_global(frame, instruction):
    frame.trace.written_globals(frame.globals)[instruction.argval] = frame.pop_raw()


@opcode("DELETE_GLOBAL", "DELETE_NAME")
def delete_global(frame, instruction):
    name = instruction.argval
    if name not in frame.globals and name not in frame.trace.written_globals(frame.globals):
        frame.raise_error(NameError(f"name {name!r} is not defined", name=name))
    frame.trace.load_global(frame.globals, name)
    frame.trace.written_globals(frame.globals)[name] = DELETED


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(frame, instruction):
    frame.push(AssertionError)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame, instruction):
    raise frame.trace.fail("a class statement inside the compiled function", "define the class at module level")


@opcode("LOAD_LOCALS")
def load_locals(frame, instruction):
    raise frame.trace.fail("locals of a class body")


# -- attributes and items -------------------------------------------------------------------------------------------


@opcode("LOAD_ATTR")
def load_attr(frame, instruction):
    value = load_attribute(frame.trace, frame.pop_raw(), instruction.argval)
    if instruction.flag:
        push_callable(frame, value)
    else:
        frame.push(value)


@opcode("LOAD_METHOD")
def load_method(frame, instruction):
    push_callable(frame, load_attribute(frame.trace, frame.pop_raw(), instruction.argval))


def push_callable(frame: Frame, value: object) -> None:
    if CALLABLE_FIRST:
        frame.push(value)
        frame.push(NULL)
    else:
        frame.push(NULL)
        frame.push(value)


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(frame, instruction):
    owner, cls, function = frame.pop(), frame.pop(), frame.pop()
    proxy = call(frame.trace, function, (cls, owner) if (instruction.arg & 2) else (), {})
    value = load_attribute(frame.trace, proxy, instruction.argval)
    if instruction.flag:
        push_callable(frame, value)
    else:
        frame.push(value)


@opcode("STORE_ATTR")
def store_attr(frame, instruction):
    owner, value = frame.pop(), frame.pop_raw()
    store_attribute(frame.trace, owner, instruction.argval, value)


@opcode("DELETE_ATTR")
def delete_attr(frame, instruction):
    delete_attribute(frame.trace, frame.pop(), instruction.argval)


@opcode("BINARY_SUBSCR")
def binary_subscr(frame, instruction):
    key, container = frame.pop(), frame.pop()
    frame.push(operators.get_item(frame.trace, container, key))


@opcode("BINARY_SLICE")
def binary_slice(frame, instruction):
    stop, start, container = frame.pop(), frame.pop(), frame.pop()
    frame.push(operators.get_item(frame.trace, container, slice(start, stop)))


@opcode("STORE_SUBSCR")
def store_subscr(frame, instruction):
    key, container, value = frame.pop(), frame.pop(), frame.pop_raw()
    operators.set_item(frame.trace, container, key, value)


@opcode("STORE_SLICE")
def store_slice(frame, instruction):
    stop, start, container, value = frame.pop(), frame.pop(), frame.pop(), frame.pop()
    operators.set_item(frame.trace, container, slice(start, stop), value)


@opcode("DELETE_SUBSCR")
def delete_subscr(frame, instruction):
    key, container = frame.pop(), frame.pop()
    operators.delete_item(frame.trace, container, key)


# -- operators ------------------------------------------------------------------------------------------------------


@opcode("BINARY_OP")
def binary_op(frame, instruction):
    right, left = frame.pop(), frame.pop()
    frame.push(operators.binary(frame.trace, instruction.argval, left, right))


@opcode("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT")
def unary(frame, instruction):
    frame.push(operators.unary(frame.trace, instruction.op, frame.pop()))


@opcode("UNARY_NOT")
def unary_not(frame, instruction):
    frame.push(not truth(frame.trace, frame.pop()))


@opcode("TO_BOOL")
def to_bool(frame, instruction):
    frame.push(truth(frame.trace, frame.pop()))


@opcode("COMPARE_OP")
def compare_op(frame, instruction):
    right, left = frame.pop(), frame.pop()
    result = operators.compare(frame.trace, instruction.argval, left, right)
    frame.push(truth(frame.trace, result) if CALLABLE_FIRST and instruction.flag else result)


@opcode("IS_OP")
def is_op(frame, instruction):
    right, left = frame.pop_raw(), frame.pop_raw()
    same = operators.is_same(frame.trace, left, right)
    frame.push(same != bool(instruction.arg))


@opcode("CONTAINS_OP")
def contains_op(frame, instruction):
    container, value = frame.pop(), frame.pop()
    frame.push(operators.contains(frame.trace, container, value) != bool(instruction.arg))


# -- building -------------------------------------------------------------------------------------------------------


@opcode("BUILD_TUPLE")
def build_tuple(frame, instruction):
    items = frame.pop_many(instruction.arg)
    following = frame.bytecode.instructions[frame.next]
    if following.op == "RETURN_VALUE" and frame is frame.trace.frames[0]:
        frame.push(tuple(items))  # handed back as it is: nobody looks into it here
    else:
        frame.push(tuple([force(frame.trace, item) for item in items]))


@opcode("BUILD_LIST")
def build_list(frame, instruction):
    frame.push(frame.pop_many(instruction.arg))


@opcode("BUILD_SET")
def build_set(frame, instruction):
    items = [force(frame.trace, item) for item in frame.pop_many(instruction.arg)]
    frame.push(native(frame, set, items))


def native(frame: Frame, function: object, *args: object) -> object:
    from . import natives

    return natives.call_native_default(frame.trace, function, args, {})


@opcode("BUILD_MAP")
def build_map(frame, instruction):
    items = frame.pop_many(2 * instruction.arg)
    made: dict = {}
    frame.push(made)
    for key, value in zip(items[::2], items[1::2], strict=True):
        operators.set_item(frame.trace, made, force(frame.trace, key), value)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame, instruction):
    keys = frame.pop()
    frame.push(dict(zip(keys, frame.pop_many(instruction.arg), strict=True)))


@opcode("BUILD_STRING")
def build_string(frame, instruction):
    frame.push("".join([force(frame.trace, part) for part in frame.pop_many(instruction.arg)]))


@opcode("BUILD_SLICE")
def build_slice(frame, instruction):
    frame.push(slice(*(force(frame.trace, part) for part in frame.pop_many(instruction.arg))))


@opcode("FORMAT_VALUE")
def format_value(frame, instruction):
    flags = instruction.arg
    spec = frame.pop() if flags & 4 else ""
    value = convert_text(frame, frame.pop(), flags & 3)
    frame.push(call(frame.trace, format, (value, spec), {}))


def convert_text(frame: Frame, value: object, kind: int) -> object:
    converter = (None, str, repr, ascii)[kind]
    return value if converter is None else call(frame.trace, converter, (value,), {})


@opcode("CONVERT_VALUE")
def convert_value(frame, instruction):
    frame.push(convert_text(frame, frame.pop(), instruction.arg))


@opcode("FORMAT_SIMPLE")
def format_simple(frame, instruction):
    frame.push(call(frame.trace, format, (frame.pop(), ""), {}))


@opcode("FORMAT_WITH_SPEC")
def format_with_spec(frame, instruction):
    spec, value = frame.pop(), frame.pop()
    frame.push(call(frame.trace, format, (value, spec), {}))


@opcode("LIST_APPEND")
def list_append(frame, instruction):
    value = frame.pop_raw()
    frame.peek(instruction.arg).append(value)


@opcode("SET_ADD")
def set_add(frame, instruction):
    value = frame.pop()
    call(frame.trace, frame.peek(instruction.arg).add, (value,), {})


@opcode("MAP_ADD")
def map_add(frame, instruction):
    value, key = frame.pop_raw(), frame.pop()
    operators.set_item(frame.trace, frame.peek(instruction.arg), key, value)


@opcode("LIST_EXTEND")
def list_extend(frame, instruction):
    items = frame.pop()
    target = frame.peek(instruction.arg)
    try:
        call(frame.trace, target.extend, (iterable(frame, items),), {})
    except Raised as raised:
        if isinstance(raised.error, TypeError) and "not iterable" in str(raised.error):
            name = type(items).__name__
            frame.raise_error(TypeError(f"Value after * must be an iterable, not {name}"))
        raise


def iterable(frame: Frame, value: object) -> object:
    """Something native code may iterate: interpreted ``__iter__`` and tensors included."""
    if isinstance(value, list | tuple | dict | str | set | frozenset | range) and type(value).__module__ == "builtins":
        return value
    return get_iterator(frame.trace, value)


@opcode("SET_UPDATE")
def set_update(frame, instruction):
    items = frame.pop()
    call(frame.trace, frame.peek(instruction.arg).update, (iterable(frame, items),), {})


@opcode("DICT_UPDATE", "DICT_MERGE")
def dict_update(frame, instruction):
    items = frame.pop()
    target = frame.peek(instruction.arg)
    if instruction.op == "DICT_MERGE":
        keys = call(frame.trace, load_attribute(frame.trace, items, "keys"), (), {})
        for key in operators.consume(frame.trace, keys):
            if key in target:
                raise frame.trace.fail("a keyword argument given twice")
            operators.set_item(frame.trace, target, key, operators.get_item(frame.trace, items, key))
    else:
        call(frame.trace, dict.update, (target, items), {})


@opcode("LIST_TO_TUPLE")
def list_to_tuple(frame, instruction):
    frame.push(tuple([force(frame.trace, item) for item in frame.pop()]))


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(frame, instruction):
    value = frame.pop()
    items = operators.unpack(frame.trace, value, instruction.arg)
    frame.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(frame, instruction):
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    items = list(operators.unpackable(frame.trace, frame.pop()))
    if len(items) < before + after:
        frame.raise_error(
            ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})")
        )
    middle = items[before : len(items) - after]
    parts = [*items[:before], middle, *(items[len(items) - after :] if after else [])]
    frame.stack.extend(reversed(parts))


# -- jumps and loops ------------------------------------------------------------------------------------------------


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(frame, instruction):
    frame.jump(instruction.target)
    frame.trace.count_jump()


def conditional(names: tuple[str, ...], test: Callable[[Frame], bool]) -> None:
    def handler(frame, instruction):
        if test(frame):
            frame.jump(instruction.target)

    for name in names:
        HANDLERS[name] = handler


conditional(
    ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE"),
    lambda frame: truth(frame.trace, frame.pop()),
)
conditional(
    ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE"),
    lambda frame: not truth(frame.trace, frame.pop()),
)
conditional(
    ("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE"),
    lambda frame: operators.is_same(frame.trace, frame.pop_raw(), None),
)
conditional(
    ("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"),
    lambda frame: not operators.is_same(frame.trace, frame.pop_raw(), None),
)


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_or_pop(frame, instruction):
    wanted = instruction.op == "JUMP_IF_TRUE_OR_POP"
    if truth(frame.trace, frame.peek()) == wanted:
        frame.jump(instruction.target)
    else:
        frame.stack.pop()


@opcode("GET_ITER")
def get_iter(frame, instruction):
    frame.push(get_iterator(frame.trace, frame.pop()))


@opcode("FOR_ITER")
def for_iter(frame, instruction):
    frame.trace.count_jump()
    iterator = frame.peek()
    try:
        frame.push(next_item(frame.trace, iterator))
    except Raised as raised:
        if not isinstance(raised.error, StopIteration):
            raise
        if CALLABLE_FIRST:
            frame.jump(instruction.target)  # END_FOR and POP_TOP follow there
            frame.push(None)
        elif sys.version_info >= (3, 12):
            frame.jump(instruction.target)
            frame.push(None)  # END_FOR pops both
        else:
            frame.stack.pop()
            frame.jump(instruction.target)


@opcode("END_FOR")
def end_for(frame, instruction):
    frame.stack.pop()
    if not CALLABLE_FIRST:
        frame.stack.pop()


@opcode("RETURN_VALUE")
def return_value(frame, instruction):
    frame.result = frame.pop_raw()
    return RETURNED


@opcode("RETURN_CONST")
def return_const(frame, instruction):
    frame.result = instruction.argval
    return RETURNED


# -- calls ----------------------------------------------------------------------------------------------------------


@opcode("KW_NAMES")
def kw_names(frame, instruction):
    frame.keyword_names = instruction.argval


@opcode("CALL")
def call_opcode(frame, instruction):
    names = frame.keyword_names
    frame.keyword_names = ()
    do_call(frame, frame.pop_many(instruction.arg), names)


@opcode("CALL_KW")
def call_kw(frame, instruction):
    names = frame.pop()
    do_call(frame, frame.pop_many(instruction.arg), names)


def do_call(frame: Frame, values: list[object], names: tuple[str, ...]) -> None:
    second, first = frame.pop_raw(), frame.pop_raw()
    if CALLABLE_FIRST:
        function, owner = first, second
    elif first is NULL:
        function, owner = second, NULL
    else:
        function, owner = first, second
    if owner is not NULL:
        values = [owner, *values]
    split = len(values) - len(names)
    frame.push(call(frame.trace, function, tuple(values[:split]), dict(zip(names, values[split:], strict=True))))


@opcode("CALL_FUNCTION_EX")
def call_function_ex(frame, instruction):
    kwargs = frame.pop() if instruction.arg & 1 else {}
    args = frame.pop()
    if not isinstance(args, tuple):
        args = tuple(operators.consume(frame.trace, args))
    if CALLABLE_FIRST:
        frame.pop_raw()
        function = frame.pop()
    else:
        function = frame.pop()
        frame.pop_raw()
    keywords = operators.plain_mapping(frame.trace, kwargs)
    frame.push(call(frame.trace, function, args, keywords))


@opcode("MAKE_FUNCTION")
def make_function(frame, instruction):
    code = frame.pop()
    if CALLABLE_FIRST:
        pending = PendingFunction(code)
        frame.push(pending if code.co_freevars else pending.finish(frame, None))
        return
    flags = instruction.arg
    function = types.FunctionType(code, frame.globals, code.co_name, None, frame.pop() if flags & 8 else None)
    for flag in (4, 2, 1):
        if flags & flag:
            set_part(frame, function, flag, frame.pop())
    frame.push(set_up(frame, function))


class PendingFunction:
    """3.13 makes a function first and gives it its closure after; here the closure must come first."""

    def __init__(self, code: types.CodeType):
        self.code = code
        self.parts: dict[int, object] = {}

    def finish(self, frame: Frame, closure: tuple | None) -> types.FunctionType:
        function = types.FunctionType(self.code, frame.globals, self.code.co_name, None, closure)
        for flag, content in self.parts.items():
            set_part(frame, function, flag, content)
        return set_up(frame, function)


def annotations(value: object) -> dict:
    return dict(zip(value[::2], value[1::2], strict=True)) if isinstance(value, tuple) else value  # type: ignore[return-value]


def settle_dict(frame: Frame, value: dict) -> dict:
    return {key: force(frame.trace, item) for key, item in value.items()}


def set_up(frame: Frame, function: types.FunctionType) -> types.FunctionType:
    function.__qualname__ = function.__code__.co_qualname
    function.__module__ = frame.globals.get("__name__")  # type: ignore[assignment]
    return function


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(frame, instruction):
    function, value = frame.pop(), frame.pop()
    flag = instruction.arg
    if not isinstance(function, PendingFunction):
        set_part(frame, function, flag, value)
    elif flag == 8:
        function = function.finish(frame, value)
    else:
        function.parts[flag] = value
    frame.push(function)


def set_part(frame: Frame, function: types.FunctionType, flag: int, value: object) -> None:
    if flag == 4:
        function.__annotations__ = annotations(value)
    elif flag == 2:
        function.__kwdefaults__ = settle_dict(frame, value)  # type: ignore[arg-type]
    else:
        function.__defaults__ = value  # type: ignore[assignment]


# -- generators -----------------------------------------------------------------------------------------------------


@opcode("RETURN_GENERATOR")
def return_generator(frame, instruction):
    frame.push(None)  # the generator object, which POP_TOP drops: the caller has it already


@opcode("YIELD_VALUE")
def yield_value(frame, instruction):
    frame.result = frame.pop_raw()
    return YIELDED


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(frame, instruction):
    value = frame.pop()
    frame.push(value if hasattr(type(value), "gi_interpreted") else get_iterator(frame.trace, value))


@opcode("SEND")
def send(frame, instruction):
    value = frame.pop()
    receiver = frame.peek()
    try:
        if value is None:
            frame.push(next_item(frame.trace, receiver))
        else:
            frame.push(call(frame.trace, load_attribute(frame.trace, receiver, "send"), (value,), {}))
    except Raised as raised:
        if not isinstance(raised.error, StopIteration):
            raise
        if sys.version_info < (3, 12):
            frame.stack.pop()
        frame.push(raised.error.value)
        frame.jump(instruction.target)


@opcode("END_SEND")
def end_send(frame, instruction):
    value = frame.pop_raw()
    frame.stack.pop()
    frame.push(value)


@opcode("CLEANUP_THROW")
def cleanup_throw(frame, instruction):
    """An exception came out of what a generator delegates to: its end, or one to go on with."""
    error = frame.pop()
    if not isinstance(error, StopIteration):
        raise Raised(error)
    frame.pop_many(2)
    frame.push(None)
    frame.push(error.value)


# -- exceptions and contexts ----------------------------------------------------------------------------------------


@opcode("PUSH_EXC_INFO")
def push_exc_info(frame, instruction):
    error = frame.pop()
    frame.push(frame.trace.handled)
    frame.push(error)
    frame.trace.handled = error


@opcode("POP_EXCEPT")
def pop_except(frame, instruction):
    frame.trace.handled = frame.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(frame, instruction):
    classes = frame.pop()
    for cls in classes if isinstance(classes, tuple) else (classes,):
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            frame.raise_error(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    frame.push(is_instance(frame.trace, frame.peek(), classes))


@opcode("CHECK_EG_MATCH", "PREP_RERAISE_STAR", "CALL_INTRINSIC_2")
def exception_groups(frame, instruction):
    raise frame.trace.fail("except* and exception groups, or type parameters")


@opcode("RERAISE")
def reraise(frame, instruction):
    raise Raised(frame.pop())


@opcode("RAISE_VARARGS")
def raise_varargs(frame, instruction):
    cause = frame.pop() if instruction.arg == 2 else NULL
    if instruction.arg == 0:
        if frame.trace.handled is None:
            raise frame.trace.fail("raising again what a caller is handling")
        raise Raised(frame.trace.handled)
    error = exception_instance(frame, frame.pop(), "exceptions must derive from BaseException")
    if cause is not NULL:
        message = "exception causes must derive from BaseException"
        error.__cause__ = None if cause is None else exception_instance(frame, cause, message)
    if id(error) in frame.trace.created:  # it was raised before, perhaps in other circumstances
        add_context(frame.trace, error)
    frame.raise_error(error)


def exception_instance(frame: Frame, value: object, otherwise: str) -> BaseException:
    if isinstance(value, type) and issubclass(value, BaseException):
        value = force(frame.trace, call(frame.trace, value, (), {}))
    if not isinstance(value, BaseException):
        frame.raise_error(TypeError(otherwise))
    return value  # type: ignore[return-value]


@opcode("BEFORE_WITH")
def before_with(frame, instruction):
    manager = frame.pop()
    leave = special_method(frame, manager, "__exit__")
    enter = special_method(frame, manager, "__enter__")
    if enter is None or leave is None:
        frame.raise_error(
            TypeError(f"'{type(manager).__name__}' object does not support the context manager protocol")
        )
    frame.push(leave)
    frame.push(call(frame.trace, enter, (), {}))


def special_method(frame: Frame, manager: object, name: str) -> object:
    from .attributes import bind_class_attribute

    raw = class_attribute(frame.trace, type(manager), name)
    return None if raw is None else force(frame.trace, bind_class_attribute(frame.trace, manager, type(manager), name, raw))


@opcode("WITH_EXCEPT_START")
def with_except_start(frame, instruction):
    error = frame.peek()
    leave = frame.peek(4)
    frame.push(call(frame.trace, leave, (type(error), error, traceback_of(frame.trace, error)), {}))


# -- imports --------------------------------------------------------------------------------------------------------


@opcode("IMPORT_NAME")
def import_name(frame, instruction):
    names, level = frame.pop(), frame.pop()
    try:
        module = __import__(instruction.argval, frame.globals, None, names, level)
    except Exception as error:
        raise frame.trace.fail(f"importing {instruction.argval} fails", error=error) from error
    frame.trace.pinned(module)
    frame.push(module)


@opcode("IMPORT_FROM")
def import_from(frame, instruction):
    module = frame.peek()
    try:
        frame.push(load_attribute(frame.trace, module, instruction.argval))
    except Raised:
        raise frame.trace.fail(f"cannot import name {instruction.argval!r}") from None


# -- match ----------------------------------------------------------------------------------------------------------


@opcode("GET_LEN")
def get_len(frame, instruction):
    frame.push(call(frame.trace, len, (frame.peek(),), {}))


@opcode("MATCH_SEQUENCE")
def match_sequence(frame, instruction):
    frame.push(bool(type(frame.peek()).__flags__ & (1 << 5)))


@opcode("MATCH_MAPPING")
def match_mapping(frame, instruction):
    frame.push(bool(type(frame.peek()).__flags__ & (1 << 6)))


@opcode("MATCH_KEYS")
def match_keys(frame, instruction):
    keys, subject = frame.peek(), frame.peek(2)
    values = []
    for key in keys:
        if not operators.contains(frame.trace, subject, key):
            frame.push(None)
            return
        values.append(force(frame.trace, operators.get_item(frame.trace, subject, key)))
    frame.push(tuple(values))


@opcode("MATCH_CLASS")
def match_class(frame, instruction):
    names, cls, subject = frame.pop(), frame.pop(), frame.pop()
    if not is_instance(frame.trace, subject, cls):
        frame.push(None)
        return
    positional = positional_names(frame, cls, instruction.arg)
    values = []
    for name in (*positional, *names):
        if name is SELF:
            values.append(subject)
            continue
        try:
            values.append(force(frame.trace, load_attribute(frame.trace, subject, name)))
        except Raised as raised:
            if not isinstance(raised.error, AttributeError):
                raise
            frame.push(None)
            return
    frame.push(tuple(values))


SELF = object()  # in `case int(x)`, x is the subject itself
SELF_MATCHING = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def positional_names(frame: Frame, cls: type, count: int) -> list[object]:
    if not count:
        return []
    names = getattr(cls, "__match_args__", None)
    if names is None and issubclass(cls, SELF_MATCHING):
        if count > 1:
            frame.raise_error(TypeError(f"{cls.__name__}() accepts 1 positional sub-pattern ({count} given)"))
        return [SELF]
    if names is None or count > len(names):
        allowed = 0 if names is None else len(names)
        plural = "" if allowed == 1 else "s"
        frame.raise_error(
            TypeError(f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)")
        )
    return list(names[:count])


# -- intrinsics (3.12+) ---------------------------------------------------------------------------------------------

@opcode("CALL_INTRINSIC_1")
def call_intrinsic(frame, instruction):
    number = instruction.arg
    if number == 6:
        list_to_tuple(frame, instruction)
    elif number == 5:
        frame.push(operators.unary(frame.trace, "UNARY_POSITIVE", frame.pop()))
    elif number == 3:
        error = frame.pop()
        if isinstance(error, StopIteration):
            error = generator_stopped(frame.trace, error)
        frame.push(error)
    else:
        raise frame.trace.fail(f"the intrinsic {number}")


__all__ = ["HANDLERS", "concrete", "torch"]
