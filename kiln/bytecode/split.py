"""Splitting a function at an instruction that must run natively: the skeleton and its segments.

    def f(loader):                      def skeleton(stack…, locals…, cells…):
        for batch in loader:                go on at the break:
            a(batch)              ->        print(batch)                  # the break, and the loop, are native
            print(batch)    # break         exit, … = segment_0(…)        # from after the break to the loop's header
            b(batch)                        next(iterator) …
                                            exit, … = segment_1(…)        # from the header to the break

The skeleton runs the break (with the exception handlers around it) and the headers of the for loops around it; all else
is in segments, which Kiln compiles in turn.  A segment from which no way leads back to the break or to such a header
runs to the end of the function and is called in return position.  One from which there is a way back returns
(number of the place it arrived at, stack slots…, locals…), or (-1, value) where the function returned.
"""

import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import field

from ..platform.light_dataclass import dataclass
from .analysis import live_locals, uses
from .assemble import assemble
from .instruction import Bytecode, Instruction
from .opcode_info import (  # fmt: skip
    CALL_PREFIXES,
    CALLS,
    JUMP_IF,
    KEYWORDS_OR_NULL,
    NO_FALLTHROUGH,
    NULL_BELOW_CALLABLE,
    RETURNS,
    SUBSCRIPT,
    VERSION,
)
from .split_plan import OWN_PREFIX, CannotSplit, Plan, Region
from .stack_effects import MAYBE_NULL, Stack
from .writer import EXCEPTION_NAME, PASSED, ROUTE_NAME, UNBOUND_NAME, Guard, Writer

__all__ = ["UNBOUND", "CannotSplit", "Parameter", "Segment", "Split", "split"]


class _Unbound:
    """Stands for a local (or a saved stack slot) without a value."""

    def __repr__(self) -> str:
        return "UNBOUND"

    def __reduce__(self) -> str:
        return "UNBOUND"


UNBOUND = _Unbound()

NO_LINE = (0, 0, None, None)
"""Where a skeleton's calls of segments are: on no line of the user's, so that tracebacks can leave them out; not on no
line at all, since what walks the stack (``inspect.stack``) counts on a number."""

Parameter = tuple[str, object]
"""('stack', slot index), ('local', name) or ('cell', name).

A cell variable is passed as its cell; only inside an inlined comprehension (3.12 on) that has a variable of that name
is it whatever lies in its place: the variable's value, or UNBOUND.
"""


@dataclass(eq=False)  # never changed
class Segment:
    """Code from an instruction to the end of the function, or (if `exits`) to the next cut points."""

    code: types.CodeType
    start: int
    """Where it starts, as an index into decode_apart(code) of the code that was split."""
    line: int | None
    parameters: tuple[Parameter, ...]
    exits: tuple[int, ...]
    """The places (indices as `start`) at which it may arrive; then it returns tuples.  Empty: it returns plainly."""


@dataclass(eq=False)
class Split:
    """A function split at a break.  `build` makes it runnable, any number of times."""

    code: types.CodeType
    """That of the skeleton."""
    parameters: tuple[Parameter, ...]
    """What the skeleton is called with: slots of the normalized stack, live locals (or UNBOUND), cell objects.

    For a slot of kind 'exc_prev' it wants the exception being handled, not the one below that CPython keeps there.
    """
    line: int | None
    stack: Stack = ()
    """The kinds of the slots of the normalized stack at the break."""
    segments: list[Segment] = field(default_factory=list)

    def build(
        self,
        globals: dict[str, object],
        wrap: Callable[[types.FunctionType, Segment], Callable[..., object]],
        route: Callable[[object], object],
    ) -> types.FunctionType:
        """The skeleton as a function whose segments went through `wrap` and whose native calls go through `route`."""
        objects: dict[str, object] = {UNBOUND_NAME: UNBOUND, EXCEPTION_NAME: sys.exception, ROUTE_NAME: route}
        for number, segment in enumerate(self.segments):
            objects[_segment_name(number)] = wrap(_function(segment.code, globals, objects), segment)
        return _function(self.code, globals, objects)


def _function(code: types.CodeType, globals: dict[str, object], objects: dict[str, object]) -> types.FunctionType:
    closure = tuple(types.CellType(objects[name]) for name in code.co_freevars)
    return types.FunctionType(code, globals, code.co_name, None, closure)


def _segment_name(number: int) -> str:
    return f"{OWN_PREFIX}segment_{number}"


