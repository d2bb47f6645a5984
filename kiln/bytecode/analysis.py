"""Flow analyses over `Bytecode`: successors, reachability, liveness, definite assignment, stack layout, loops.

All results are indexed by instruction index.  Callers that need several analyses pass `flow` and `stack_kinds` on.
"""

from collections.abc import Sequence
from typing import overload

from ..platform.light_dataclass import dataclass
from .instruction import Bytecode, ExceptionRange, Instruction
from .opcode_info import HAS_JUMP, NO_FALLTHROUGH
from .stack_effects import MAYBE_NULL, Stack, apply, at_handler, effect, merge


def successors(bytecode: Bytecode, instruction: Instruction) -> list[Instruction]:
    """Where control may go without an exception: the next instruction first (if it may), then the jump's target."""
    result = []
    if instruction.op not in NO_FALLTHROUGH and instruction.index + 1 < len(bytecode.instructions):
        result.append(bytecode.instructions[instruction.index + 1])
    if instruction.op in HAS_JUMP:
        result.append(instruction.argval)
    return result


def handler(bytecode: Bytecode, instruction: Instruction) -> ExceptionRange | None:
    """The exception range an instruction lies in, if any."""
    return bytecode.handler_at[instruction.index]


# Opcodes that cannot raise, so that an exception range around them leads nowhere.
CANNOT_RAISE = frozenset({
    "NOP", "POP_TOP", "PUSH_NULL", "LOAD_CONST", "COPY", "SWAP", "JUMP_FORWARD", "PUSH_EXC_INFO", "POP_EXCEPT",
    "STORE_FAST", "STORE_FAST_STORE_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_CLOSURE", "RETURN_VALUE", "RETURN_CONST",
    "KW_NAMES", "PRECALL", "MAKE_CELL", "COPY_FREE_VARS", "END_FOR", "IS_OP", "NOT_TAKEN", "POP_ITER",
    "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT",
})  # fmt: skip


def flow(bytecode: Bytecode, exceptional: bool = True) -> list[list[int]]:
    """Successor indices of every instruction, with the exception handler last (if ``exceptional``)."""
    edges = [
        [index + 1] if instruction.op not in NO_FALLTHROUGH else []
        for index, instruction in enumerate(bytecode.instructions)
    ]
    if edges and edges[-1]:
        edges[-1].clear()
    for index, instruction in enumerate(bytecode.instructions):
        if instruction.op in HAS_JUMP:
            edges[index].append(instruction.argval.index)
    if exceptional:
        for index, entry in enumerate(bytecode.handler_at):
            if entry is not None and bytecode.instructions[index].op not in CANNOT_RAISE:
                edges[index].append(entry.target.index)
    return edges


def reachable(bytecode: Bytecode, start: int = 0, exceptional: bool = True) -> set[int]:
    """Indices of the instructions that control may reach from `start` (itself included)."""
    edges = flow(bytecode, exceptional)
    seen = {start}
    pending = [start]
    while pending:
        for after in edges[pending.pop()]:
            if after not in seen:
                seen.add(after)
                pending.append(after)
    return seen


