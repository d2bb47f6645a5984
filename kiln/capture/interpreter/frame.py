"""The symbolic interpreter: a frame, its loop, exceptions, and how a root frame ends (return or graph break).

A :class:`Frame` has what CPython's has: locals, cells, an operand stack and a position. Opcodes are in ``opcodes/``.
Inlined calls are nested frames. Only the outermost frame (the *root*) can break: it stops *before* an instruction,
with its state complete, so that the instruction can be run natively and the rest captured as a frame of its own.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from ...bytecode import Bytecode, Instruction, decode_apart
from ...bytecode.analysis import reachable
from ...bytecode.split_plan import OWN_PREFIX
from ...config import config
from ...platform.light_dataclass import dataclass
from ..guards.descriptions import error_text
from ..guards.source import Attribute, ClosureCell, Item
from ..shadows.wrap import force, wrap
from ..state.exceptions import note_raised
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import BreakPoint, GraphBreak, Lazy, Raised, Restart, forget_frames
from .call_wrappers import FILE as CALLERS_FILE

NULL = type("NULL", (), {"__repr__": lambda self: "NULL"})()  # the empty operand of a call
RETURNED, YIELDED = object(), object()  # why a frame's loop stopped

HANDLERS: dict[str, Callable[[Frame, Instruction], object]] = {}  # by opcode; the files of ``opcodes/`` fill it

COROUTINE_FLAGS = 0x80 | 0x100 | 0x200
GENERATOR_FLAG = 0x20

_DECODED: dict[int, tuple[weakref.ref[types.CodeType], Bytecode]] = {}


def decode_once(code: types.CodeType) -> Bytecode:
    """The instructions of a code object, cached. Those of continuations are not: each is captured once."""
    known = _DECODED.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    bytecode = decode_apart(code)
    if any(name.startswith(OWN_PREFIX) for name in (*code.co_freevars, *code.co_varnames)):
        return bytecode
    key, table = id(code), _DECODED  # module globals are gone when the interpreter shuts down
    table[key] = (weakref.ref(code, lambda _: table.pop(key, None)), bytecode)
    return bytecode


HANDLING = frozenset({"POP_EXCEPT", "RAISE_VARARGS", "CHECK_EXC_MATCH", "CHECK_EG_MATCH"})


def is_in_except_block(bytecode: Bytecode, index: int) -> bool:
    """Whether an ``except`` clause encloses an instruction; ``with`` and ``finally`` only pass exceptions on.

    (A ``with`` block whose manager swallows exceptions is detected when eager takes over.)
    """
    entry = bytecode.handler_at[index]
    while entry is not None:
        start = entry.target.index
        if start not in bytecode.handling:
            bytecode.handling[start] = is_except_clause(bytecode, start)
        if bytecode.handling[start]:
            return True
        entry = bytecode.handler_at[start]
    return False


def is_except_clause(bytecode: Bytecode, start: int) -> bool:
    """Whether the handler that begins here is that of an ``except``."""
    first, second = (bytecode.instructions[min(at, len(bytecode) - 1)].op for at in (start, start + 1))
    if first != "PUSH_EXC_INFO" or second == "WITH_EXCEPT_START":  # the cleanup of a handler, or a with block
        return False
    found = {bytecode.instructions[at].op for at in reachable(bytecode, start, exceptional=False)}
    return bool(found & HANDLING)


class Frame:
    """One Python frame, interpreted."""

    def __init__(self, trace: Trace, function: types.FunctionType, bound: dict[str, object]) -> None:
        self.trace = trace
        self.function = function
        self.code = function.__code__
        self.globals = function.__globals__
        self.bytecode = decode_once(self.code)
        self.locals = bound
        self.cells: dict[str, types.CellType] = self.closure()
        self.cell_names = frozenset((*self.code.co_cellvars, *self.code.co_freevars))
        self.stack: list[Any] = []
        self.index = 0  # the instruction being executed
        self.next = 0
        self.keyword_names: tuple[str, ...] = ()
        self.result: object = None
        self.looped = False  # it has jumped back, so instructions may run more than once

    def closure(self) -> dict[str, types.CellType]:
        cells = self.function.__closure__ or ()
        source = self.trace.outside.source_of(self.function)
        if source is None:
            return dict(zip(self.code.co_freevars, cells, strict=True))
        base = Attribute(source, "__closure__")
        return {
            name: wrap(self.trace, cell, Item(base, index))
            for index, (name, cell) in enumerate(zip(self.code.co_freevars, cells, strict=True))
        }

    def line(self) -> int:
        return self.bytecode.instructions[self.index].line or self.code.co_firstlineno

    def location(self) -> tuple[str, int, str]:
        return self.code.co_filename, self.line(), self.code.co_qualname

    def is_of_user(self) -> bool:
        """Whether the frame runs code of the user, not of ``call_wrappers.py``."""
        return self.code.co_filename != CALLERS_FILE

    def protected(self) -> bool:
        """Whether an ``except`` of this frame could catch an exception raised here."""
        return is_in_except_block(self.bytecode, self.index)

    # -- the operand stack ----------------------------------------------------------------------------------------

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        """The top value, forced."""
        value = self.stack.pop()
        return force(self.trace, value) if type(value) is Lazy else value

    def peek(self, depth: int = 1) -> Any:
        """The value at a depth (1 is the top), forced and left in place."""
        value = self.stack[-depth]
        if type(value) is Lazy:
            value = self.stack[-depth] = force(self.trace, value)
        return value

    def pop_raw(self) -> Any:
        return self.stack.pop()

    def pop_many(self, count: int) -> list[Any]:
        """The top values, not forced."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def jump(self, target: Instruction) -> None:
        self.looped |= target.index <= self.index
        self.next = target.index

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> object:
        """Interpret until the frame returns or yields; an exception leaves as :class:`Raised`."""
        self.trace.frames.append(self)
        try:
            return self.execute()
        finally:
            self.trace.frames.pop()

    def execute(self, stops_before: Callable[[Instruction], bool] | None = None) -> object:
        """The loop over instructions. Gives why it ended: a signal of an instruction, or None where it is to stop."""
        trace, instructions = self.trace, self.bytecode.instructions
        while True:
            try:
                while True:
                    self.index = index = self.next
                    self.next = index + 1
                    instruction = instructions[index]
                    if stops_before is not None and stops_before(instruction):
                        return None
                    handler = HANDLERS.get(instruction.op)
                    if handler is None:
                        raise trace.fail(f"the bytecode instruction {instruction.op}")
                    signal = handler(self, instruction)
                    if signal is not None:
                        return signal
            except Raised as raised:
                self.unwind(raised.error)
            trace.progress.steps += 1

    def unwind(self, error: BaseException) -> None:
        """Go to the handler of an exception, or leave the frame with it."""
        note_raised(self.trace, error)
        entry = self.bytecode.handler_at[self.index]
        if entry is None:
            raise Raised(error)
        for text in error.args:
            if type(text) is str:
                self.trace.guards.classes.watch_names_in(text)
        del self.stack[entry.depth :]
        if entry.lasti:
            self.stack.append(-1)  # CPython keeps the position to report on re-raise here
        self.stack.append(error)
        self.jump(entry.target)

    def raise_error(self, error: BaseException) -> None:
        """Raise in the program."""
        raise Raised(error)


