"""How the members of a unit combine the results of a reduction, so that each of them has the whole.

By rows, the members of a warp exchange values by shuffles, and warps through shared memory. By columns, all go through
shared memory. Each reduction has its own part of the shared memory, so one barrier is enough for each.
"""

from __future__ import annotations

from kiln.loops.kernel import Reduction

from ..llvm import reductions
from ..llvm.llvm_text import REGISTERS, Lines, llvm_type
from .kernel_plan import SLOT, WARP, CudaPlan

BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "float": 32, "i64": 64, "double": 64}
ALL_LANES = "-1"


class Exchange:
    def __init__(self, plan: CudaPlan, lines: Lines, shared: str) -> None:
        self.plan, self.lines, self.shared = plan, lines, shared
        self.thread = self.slot = self.member = "0"
        self.used = 0  # bytes of the shared memory

    def set_thread(self, thread: str, slot: str, member: str) -> None:
        """Registers with the number of the thread in its block, of its unit there, and of it among its members."""
        self.thread, self.slot, self.member = thread, slot, member

    def combine(self, reduction: Reduction, carried: list[str], lanes: int) -> list[str]:
        """What all members carry together, in each of them."""
        plan = self.plan
        if plan.members == 1:
            return carried
        if plan.is_by_columns:
            return self.down_columns(reduction, carried, lanes)
        assert lanes == 1, "the lanes of a row are combined first"
        carried = self.butterfly(reduction, carried, min(plan.members, WARP))
        return self.across_warps(reduction, carried) if plan.members > WARP else carried

    # ---- within a warp -----------------------------------------------------------------------------------------------

    def butterfly(self, reduction: Reduction, carried: list[str], count: int) -> list[str]:
        """Combines the values of ``count`` neighbouring threads. Steps are commutative: all have the same bits."""
        distance = count // 2
        while distance:
            others = [
                self.shuffled(value, self.element(reduction, place), distance) for place, value in enumerate(carried)
            ]
            carried = reductions.join_two(self.lines, reduction, carried, others, 1)
            distance //= 2
        return carried

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

    def across_warps(self, reduction: Reduction, carried: list[str]) -> list[str]:
        """The results of a block's warps, combined. A unit has the whole block."""
        lines, count = self.lines, self.plan.members // WARP
        warp = lines.new(f"lshr i32 {self.thread}, 5")
        lane = lines.new(f"and i32 {self.thread}, {count - 1}")
        places = [self.reserve(count) for _ in carried]
        for place, value in enumerate(carried):  # all threads of a warp write the same
            self.write(places[place], warp, value, self.element(reduction, place), 1)
        self.barrier()
        found = [self.read(places[place], lane, self.element(reduction, place), 1) for place in range(len(carried))]
        return self.butterfly(reduction, found, count)

    def down_columns(self, reduction: Reduction, carried: list[str], lanes: int) -> list[str]:
        lines, plan = self.lines, self.plan
        count = plan.units_of_block
        places = [self.reserve(plan.threads * lanes) for _ in carried]
        for place, value in enumerate(carried):
            self.write(places[place], self.thread, value, self.element(reduction, place), lanes)
        self.barrier()
        whole: list[str] = []
        for member in range(plan.members):
            number = lines.new(f"add i32 {self.slot}, {member * count}")
            one = [
                self.read(places[place], number, self.element(reduction, place), lanes) for place in range(len(carried))
            ]
            whole = reductions.join_two(lines, reduction, whole, one, lanes) if whole else one
        return whole

    def reserve(self, slots: int) -> int:
        place = self.used
        self.used += slots * SLOT
        return place

    def address(self, place: int, number: str, element: str, lanes: int) -> str:
        lines = self.lines
        first = lines.new(f"getelementptr i8, ptr addrspace(3) {self.shared}, i32 {place}")
        return lines.new(f"getelementptr {llvm_type(element, lanes)}, ptr addrspace(3) {first}, i32 {number}")

    def write(self, place: int, number: str, value: str, element: str, lanes: int) -> None:
        lines, stored = self.lines, "i8" if element == "i1" else element
        if stored != element:
            value = lines.new(f"zext {llvm_type(element, lanes)} {value} to {llvm_type(stored, lanes)}")
        address = self.address(place, number, stored, lanes)
        lines.add(f"store {llvm_type(stored, lanes)} {value}, ptr addrspace(3) {address}, align {self.align(stored)}")

    def read(self, place: int, number: str, element: str, lanes: int) -> str:
        lines, stored = self.lines, "i8" if element == "i1" else element
        kind = llvm_type(stored, lanes)
        address = self.address(place, number, stored, lanes)
        value = lines.new(f"load {kind}, ptr addrspace(3) {address}, align {self.align(stored)}")
        return value if stored == element else lines.new(f"trunc {kind} {value} to {llvm_type(element, lanes)}")

    def align(self, element: str) -> int:
        return max(1, BITS[element] // 8)

    def barrier(self) -> None:
        self.lines.declare("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
        self.lines.add("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")