def uses(instruction: Instruction) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(names read, names written, names unbound) among fast locals, in the order read, write, unbind."""
    access = _ACCESS.get(instruction.op)
    if access is None:
        return (), (), ()
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    picked: dict[str, tuple[str, ...]] = {"r": (), "w": (), "d": ()}
    for name, letters in zip(names, access, strict=True):
        for letter in letters:
            picked[letter] += (name,)
    return picked["r"], picked["w"], picked["d"]


# r: read, w: written, d: unbound.  Unbinding needs the variable bound, so it reads as well.
_ACCESS: dict[str, tuple[str, ...]] = {
    "LOAD_FAST": ("r",),
    "LOAD_FAST_CHECK": ("r",),
    "LOAD_FAST_BORROW": ("r",),
    "LOAD_FAST_AND_CLEAR": ("rd",),
    "STORE_FAST": ("w",),
    "DELETE_FAST": ("rd",),
    "LOAD_FAST_LOAD_FAST": ("r", "r"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("r", "r"),
    "STORE_FAST_LOAD_FAST": ("w", "r"),
    "STORE_FAST_STORE_FAST": ("w", "w"),
}


class _Names:
    """Sets of variable names as bits of an integer, for fast fixpoints."""

    def __init__(self, bytecode: Bytecode) -> None:
        self.names = list(dict.fromkeys(bytecode.slots))
        self.bit = {name: 1 << at for at, name in enumerate(self.names)}
        self._sets: dict[int, frozenset[str]] = {}

    def mask(self, names: tuple[str, ...] | list[str]) -> int:
        result = 0
        for name in names:
            result |= self.bit[name]
        return result

    def unpack(self, mask: int) -> frozenset[str]:
        if mask not in self._sets:
            self._sets[mask] = frozenset(name for name in self.names if self.bit[name] & mask)
        return self._sets[mask]


class NameSets(Sequence[frozenset[str]]):
    """A set of names for each instruction, unpacked on access: most are never read, and generated functions have
    thousands of instructions."""

    def __init__(self, names: _Names, masks: list[int]) -> None:
        self.names, self.masks = names, masks

    def __len__(self) -> int:
        return len(self.masks)

    @overload
    def __getitem__(self, place: int) -> frozenset[str]: ...
    @overload
    def __getitem__(self, place: slice) -> list[frozenset[str]]: ...
    def __getitem__(self, place: int | slice) -> frozenset[str] | list[frozenset[str]]:
        if isinstance(place, slice):
            return [self.names.unpack(mask) for mask in self.masks[place]]
        return self.names.unpack(self.masks[place])


def live_locals(bytecode: Bytecode, edges: list[list[int]] | None = None) -> Sequence[frozenset[str]]:
    """Names whose value (or unboundness) on entry of each instruction may still matter.

    Cell and free variables are always in.  An instruction that may raise needs what its handler needs.  A variable
    saved while an inlined comprehension runs counts as read only if it is read after it was restored.
    """
    names = _Names(bytecode)
    edges = flow(bytecode) if edges is None else edges
    restores = _restores(bytecode)
    live = _live_masks(bytecode, names, edges, wanted=False)
    # A saved variable may be restored under another name (in a segment), so one that is read stands for all.
    if any(live[after] & names.bit[name] for index, name in restores for after in edges[index]):
        live = _live_masks(bytecode, names, edges, wanted=True)
    return NameSets(names, live)


def _restores(bytecode: Bytecode) -> list[tuple[int, str]]:
    """(index, name) of the stores that restore what LOAD_FAST_AND_CLEAR saved."""
    if not any(instruction.op == "LOAD_FAST_AND_CLEAR" for instruction in bytecode):
        return []
    found = []
    for instruction, stack in zip(bytecode.instructions, stack_kinds(bytecode), strict=True):
        for depth, name in enumerate(uses(instruction)[1], start=1):
            if stack and stack[-depth] == "saved":
                found.append((instruction.index, name))
    return found


def _live_masks(bytecode: Bytecode, names: _Names, edges: list[list[int]], wanted: bool) -> list[int]:
    always = names.mask([*bytecode.cellvars, *bytecode.freevars])
    reads, keeps = [], []
    for instruction in bytecode.instructions:
        read, written, unbound = uses(instruction)
        first_read = tuple(name for name in read if name not in written)
        if instruction.op == "LOAD_FAST_AND_CLEAR" and not wanted:
            first_read = ()
        reads.append(names.mask(first_read))
        keeps.append(~names.mask(written + unbound))
    count = len(edges)
    live = [always] * count
    before: list[list[int]] = [[] for _ in range(count)]
    for index, after in enumerate(edges):
        for successor in after:
            before[successor].append(index)
    pending = list(range(count))
    queued = [True] * count
    while pending:
        index = pending.pop()
        queued[index] = False
        entry = bytecode.handler_at[index]
        out = 0
        for successor in edges[index]:
            out |= live[successor]
        value = reads[index] | out & keeps[index] | always
        if entry is not None and entry.target.index in edges[index]:
            value |= live[entry.target.index]
        if value != live[index]:
            live[index] = value
            for earlier in before[index]:
                if not queued[earlier]:
                    queued[earlier] = True
                    pending.append(earlier)
    return live


def assigned(
    bytecode: Bytecode, edges: list[list[int]] | None = None, kinds: list[Stack | None] | None = None
) -> Sequence[frozenset[str]]:
    """Names certainly bound on entry of each instruction.

    Cell and free variables count as bound, for they hold a cell; but an inlined comprehension may use the place of one
    for a variable of its own, which need not be.
    What cannot be reached has everything bound.
    """
    names = _Names(bytecode)
    everything = (1 << len(names.names)) - 1
    kinds = stack_kinds(bytecode) if kinds is None else kinds
    edges = flow(bytecode) if edges is None else edges
    bound = [everything] * len(edges)
    if not bound:
        return []
    bound[0] = names.mask([*bytecode.arguments, *bytecode.cellvars, *bytecode.freevars])
    made = [_bindings(names, instruction, kinds[index]) for index, instruction in enumerate(bytecode.instructions)]
    pending = [0]
    visited = [False] * len(edges)
    while pending:
        index = pending.pop()
        visited[index] = True
        gained, lost = made[index]
        entry = bytecode.handler_at[index]
        for after in edges[index]:
            raised = entry is not None and after == entry.target.index
            value = bound[after] & (bound[index] if raised else (bound[index] | gained) & ~lost)
            if value != bound[after] or not visited[after]:
                bound[after] = value
                pending.append(after)
    return NameSets(names, bound)


def _bindings(names: _Names, instruction: Instruction, stack: Stack | None) -> tuple[int, int]:
    """(bound after the instruction, unbound after it).  A store of what may be NULL may unbind."""
    if instruction.op == "MAKE_CELL":
        return names.mask([str(instruction.argval)]), 0
    read, written, unbound = uses(instruction)
    gained, lost = names.mask(read + written), names.mask(unbound)
    if stack:
        for depth, name in enumerate(written, start=1):
            if stack[-depth] in MAYBE_NULL:
                lost |= names.bit[name]
    return gained, lost


def stack_kinds(bytecode: Bytecode) -> list[Stack | None]:
    """The kinds of the operand stack's slots before each instruction (see `stack_effects`); None where unreachable."""
    kinds: list[Stack | None] = [None] * len(bytecode.instructions)
    if not kinds:
        return kinds
    kinds[0] = ()
    pending = [0]

    def arrive(index: int, stack: Stack) -> None:
        known = kinds[index]
        joined = stack if known is None else merge(known, stack)
        if joined != known:
            kinds[index] = joined
            pending.append(index)

    while pending:
        index = pending.pop()
        instruction = bytecode.instructions[index]
        stack = kinds[index]
        assert stack is not None
        if instruction.op not in NO_FALLTHROUGH and index + 1 < len(kinds):
            arrive(index + 1, apply(instruction, stack))
        if instruction.op in HAS_JUMP:
            arrive(instruction.argval.index, apply(instruction, stack, jump=True))
        entry = bytecode.handler_at[index]
        # A range may begin at PUSH_EXC_INFO, which cannot raise and before which the slot it makes is not there yet.
        if entry is not None and instruction.op != "PUSH_EXC_INFO":
            arrive(entry.target.index, at_handler(stack, entry.depth, entry.lasti))
    return kinds


