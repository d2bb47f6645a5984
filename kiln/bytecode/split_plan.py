"""Deciding how a function is split at a break: what runs natively in the skeleton, and which segments surround it.

Everything here is about indices into the normalized code; nothing is emitted yet (see `writer` and `split`).
"""

import types

from ..platform.light_dataclass import dataclass
from .analysis import assigned, flow, live_locals, loops, stack_kinds, uses
from .decode import decode_apart
from .instruction import Bytecode, Instruction
from .normalize import Replaced, normalize
from .opcode_info import CALL_PREFIXES, CALLS, HAS_JUMP, LOOP_END, NO_FALLTHROUGH
from .stack_effects import Stack, reach

UNSUPPORTED_FLAGS = 0x20 | 0x80 | 0x100 | 0x200
"""Generators, coroutines, iterable coroutines and asynchronous generators have frames that outlive a call."""
OPTIMIZED = 0x01
OWN_PREFIX = "__kiln_"
PROLOGUE = ("COPY_FREE_VARS", "MAKE_CELL", "RESUME")


class CannotSplit(ValueError):
    """The code has no such break, or is of a kind that cannot be split."""


@dataclass(eq=False)  # never changed
class Region:
    """The code of one segment: what is reached from `start` without passing a cut point."""

    start: int
    body: frozenset[int]
    exits: tuple[int, ...]
    """The cut points it arrives at."""
    written: frozenset[str]
    """Locals that it may bind or unbind, and cell variables to which it may give another cell."""
    low: int
    """Stack slots below this one are not touched and stay with the skeleton."""