def split(code: types.CodeType, index: int, nulls: Sequence[bool] | None = None, also: Sequence[int] = ()) -> Split:
    """Split `code` at instruction `index` (as decode_apart numbers them), where the skeleton begins.

    `nulls` says which slots of the normalized operand stack before it the caller takes for NULL; it is checked.  At the
    instructions `also` the code is broken as well.  Raises CannotSplit for what is no break of a plain function.
    """
    plan = Plan(code, [index, *also])
    stack = plan.stack(plan.units[0][0])
    if nulls is not None:
        agrees = len(nulls) == len(stack) and all(
            kind in MAYBE_NULL or null == (kind == "null") for null, kind in zip(nulls, stack, strict=True)
        )
        if not agrees:
            raise CannotSplit(f"the stack before instruction {index} is {stack}, not NULL where {tuple(nulls)}")
    return _Skeleton(plan).split


class _Body:
    """What skeleton and segments share: copying instructions, and closing the code with a prologue."""

    def __init__(self, plan: Plan, start: int, low: int) -> None:
        self.plan, self.start, self.low = plan, start, low
        self.source: Bytecode = plan.bytecode
        self.writer = Writer(_fresh_prefix(self.source), self.source[start].line)
        self.labels: dict[int, Instruction] = {}
        self.exits: dict[int, Instruction] = {}

    def guard(self, index: int) -> Guard | None:
        """The exception range of an instruction; none if only instructions that cannot raise lead to its handler."""
        entry = self.source.handler_at[index]
        target = None if entry is None else self.exits.get(entry.target.index) or self.labels.get(entry.target.index)
        return None if entry is None or target is None else (target, entry.depth - self.low, entry.lasti)

    def close(self, cells: list[str]) -> tuple[types.CodeType, tuple[Parameter, ...]]:
        """Find out the parameters, prepend what makes a frame of them, and assemble."""
        stack = self.plan.stack(self.start)
        slots = [index for index in range(self.low, len(stack)) if stack[index] in PASSED]
        names = [self.writer.slot(index) for index in slots]
        draft = self.writer.finish(self.source, names, cells, self._own_names())
        # Both matter: the draft lacks what other segments do; the source knows which saved variables nobody reads.
        live = live_locals(draft)[0] & self.plan.live[self.start]
        local = [name for name in self.source.slots if name in live and name not in (*cells, *draft.freevars)]
        body, self.writer.rows = self.writer.rows, []
        for name in [*local, *cells]:
            if name not in self.plan.bound[self.start]:
                self.writer.unbind(name)
        self.writer.rows += body
        own = self._own_names()
        prologue = [Instruction("RESUME", 0, 0, positions=self.writer.positions)]
        if own:
            prologue.insert(0, Instruction("COPY_FREE_VARS", len(own), len(own)))
        self.writer.rows[:0] = [(instruction, None) for instruction in prologue]
        code = assemble(self.writer.finish(self.source, [*names, *local, *cells], cells, own))
        parameters = [("stack", index) for index in slots]
        return code, (*parameters, *(("local", name) for name in local), *(("cell", name) for name in cells))

    def _own_names(self) -> set[str]:
        """The names of Kiln's own objects that the code uses (also where it was copied from a segment)."""
        loaded = {str(step.argval) for step, _ in self.writer.rows + self.writer.cold if step.op == "LOAD_DEREF"}
        return {name for name in loaded if name.startswith(OWN_PREFIX)}


def _fresh_prefix(source: Bytecode) -> str:
    """A prefix for our locals that none of the code's locals has (it may itself be a segment)."""
    level = 0
    while any(name.startswith(f"{OWN_PREFIX}{level}_") for name in source.varnames):
        level += 1
    return f"{OWN_PREFIX}{level}_"


def _write_segment(plan: Plan, region: Region) -> Segment:
    """A copy of a region as a function of the state at its start."""
    low = region.low
    body = _Body(plan, region.start, low)
    source, writer = plan.bytecode, body.writer
    body.labels = {index: source[index].copy() for index in region.body}
    exits = body.exits = {index: writer.label() for index in region.exits}
    writer.restore_stack(plan.stack(region.start), low, passed=low)
    writer.jump(body.labels[region.start])
    for index in sorted(region.body):
        instruction, copy, guard = source[index], body.labels[index], body.guard(index)
        if instruction.target is not None:
            target = instruction.target.index
            copy.target = exits.get(target) or body.labels[target]
        if instruction.op in RETURNS and exits:
            _write_return(writer, instruction, copy)
            continue
        writer.place(copy, guard)
        if index + 1 in exits and instruction.op not in NO_FALLTHROUGH:
            writer.jump(exits[index + 1])
    for index, label in exits.items():
        _write_exit(plan, region, index, label, writer)
    cells = [name for name in plan.cells if any(_mentions(source[index], name) for index in region.body)]
    code, parameters = body.close(cells)
    places = tuple(plan.original_index.get(index, -1) for index in region.exits)
    return Segment(code, plan.original_index.get(region.start, -1), source[region.start].line, parameters, places)