def stack_size(bytecode: Bytecode) -> int:
    """The deepest the operand stack can get."""
    count = len(bytecode.instructions)
    depths = [-1] * count
    deepest = 1
    pending = [(0, 0)] if count else []
    while pending:
        index, depth = pending.pop()
        while depths[index] < depth:
            depths[index] = depth
            instruction = bytecode.instructions[index]
            entry = bytecode.handler_at[index]
            if entry is not None:
                entered = entry.depth + entry.lasti + 1
                deepest = max(deepest, entered)
                pending.append((entry.target.index, entered))
            if instruction.op in HAS_JUMP:
                pops, pushed = effect(instruction, True)
                deepest = max(deepest, depth - pops + len(pushed))
                pending.append((instruction.argval.index, depth - pops + len(pushed)))
            if instruction.op in NO_FALLTHROUGH or index + 1 == count:
                break
            pops, pushed = effect(instruction)
            depth += len(pushed) - pops
            deepest = max(deepest, depth)
            index += 1
    return deepest


@dataclass(eq=False, slots=True)  # never changed
class Loop:
    """A natural loop: control enters at `header` and comes back to it from within `body` (which includes it)."""

    header: int
    body: frozenset[int]


def loops(bytecode: Bytecode, edges: list[list[int]] | None = None) -> list[Loop]:
    """The loops, outermost first.  Back edges to one header make one loop; edges to handlers count."""
    edges = flow(bytecode) if edges is None else edges
    if all(after > index for index, ways in enumerate(edges) for after in ways):
        return []
    before: list[list[int]] = [[] for _ in edges]
    for index, after in enumerate(edges):
        for successor in after:
            before[successor].append(index)
    latches: dict[int, list[int]] = {}
    for source, header in _back_edges(edges):
        latches.setdefault(header, []).append(source)
    found = []
    for header, sources in latches.items():
        onward = _closure(edges, [header])
        body = {header}
        pending = [source for source in sources if source in onward]
        while pending:
            index = pending.pop()
            if index not in body:
                body.add(index)
                # Edges into the loop that bypass the header (irreducible flow) must not add the code before it.
                pending.extend(earlier for earlier in before[index] if earlier in onward)
        found.append(Loop(header, frozenset(body)))
    return sorted(found, key=lambda loop: (-len(loop.body), loop.header))


def _closure(edges: list[list[int]], starts: list[int]) -> set[int]:
    seen = set(starts)
    pending = list(starts)
    while pending:
        for after in edges[pending.pop()]:
            if after not in seen:
                seen.add(after)
                pending.append(after)
    return seen


def _back_edges(edges: list[list[int]]) -> list[tuple[int, int]]:
    """Edges to an instruction that is on the stack of a depth-first walk."""
    found: list[tuple[int, int]] = []
    if not edges:
        return found
    state = [0] * len(edges)  # 0 not seen, 1 on the stack, 2 done
    state[0] = 1
    way = [(0, iter(edges[0]))]
    while way:
        index, rest = way[-1]
        for after in rest:
            if state[after] == 1:
                found.append((index, after))
            elif state[after] == 0:
                state[after] = 1
                way.append((after, iter(edges[after])))
                break
        else:
            state[index] = 2
            way.pop()
    return found
