"""How the members of a unit combine the results of a reduction, so that each of them has the whole.

By rows, the members of a warp exchange values by shuffles, and warps through shared memory. By columns, all go through
shared memory. The reductions of a phase share a barrier as far as their values fit into the shared memory; after that
it is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kiln.loops.kernel import Reduction

from ..llvm import reductions
from ..llvm.llvm_text import REGISTERS, Lines, llvm_type
from .kernel_plan import MOST_SHARED, WARP, CudaPlan, aligned, exchanged_bytes

BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "float": 32, "i64": 64, "double": 64}
ALL_LANES = "-1"
LARGEST_VALUE = 8  # bytes


class Partial(NamedTuple):
    """What a thread carries of a reduction."""

    reduction: Reduction
    carried: list[str]


class Exchange:
    def __init__(self, plan: CudaPlan, lines: Lines, shared: str) -> None:
        self.plan, self.lines, self.shared = plan, lines, shared
        self.thread = self.slot = self.member = "0"
        self.used = self.peak = 0  # bytes of the shared memory: now, and at most

    def set_thread(self, thread: str, slot: str, member: str) -> None:
        """Registers with the number of the thread in its block, of its unit there, and of it among its members."""
        self.thread, self.slot, self.member = thread, slot, member

    def combine(self, partials: list[Partial], lanes: int, is_for_all: bool) -> list[list[str]]:
        """What all members carry together of each reduction, in each of them; or, if only the first one needs it
        (``is_for_all``), at least in that."""
        plan = self.plan
        if plan.members == 1:
            return [partial.carried for partial in partials]
        assert lanes == 1 or plan.is_by_columns, "the lanes of a row are combined first"
        first = plan.units_of_block if plan.is_by_columns else 1  # how far the members of a warp are apart
        steps = halvings(first * min(plan.members, plan.members_of_warp), first)
        partials = [Partial(each, self.butterfly(each, carried, steps, lanes)) for each, carried in partials]
        if plan.members <= plan.members_of_warp:
            return [partial.carried for partial in partials]
        found: list[list[str]] = []
        for group in self.groups(partials, lanes):
            found += self.down_columns(group, lanes, is_for_all) if plan.is_by_columns else self.across_warps(group)
        return found

    def groups(self, partials: list[Partial], lanes: int) -> list[list[Partial]]:
        """The reductions, in groups that fit into the shared memory together."""
        slots = self.stride_of_lanes * lanes if self.plan.is_by_columns else self.plan.members // WARP
        found: list[list[Partial]] = []
        size = MOST_SHARED
        for partial in partials:
            needed = exchanged_bytes(partial.reduction, slots)
            if size + needed > MOST_SHARED:
                found.append([])
                size = 0
            found[-1].append(partial)
            size += needed
        return found

    # ---- within a warp -----------------------------------------------------------------------------------------------

    def butterfly(self, reduction: Reduction, carried: list[str], distances: Sequence[int], lanes: int) -> list[str]:
        """Combines the values of threads at these distances. Steps are commutative: all have the same bits."""
        for distance in distances:
            others = [
                self.shuffled_lanes(value, self.element(reduction, place), distance, lanes)
                for place, value in enumerate(carried)
            ]
            carried = reductions.join_two(self.lines, reduction, carried, others, lanes)
        return carried

    def shuffled_lanes(self, value: str, element: str, distance: int, lanes: int) -> str:
        if lanes == 1:
            return self.shuffled(value, element, distance)
        kind, found = llvm_type(element, lanes), "poison"
        for lane in range(lanes):
            one = self.lines.new(f"extractelement {kind} {value}, i32 {lane}")
            one = self.shuffled(one, element, distance)
            found = self.lines.new(f"insertelement {kind} {found}, {element} {one}, i32 {lane}")
        return found

    def element(self, reduction: Reduction, place: int) -> str:
        return "i64" if place else REGISTERS[reduction.value.dtype]

    def shuffled(self, value: str, element: str, distance: int) -> str:
        """The value of the thread whose number differs in one bit."""
        lines, bits = self.lines, BITS[element]
        whole = value if element.startswith("i") else lines.new(f"bitcast {element} {value} to i{bits}")
        if bits == 64:
            low = self.exchange_word(lines.new(f"trunc i64 {whole} to i32"), distance)
            high = self.exchange_word(lines.new(f"trunc i64 {lines.new(f'lshr i64 {whole}, 32')} to i32"), distance)
            wide = [lines.new(f"zext i32 {part} to i64") for part in (low, high)]
            found = lines.new(f"or i64 {lines.new(f'shl i64 {wide[1]}, 32')}, {wide[0]}")
        elif bits == 32:
            found = self.exchange_word(whole, distance)
        else:
            word = self.exchange_word(lines.new(f"zext {element} {whole} to i32"), distance)
            found = lines.new(f"trunc i32 {word} to {element}")
        return found if element.startswith("i") else lines.new(f"bitcast i{bits} {found} to {element}")

    def exchange_word(self, word: str, distance: int) -> str:
        arguments = [("i32", ALL_LANES), ("i32", word), ("i32", str(distance)), ("i32", "31")]
        return self.lines.call("llvm.nvvm.shfl.sync.bfly.i32", "i32", arguments)

    # ---- shared memory -----------------------------------------------------------------------------------------------

    def across_warps(self, partials: list[Partial]) -> list[list[str]]:
        """The results of a block's warps, combined. A unit has the whole block."""
        lines, count = self.lines, self.plan.members // WARP
        warp = lines.new(f"lshr i32 {self.thread}, 5")
        lane = lines.new(f"and i32 {self.thread}, {count - 1}")
        places = self.places(partials, count)
        for (reduction, carried), starts in zip(partials, places, strict=True):
            for number, value in enumerate(carried):  # all threads of a warp write the same
                self.write(starts[number], warp, value, self.element(reduction, number))
        barrier(self.lines)
        found = []
        for (reduction, carried), starts in zip(partials, places, strict=True):
            parts = [self.read(starts[n], lane, self.element(reduction, n)) for n in range(len(carried))]
            found.append(self.butterfly(reduction, parts, halvings(count, 1), 1))
        return found

    def down_columns(self, partials: list[Partial], lanes: int, is_for_all: bool) -> list[list[str]]:
        """Each thread writes its lanes (the members of a warp have the same by now); neighbouring threads write
        neighbouring elements. Then each reads what the other members of its unit have written."""
        lines, plan = self.lines, self.plan
        places = self.places(partials, self.stride_of_lanes * lanes)
        where = self.thread
        if plan.members_of_warp > 1:
            warp = lines.new(f"lshr i32 {self.thread}, 5")
            where = lines.new(f"add i32 {lines.new(f'mul i32 {warp}, {plan.units_of_block}')}, {self.slot}")
        for (reduction, carried), starts in zip(partials, places, strict=True):
            for number, value in enumerate(carried):
                self.write_lanes(starts[number], where, value, self.element(reduction, number), lanes)
        barrier(self.lines)
        if is_for_all:
            return self.read_columns(partials, places, lanes)
        is_first = self.lines.new(f"icmp eq i32 {self.member}, 0")
        return self.when_first(is_first, partials, lambda: self.read_columns(partials, places, lanes), lanes)

    def read_columns(self, partials: list[Partial], places: list[list[int]], lanes: int) -> list[list[str]]:
        lines, plan = self.lines, self.plan
        count = plan.members // plan.members_of_warp
        numbers = [lines.new(f"add i32 {self.slot}, {group * plan.units_of_block}") for group in range(count)]
        found = []
        for (reduction, carried), starts in zip(partials, places, strict=True):
            elements = [self.element(reduction, number) for number in range(len(carried))]
            parts = [
                [self.read_lanes(start, at, element, lanes) for start, element in zip(starts, elements, strict=True)]
                for at in numbers
            ]
            found.append(reductions.joined(lines, reduction, parts, lanes))
        return found

    def when_first(
        self, condition: str, partials: list[Partial], read: Callable[[], list[list[str]]], lanes: int
    ) -> list[list[str]]:
        """What the first members read; the others keep their own values."""
        lines, before = self.lines, self.lines.block
        yes, after = lines.fresh("first"), lines.fresh("combined")
        lines.branch_if(condition, yes, after)
        lines.label(yes)
        found = read()
        last = lines.block
        lines.branch(after)
        lines.label(after)
        return [
            [
                lines.new(
                    f"phi {llvm_type(self.element(reduction, n), lanes)} [ {new}, %{last} ], [ {old}, %{before} ]"
                )
                for n, (new, old) in enumerate(zip(whole, carried, strict=True))
            ]
            for (reduction, carried), whole in zip(partials, found, strict=True)
        ]

    def reserve(self, slots: int) -> int:
        """Where a part of the shared memory for so many values of any type starts."""
        needed = aligned(slots * LARGEST_VALUE)
        if self.used + needed > MOST_SHARED:
            barrier(self.lines)
            self.used = 0
        self.used += needed
        self.peak = max(self.peak, self.used)
        return self.used - needed

    def places(self, partials: list[Partial], slots: int) -> list[list[int]]:
        """Where the values of reductions start in the shared memory; one that is full is used again."""
        needed = sum(exchanged_bytes(partial.reduction, slots) for partial in partials)
        if self.used + needed > MOST_SHARED:
            barrier(self.lines)  # all have read what is there
            self.used = 0
        found = []
        for reduction, carried in partials:
            starts = []
            for number in range(len(carried)):
                starts.append(self.used)
                self.used += aligned(slots * self.stored_bytes(self.element(reduction, number)))
            found.append(starts)
        self.peak = max(self.peak, self.used)
        return found

    def stored_bytes(self, element: str) -> int:
        return max(1, BITS[element] // 8)

    def address(self, start: int, number: str, element: str) -> str:
        lines = self.lines
        first = lines.new(f"getelementptr i8, ptr addrspace(3) {self.shared}, i32 {start}")
        return lines.new(f"getelementptr {element}, ptr addrspace(3) {first}, i32 {number}")

    def lane_start(self, start: int, element: str, lane: int) -> int:
        """Where one lane of all threads starts."""
        return start + lane * self.stride_of_lanes * self.stored_bytes(element)

    @property
    def stride_of_lanes(self) -> int:
        return self.plan.threads // self.plan.members_of_warp

    def write_lanes(self, start: int, number: str, value: str, element: str, lanes: int) -> None:
        for lane in range(lanes):
            one = value
            if lanes > 1:
                one = self.lines.new(f"extractelement {llvm_type(element, lanes)} {value}, i32 {lane}")
            self.write(self.lane_start(start, element, lane), number, one, element)

    def read_lanes(self, start: int, number: str, element: str, lanes: int) -> str:
        found = "poison"
        for lane in range(lanes):
            one = self.read(self.lane_start(start, element, lane), number, element)
            if lanes == 1:
                return one
            kind = llvm_type(element, lanes)
            found = self.lines.new(f"insertelement {kind} {found}, {element} {one}, i32 {lane}")
        return found

    def write(self, start: int, number: str, value: str, element: str) -> None:
        lines, stored = self.lines, "i8" if element == "i1" else element
        if stored != element:
            value = lines.new(f"zext {element} {value} to {stored}")
        address = self.address(start, number, stored)
        lines.add(f"store {stored} {value}, ptr addrspace(3) {address}, align {self.stored_bytes(stored)}")

    def read(self, start: int, number: str, element: str) -> str:
        lines, stored = self.lines, "i8" if element == "i1" else element
        address = self.address(start, number, stored)
        value = lines.new(f"load {stored}, ptr addrspace(3) {address}, align {self.stored_bytes(stored)}")
        return value if stored == element else lines.new(f"trunc {stored} {value} to {element}")


def halvings(count: int, last: int) -> list[int]:
    """Half of a power of two, half of that, and so on to ``last``."""
    found = []
    while count > last:
        count //= 2
        found.append(count)
    return found


def barrier(lines: Lines) -> None:
    """All threads of the block have come here before any goes on."""
    lines.declare("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
    lines.add("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")