def _mentions(instruction: Instruction, name: str) -> bool:
    value = instruction.argval
    return value == name if isinstance(value, str) else isinstance(value, tuple) and name in value


def _write_return(writer: Writer, instruction: Instruction, copy: Instruction) -> None:
    """return value -> return (-1, value)"""
    copy.op, copy.arg, copy.argval = "LOAD_CONST", None, -1
    writer.place(copy)
    if instruction.op == "RETURN_CONST":
        writer.emit("LOAD_CONST", instruction.argval)
    else:
        writer.emit("SWAP", 2)
    writer.emit("BUILD_TUPLE", 2)
    writer.emit("RETURN_VALUE")


def _write_exit(plan: Plan, region: Region, index: int, label: Instruction, writer: Writer) -> None:
    """Return the state at a cut point, as far as the region may have changed it."""
    stack = plan.stack(index)
    writer.place(label)
    writer.save_stack(stack, region.low)
    writer.emit("LOAD_CONST", plan.cuts.index(index))
    count = 1 + writer.load_slots(stack, region.low, depth=1)
    for name in _returned(plan, region, index):
        writer.load(name, certain=name in plan.bound[index], keep=True, depth=count)
        count += 1
    writer.emit("BUILD_TUPLE", count)
    writer.emit("RETURN_VALUE")


def _returned(plan: Plan, region: Region, index: int) -> list[str]:
    """The locals and cells a segment hands back on arrival at a cut point; the skeleton still has the others."""
    return [name for name in [*plan.locals_at(index), *plan.cells] if name in region.written]