class Plan:
    """The native part (`native`), the cut points, and the regions between (`region`)."""

    def __init__(self, code: types.CodeType, breaks: list[int]) -> None:
        if code.co_flags & UNSUPPORTED_FLAGS or not code.co_flags & OPTIMIZED:
            raise CannotSplit(f"{code.co_qualname} is no plain function")
        self.bytecode: Bytecode = decode_apart(code)
        before = list(self.bytecode.instructions)
        replaced = normalize(self.bytecode)
        self.original_index = {replaced[old][0].index: at for at, old in reversed(list(enumerate(before)))}
        self.units = [_unit(before, replaced, index) for index in breaks]
        self.edges = flow(self.bytecode)
        self.kinds = stack_kinds(self.bytecode)
        self.live = live_locals(self.bytecode, self.edges)
        self.bound = assigned(self.bytecode, self.edges, self.kinds)
        self.cells = [name for name in self._cell_names() if not name.startswith(OWN_PREFIX)]
        for first, _ in self.units:
            if self.kinds[first] is None:
                raise CannotSplit(f"{self.bytecode[first]} cannot be reached")
        self.cuts = self._cut_points()
        self.native = self._native()

    def _cell_names(self) -> list[str]:
        return list(dict.fromkeys([*self.bytecode.cellvars, *self.bytecode.freevars]))

    def stack(self, index: int) -> Stack:
        """The kinds of the stack's slots before an instruction that can be reached."""
        kinds = self.kinds[index]
        assert kinds is not None
        return kinds

    def locals_at(self, index: int) -> list[str]:
        """The live fast locals, in slot order (cells are always passed, so they do not count)."""
        skipped = set(self.bytecode.cellvars) | set(self.bytecode.freevars)
        return [name for name in self.bytecode.slots if name in self.live[index] and name not in skipped]

    def _cut_points(self) -> list[int]:
        """The breaks and the headers of the loops around them."""
        cuts = [first for first, _ in self.units]
        for loop in loops(self.bytecode, self.edges):
            inside = any(first in loop.body for first, _ in self.units)
            if inside and loop.header not in cuts:
                cuts.append(loop.header)
        return cuts

    def _native(self) -> set[int]:
        """Breaks, FOR_ITER headers, and the handlers of native instructions up to where the exception is handled."""
        native: set[int] = set()
        pending = [index for first, last in self.units for index in range(first, last + 1)]
        pending += [index for index in self.cuts if self.bytecode[index].op == "FOR_ITER"]
        pending += [index for _, last in self.units for index in self._native_after(last)]
        limits: dict[int, tuple[int, int]] = {}
        while pending:
            index = pending.pop()
            if index in native:
                continue
            native.add(index)
            instruction = self.bytecode[index]
            if instruction.op == "FOR_ITER":
                pending += self._loop_end(instruction)
            entry = self.bytecode.handler_at[index]
            for after in self.edges[index]:
                if entry is not None and after == entry.target.index:
                    limits.setdefault(after, _open_handlers(self.stack(index)[: entry.depth]))
                    pending.append(after)
                elif index in limits and not _at_most(_open_handlers(self.stack(after)), limits[index]):
                    limits.setdefault(after, limits[index])
                    pending.append(after)
        return native

    def _native_after(self, last: int) -> list[int]:
        """Instructions after a break that stay native: dropping its result, branching on it, parts of a function.

        The first saves passing it on; the second saves a guard on a value that only the break knows; and nothing but
        MAKE_FUNCTION can make a function that has no closure yet.
        """
        steps = self.bytecode.instructions
        index = last + 1
        if steps[last].op in NO_FALLTHROUGH or steps[last].op in HAS_JUMP:
            return []
        if steps[index].op in ("POP_TOP", "MAKE_CELL"):
            return [index]  # MAKE_CELL: the cell of an inlined comprehension's variable is not there yet
        if steps[last].op == "MAKE_FUNCTION":
            while steps[index].op == "SET_FUNCTION_ATTRIBUTE":
                index += 1
            return list(range(last + 1, index))
        while steps[index].op in ("TO_BOOL", "UNARY_NOT"):
            index += 1
        branches = steps[index].op.startswith(("POP_JUMP", "JUMP_IF"))
        return list(range(last + 1, index + 1)) if branches else []

    def _loop_end(self, instruction: Instruction) -> list[int]:
        """What an exhausted FOR_ITER skips, and which therefore must stay right at its target."""
        target = instruction.target
        assert target is not None
        return list(range(target.index, target.index + len(LOOP_END)))

    def region(self, start: int) -> Region:
        """The code from `start` to the next cut points."""
        cuts = set(self.cuts)
        body = {start}
        exits: set[int] = set()
        pending = [start]
        while pending:
            for after in self.edges[pending.pop()]:
                if after in cuts:
                    exits.add(after)
                elif after not in body:
                    body.add(after)
                    pending.append(after)
        written: set[str] = set()
        for index in body:
            _, bound, unbound = uses(self.bytecode[index])
            written.update(bound, unbound)
            if self.bytecode[index].op == "MAKE_CELL":  # the variable of an inlined comprehension
                written.add(str(self.bytecode[index].argval))
        ordered = tuple(sorted(exits, key=self.cuts.index))
        return Region(start, frozenset(body), ordered, frozenset(written), self._low_water(start, body, exits))

    def _low_water(self, start: int, body: set[int], exits: set[int]) -> int:
        if not exits:
            return 0  # control does not return to the skeleton
        lowest = len(self.stack(start))
        if "exc_prev" in self.stack(start):
            lowest = self.stack(start).index("exc_prev")
        for index in body:
            lowest = min(lowest, len(self.stack(index)) - reach(self.bytecode[index]))
            entry = self.bytecode.handler_at[index]
            if entry is not None:
                lowest = min(lowest, entry.depth)
        return max(0, min(lowest, *(len(self.stack(index)) for index in exits)))


def _unit(before: list[Instruction], replaced: Replaced, index: int) -> tuple[int, int]:
    """First and last (normalized) instruction of what runs natively at a break: calls go with their prefixes."""
    if not 0 <= index < len(before) or before[index].op in PROLOGUE:
        raise CannotSplit(f"no break at instruction {index}")
    ended = index > 0 and before[index - 1].op == "END_FOR" and len(LOOP_END) > 1
    if before[index].op == "END_FOR" or ended:
        raise CannotSplit("the end of a for loop belongs to its FOR_ITER")
    first = last = index
    if before[index].op in CALL_PREFIXES or before[index].op in CALLS:
        while before[first - 1].op in CALL_PREFIXES:
            first -= 1
        while before[last].op in CALL_PREFIXES:
            last += 1
    return replaced[before[first]][0].index, replaced[before[last]][1].index


def _open_handlers(stack: Stack) -> tuple[int, int]:
    return stack.count("exc_prev"), stack.count("lasti")


def _at_most(counts: tuple[int, int], limits: tuple[int, int]) -> bool:
    return counts[0] <= limits[0] and counts[1] <= limits[1]