@operation
def run_function(trace: Trace, function: Any, bound: dict[str, Any]) -> Any:
    """Interpret a call; a generator function gives a generator that is interpreted as it is consumed."""
    flags = function.__code__.co_flags
    if flags & COROUTINE_FLAGS:
        raise trace.fail(f"a call to the coroutine {function.__qualname__}", "await it outside the compiled function")
    trace.progress.entered += 1
    trace.progress.count_step(trace)
    frame = Frame(trace, function, bound)
    if flags & GENERATOR_FLAG:
        return operations.make_generator(frame)
    before = trace.exceptions.handled
    try:
        frame.run()
    finally:
        trace.exceptions.handled = before
    return frame.result


@dataclass(eq=False)
class Finished:
    """The root frame returned."""

    value: object


@dataclass(eq=False)
class Broken:
    """The root frame stopped before an instruction."""

    index: int
    frame: Frame
    reason: GraphBreak


class RootFrame(Frame):
    """The frame being captured."""

    def __init__(self, trace: Trace, function: types.FunctionType, bound: dict[str, object]) -> None:
        super().__init__(trace, function, bound)
        self.arguments = dict(bound)  # as passed, whatever happens to the variables
        self.visits: dict[int, int] = {}
        self.place: tuple[int, int] | None = None  # the instruction being executed, and for which time
        self.first: Instruction | None = None  # of the program's own
        self.forced: BreakPoint | None = None
        self.stop_reason: GraphBreak
        self.before: tuple[list[object], tuple[str, ...], tuple[int, int]] = ([], (), (0, 0))  # this instruction
        self.produced: dict[int, tuple[int, int]] = {}  # id of a value -> instruction (and visit) that first pushed it
        self.take_cells()

    def take_cells(self) -> None:
        """Take the cells of a continuation, which are parameters: its code has no MAKE_CELL before RESUME."""
        made = set()
        for instruction in self.bytecode.instructions:
            if instruction.op == "RESUME":
                break
            if instruction.op == "MAKE_CELL":
                made.add(instruction.argval)
        for name in self.code.co_cellvars:
            if name in self.locals and name not in made:
                value = force(self.trace, self.locals[name])
                if type(value) is types.CellType:  # else the slot belongs to an inlined comprehension (3.12)
                    self.cells[name] = value
                    del self.locals[name]

    def closure(self) -> dict[str, types.CellType]:
        return {
            name: wrap(self.trace, cell, ClosureCell(index, name))
            for index, (name, cell) in enumerate(
                zip(self.code.co_freevars, self.function.__closure__ or (), strict=True)
            )
        }

    def run_root(self, forced: BreakPoint | None) -> Finished | Broken:
        """Interpret to the end or to a break. ``forced`` is where an earlier attempt had to stop."""
        self.forced = forced
        self.trace.frames.append(self)
        try:
            if self.execute(self.stops_before) is None:
                return Broken(self.index, self, self.stop_reason)
        except GraphBreak as reason:
            if reason.whole:
                raise
            return self.break_at(reason)
        finally:
            del self.before  # it holds the program's objects
        return Finished(self.result)

    def stops_before(self, instruction: Instruction) -> bool:
        """Whether the frame has to break here; else its state is noted, to come back to if the instruction breaks."""
        index = instruction.index
        if self.stack and self.place is not None:
            self.produced.setdefault(id(self.stack[-1]), self.place)
        visit = self.visits[index] = self.visits.get(index, 0) + 1
        self.place = (index, visit)
        if self.forced is not None and self.place == (self.forced.index, self.forced.visit):
            self.stop_reason = self.forced.reason
            return True
        if config.break_every is not None and has_source_position(instruction) and self.breaks_by_config(instruction):
            self.stop_reason = self.trace.fail("config.break_every")
            return True
        self.before = (list(self.stack), self.keyword_names, self.work_done())
        return False

    def work_done(self) -> tuple[int, int]:
        """What moves on when an instruction has done something that cannot be taken back."""
        return self.trace.progress.entered, self.trace.graph.created

    def break_at(self, reason: GraphBreak) -> Broken:
        """The break before the instruction that is being executed."""
        trace, (stack, keywords, work_before) = self.trace, self.before
        trace.unbuildable.active = False
        forget_frames(reason)
        del trace.frames[1:]
        if work_before != self.work_done():
            raise Restart(BreakPoint(self.index, self.visits[self.index], reason)) from None
        self.stack, self.keyword_names, self.next = stack, keywords, self.index
        return Broken(self.index, self, reason)

    def unwind(self, error: BaseException) -> None:
        if self.bytecode.handler_at[self.index] is None:
            raise self.trace.fail(f"the program raises {error_text(error)}", error=error, raises=type(error)) from None
        super().unwind(error)

    def breaks_by_config(self, instruction: Instruction) -> bool:
        """Whether ``config.break_every`` asks for a break here: not at the first line or instruction."""
        if self.first is None:
            self.first = instruction
            return False
        if instruction.op in NEVER_FORCED:
            return False
        if config.break_every == "instruction":
            return instruction.index != self.first.index
        return instruction.line != self.first.line


def has_source_position(instruction: Instruction) -> bool:
    """Whether the program has this instruction. One that the splitter wrote cannot be a forced break."""
    positions = instruction.positions
    return positions is not None and positions[0] is not None and positions[2] is not None


NEVER_FORCED = frozenset({"RESUME", "MAKE_CELL", "COPY_FREE_VARS", "PUSH_EXC_INFO", "RERAISE", "NOP", "JUMP_FORWARD"})
NEVER_FORCED |= {"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "POP_EXCEPT", "COPY", "CACHE"}