class _Skeleton(_Body):
    """The native part, and for each way out of it a stub that passes the state to a segment."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, plan.units[0][0], 0)
        self.segments: list[Segment] = []
        self.stubs: dict[int, Instruction] = {}
        self.pending: list[int] = []
        self.result = f"{self.writer.prefix}result"
        self.held = self._held()
        # A copy is its own label: an exhausted FOR_ITER skips what lies at its target, so nothing may come between.
        self.copies = {index: self.source[index].copy() for index in plan.native}
        self.routed = {self._call_site(index) for index in plan.native if self.source[index].op in CALLS}
        self.labels = self.copies | {index: self.writer.label() for index in self.routed}
        self.writer.restore_stack(plan.stack(self.start))
        self.writer.jump(self.labels[self.start])
        self._write_native()
        while self.pending:
            self._write_stub(self.pending.pop(0))
        code, parameters = self.close(plan.cells)
        self.split = Split(code, parameters, self.source[self.start].line, plan.stack(self.start), self.segments)

    def _held(self) -> list[str]:
        """The user's locals that the skeleton's frame ever holds."""
        held: set[str] = set()
        for index in self.plan.cuts:
            held.update(self.plan.locals_at(index))
        for index in self.plan.native:
            held.update(uses(self.source[index])[1])
        return [name for name in self.source.slots if name in held and name not in self.plan.cells]

    def destination(self, index: int) -> Instruction:
        """Where control goes that goes to an instruction: its native copy, or the stub that calls its segment."""
        if index in self.labels:
            return self.labels[index]
        if index not in self.stubs:
            self.stubs[index] = self.writer.label()
            self.pending.append(index)
        return self.stubs[index]

    def _write_native(self) -> None:
        for index in sorted(self.plan.native):
            instruction, copy, guard = self.source[index], self.copies[index], self.guard(index)
            if index in self.routed:
                self.writer.place(self.labels[index], guard)
                self._write_route(index, guard)
            if instruction.target is not None:
                copy.target = self.destination(instruction.target.index)
            self.writer.place(copy, guard)
            falls = instruction.op not in NO_FALLTHROUGH
            if falls and index + 1 not in self.plan.native:
                self.writer.jump(self.destination(index + 1))

    def _call_site(self, call: int) -> int:
        """The index before which a native call's callable is routed: that of its first prefix."""
        while self.source[call - 1].op in CALL_PREFIXES:
            call -= 1
        return call

    def _write_route(self, index: int, guard: Guard | None) -> None:
        """Replace the callable of the call at or after `index` by what the router makes of it."""
        call = index
        while self.source[call].op in CALL_PREFIXES:
            call += 1
        place = callable_place(self.source[call], self.plan.stack(call))
        self.writer.callable(ROUTE_NAME, guard)
        self.writer.emit("COPY", place + 2, guard=guard)
        self.writer.call(1, guard)
        self.writer.emit("SWAP", place + 1, guard=guard)
        self.writer.emit("POP_TOP", guard=guard)

    def _write_stub(self, start: int) -> None:
        """Pass the state to the segment that starts here, outside of all exception ranges."""
        plan, writer = self.plan, self.writer
        region = plan.region(start)
        segment = _write_segment(plan, region)
        writer.positions = NO_LINE
        stack = plan.stack(start)
        writer.place(self.stubs[start])
        writer.save_stack(stack)
        for name in self.held:
            if name not in plan.live[start]:
                writer.emit("LOAD_CONST", None)
                writer.emit("STORE_FAST", name)
        writer.callable(_segment_name(len(self.segments)))
        self.segments.append(segment)
        count = writer.load_slots(stack, region.low, depth=2)
        kept = {name for index in region.exits for name in plan.locals_at(index)} - region.written
        for kind, variable in segment.parameters[count:]:
            certain = variable in plan.bound[start]
            if kind == "cell" and certain:
                writer.emit("LOAD_FAST" if VERSION >= (3, 13) else "LOAD_CLOSURE", variable)
            else:
                keep = kind == "cell" or variable in kept
                writer.load(str(variable), certain=certain, keep=keep, depth=2 + count)
            count += 1
        writer.call(count)
        if region.exits:
            self._write_arrivals(region)
        else:
            writer.emit("RETURN_VALUE")

    def _write_arrivals(self, region: Region) -> None:
        """Go on where the segment arrived."""
        writer = self.writer
        writer.emit("STORE_FAST", self.result)
        returns = any(self.source[index].op in RETURNS for index in region.body)
        for place in region.exits:
            otherwise = writer.label()
            if returns or place != region.exits[-1]:
                self._write_item(0)
                writer.emit("LOAD_CONST", self.plan.cuts.index(place))
                compare = writer.emit("COMPARE_OP", "==")
                if VERSION >= (3, 13):
                    compare.flag = True
                writer.emit(JUMP_IF["FALSE"], target=otherwise)
            self._write_arrival(region, place)
            writer.place(otherwise)
        if returns:
            self._write_item(1)
            writer.emit("RETURN_VALUE")

    def _write_item(self, number: int) -> None:
        self.writer.emit("LOAD_FAST", self.result)
        self.writer.emit("LOAD_CONST", number)
        self.writer.emit(*SUBSCRIPT)

    def _write_arrival(self, region: Region, place: int) -> None:
        """Unpack the state that a segment returned and go on at the cut point."""
        writer, stack = self.writer, self.plan.stack(place)
        slots = [writer.slot(index) for index in range(region.low, len(stack)) if stack[index] in PASSED]
        names = _returned(self.plan, region, place)
        writer.load(self.result, certain=True, keep=False, depth=0)
        writer.emit("UNPACK_SEQUENCE", 1 + len(slots) + len(names))
        writer.emit("POP_TOP")
        for name in [*slots, *names]:
            writer.emit("STORE_FAST", name)
        for name in names:
            if name not in self.plan.bound[place]:
                writer.unbind(name)
        writer.restore_stack(stack, passed=region.low)
        writer.jump(self.destination(place))


def callable_place(call: Instruction, stack: tuple[str, ...]) -> int:
    """How far from the top (1 is the top) the callable lies before a call."""
    if call.op == "CALL_FUNCTION_EX":
        arguments = 2 if KEYWORDS_OR_NULL else 1 + call.flag
    else:
        arguments = int(call.argval)
    above = arguments + (call.op == "CALL_KW")
    if not NULL_BELOW_CALLABLE:
        return above + 2
    # Without a NULL (decorators, generator expressions) the callable lies below, and its first argument in its place.
    return above + 1 if stack[-above - 2] == "null" else above + 2
