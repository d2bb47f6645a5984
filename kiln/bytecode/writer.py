"""Emitting the code around copied code: passing a frame's state out of it and taking it up again.

A state is the operand stack and some locals.  Stack slots travel in locals of their own (`slot`); NULLs and places of
exceptions are not passed but made anew; an exception being handled is taken off the interpreter's list on the way out
and put back on the way in.  A local that is not bound travels as the object UNBOUND.
"""

from collections.abc import Iterable

from .analysis import CANNOT_RAISE
from .instruction import Bytecode, ExceptionRange, Instruction, Positions
from .opcode_info import HAS_LOCAL, HAS_PAIR, JUMP_IF, NULL_BELOW_CALLABLE, VERSION
from .stack_effects import MAYBE_NULL, Stack

Guard = tuple[Instruction, int, bool]
"""Handler, stack depth and lasti of the exception range that an instruction is to lie in."""

UNBOUND_NAME = "__kiln_unbound"
EXCEPTION_NAME = "__kiln_exception"
ROUTE_NAME = "__kiln_route"

PASSED = frozenset({"value", "iterator", "exc", "exc_prev", *MAYBE_NULL})
"""Kinds of stack slots that are passed from frame to frame."""


class Writer:
    """A list of instructions under construction, each with the exception range it lies in."""

    def __init__(self, prefix: str, line: int | None) -> None:
        self.prefix = prefix
        self.positions: Positions | None = None if line is None else (line, line, None, None)
        self.rows: list[tuple[Instruction, Guard | None]] = []
        self.cold: list[tuple[Instruction, Guard | None]] = []

    def slot(self, index: int) -> str:
        """The local in which stack slot `index` travels."""
        return f"{self.prefix}stack_{index}"

    def emit(
        self, op: str, argval: object = None, *, guard: Guard | None = None, target: Instruction | None = None
    ) -> Instruction:
        arg = argval if isinstance(argval, int) and op != "LOAD_CONST" else None
        instruction = Instruction(op, arg, argval, target=target, positions=self.positions)
        self.rows.append((instruction, guard))
        return instruction

    def place(self, instruction: Instruction, guard: Guard | None = None) -> None:
        """Put in an instruction made before (a label, or a copy)."""
        self.rows.append((instruction, guard))

    def label(self) -> Instruction:
        """Something to jump to, for `place`."""
        return Instruction("NOP", positions=self.positions)

    def jump(self, target: Instruction) -> None:
        self.emit("JUMP_FORWARD", target=target)

    def callable(self, name: str, guard: Guard | None = None) -> None:
        """Push one of Kiln's own callables, with its NULL."""
        if NULL_BELOW_CALLABLE:
            self.emit("PUSH_NULL", guard=guard)
        self.emit("LOAD_DEREF", name, guard=guard)
        if not NULL_BELOW_CALLABLE:
            self.emit("PUSH_NULL", guard=guard)

    def call(self, count: int, guard: Guard | None = None) -> None:
        if VERSION == (3, 11):
            self.emit("PRECALL", count, guard=guard)
        self.emit("CALL", count, guard=guard)

    def load(self, name: str, *, certain: bool, keep: bool, depth: int) -> None:
        """Push a local, or UNBOUND; forget it unless it is kept.  `depth` is the height of the stack now."""
        guard: Guard | None = None
        if not certain:
            guard = (handler := self.label(), depth, False)
        checked = not certain and VERSION >= (3, 12)
        self.emit("LOAD_FAST_CHECK" if checked else "LOAD_FAST", name, guard=guard)
        if not keep:
            self.emit("DELETE_FAST", name, guard=guard)
        if not certain:
            self._unbound_instead(handler, back := self.label())
            self.place(back)

    def _unbound_instead(self, handler: Instruction, back: Instruction) -> None:
        rows, self.rows = self.rows, self.cold
        self.place(handler)
        for op in ("PUSH_EXC_INFO", "POP_TOP", "POP_EXCEPT"):
            self.emit(op)
        self.emit("LOAD_DEREF", UNBOUND_NAME)
        self.jump(back)
        self.rows = rows

    def unbind(self, name: str) -> None:
        """Unbind a local if it holds UNBOUND."""
        self.emit("LOAD_FAST", name)
        self.emit("LOAD_DEREF", UNBOUND_NAME)
        self.emit("IS_OP", 0)
        after = self.label()
        self.emit(JUMP_IF["FALSE"], target=after)
        self.emit("DELETE_FAST", name)
        self.place(after)

    def save_stack(self, stack: Stack, low: int = 0) -> None:
        """Empty the operand stack, which begins with slot `low`, into locals, leaving the handlers that are open."""
        for index in reversed(range(low, len(stack))):
            kind = stack[index]
            if kind == "lasti":
                self.emit("POP_TOP")
            elif kind == "exc_prev":
                self.callable(EXCEPTION_NAME)
                self.call(0)
                self.emit("STORE_FAST", self.slot(index))
                self.emit("POP_EXCEPT")
            else:  # a store, unlike POP_TOP, can also take a NULL
                self.emit("STORE_FAST", self.slot(index))

    def restore_stack(self, stack: Stack, low: int = 0, passed: int = 0) -> None:
        """Fill the operand stack again, beginning with slot `low`; slots below `passed` have not left this frame."""
        for index in range(low, len(stack)):
            kind, name = stack[index], self.slot(index)
            if kind == "null":
                self.emit("PUSH_NULL")
            elif kind == "lasti":
                # Only says where a traceback should begin, and that has been recorded; must be a place in this code.
                self.emit("LOAD_CONST", 0)
            elif kind == "maybe" and index >= passed:
                self._load_or_null(name)
            elif kind in MAYBE_NULL:
                if index >= passed:
                    self.unbind(name)
                self.emit("LOAD_FAST_AND_CLEAR", name)
            else:
                self.load(name, certain=True, keep=False, depth=0)
            if kind == "exc_prev":
                self.emit("PUSH_EXC_INFO")
                self.emit("POP_TOP")

    def _load_or_null(self, name: str) -> None:
        """Push a local, or NULL if it holds UNBOUND, and forget it.

        Unlike LOAD_FAST_AND_CLEAR this reads the local in the eyes of `live_locals`.
        """
        self.emit("LOAD_FAST", name)
        self.emit("LOAD_DEREF", UNBOUND_NAME)
        self.emit("IS_OP", 0)
        bound, after = self.label(), self.label()
        self.emit(JUMP_IF["FALSE"], target=bound)
        self.emit("PUSH_NULL")
        self.jump(after)
        self.place(bound)
        self.emit("LOAD_FAST", name)
        self.place(after)
        self.emit("DELETE_FAST", name)

    def load_slots(self, stack: Stack, low: int, depth: int) -> int:
        """Push the travelling slots from `low` on for passing; returns how many."""
        count = 0
        for index in range(low, len(stack)):
            if stack[index] in PASSED:
                certain = stack[index] not in MAYBE_NULL
                self.load(self.slot(index), certain=certain, keep=False, depth=depth + count)
                count += 1
        return count

    def finish(self, like: Bytecode, parameters: list[str], cells: list[str], own: Iterable[str]) -> Bytecode:
        """The code as `Bytecode`: parameters as given (cells among them), Kiln's own objects as free variables."""
        rows = _padded(self.rows + self.cold)
        steps = [instruction for instruction, _ in rows]
        freevars = sorted(set(own))
        known = dict.fromkeys(parameters)
        for instruction in steps:
            if instruction.op in HAS_LOCAL or instruction.op in HAS_PAIR:
                names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
                known.update(dict.fromkeys(name for name in names if name not in freevars))
        return Bytecode(
            instructions=steps,
            exceptions=_ranges(rows),
            name=like.name,
            qualname=like.qualname,
            filename=like.filename,
            firstlineno=like.firstlineno,
            argcount=len(parameters),
            posonlyargcount=0,
            kwonlyargcount=0,
            flags=like.flags & ~(0x04 | 0x08),
            varnames=list(known),
            cellvars=list(cells),
            freevars=freevars,
            consts=[None],
        )


def _padded(rows: list[tuple[Instruction, Guard | None]]) -> list[tuple[Instruction, Guard | None]]:
    """From 3.13 on an exception out of an inlined Python call is looked up one unit before the instruction that called.

    Compilers never begin or end a range right before such an instruction; here a NOP in the same range takes the place.
    """
    if VERSION < (3, 13):
        return rows
    result: list[tuple[Instruction, Guard | None]] = []
    last: Guard | None = None
    for instruction, guard in rows:
        if guard != last and instruction.op not in CANNOT_RAISE:
            result.append((Instruction("NOP", positions=instruction.positions), guard))
        result.append((instruction, guard))
        last = guard
    return result


def _ranges(rows: list[tuple[Instruction, Guard | None]]) -> list[ExceptionRange]:
    """Runs of instructions with the same guard."""
    ranges: list[ExceptionRange] = []
    last: Guard | None = None
    for instruction, guard in rows:
        if guard is not None and guard == last:
            ranges[-1].end = instruction
        elif guard is not None:
            ranges.append(ExceptionRange(instruction, instruction, *guard))
        last = guard
    return ranges
