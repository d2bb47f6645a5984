"""Object code put into memory and linked: a loader of relocatable ELF files for x86-64.

LLVM's own linker would do the same, but needs LLVM in the process; a program from the disk cache starts without it. The
loader supports the part of ELF that kernels use: sections, calls to outside functions (through a jump beside the code,
since they may be out of the range of a call), and addresses in a table. Everything else is refused (`NotLoadable`).

Memory is written first and made executable then, never both. It is unmapped when the `Image` is deleted.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable

from kiln.exc import KilnError

from ...platform.light_dataclass import dataclass


class NotLoadable(KilnError):
    """Object code that this loader does not understand, or that the system does not let run."""


RELOCATABLE, X86_64 = 1, 62
SYMBOLS, ADDENDS, NO_BITS = 2, 4, 8  # types of sections: symbols, relocations with addends, zeros
WRITABLE, ALLOCATED, EXECUTABLE, THREAD_LOCAL = 1, 2, 4, 0x400
CONSTANT_ADDRESSES = ".data.rel.ro"  # read only, once linked
LOCAL = 0
UNDEFINED, ABSOLUTE, FIRST_RESERVED = 0, 0xFFF1, 0xFF00

JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp [rip + 0]: to the address that follows
JUMP_SIZE = 16

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")

# Relocations by number: the size of what is patched, whether the value counts from there, and what it is of: the
# symbol itself ("symbol"), a jump to it where it is elsewhere ("call") or the place in the table where its address is.
RELOCATIONS: dict[int, tuple[str, bool, str]] = {
    1: ("<q", False, "symbol"),  # 64
    2: ("<i", True, "symbol"),  # PC32
    4: ("<i", True, "call"),  # PLT32
    9: ("<i", True, "table"),  # GOTPCREL
    24: ("<q", True, "symbol"),  # PC64
    41: ("<i", True, "table"),  # GOTPCRELX
    42: ("<i", True, "table"),  # REX_GOTPCRELX
}


@dataclass
class Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    place: int = -1  # in memory, from the image's first byte


class Image:
    """Code in memory; `addresses` has its functions by name."""

    def __init__(self, memory: mmap.mmap, addresses: dict[str, int]) -> None:
        self.memory = memory  # unmapped when it is deleted
        self.addresses = addresses


def load(code: bytes, resolve: Callable[[str], int]) -> Image:
    """Loads object code into memory. ``resolve`` finds the addresses of outside functions."""
    try:
        return Loader(code, resolve).load()
    except (struct.error, IndexError, ValueError, OverflowError, OSError) as error:
        raise NotLoadable(f"damaged object code: {error}") from error


class Loader:
    def __init__(self, code: bytes, resolve: Callable[[str], int]) -> None:
        self.code = code
        self.resolve = resolve
        self.base = 0

    def load(self) -> Image:
        self.sections = self.read_sections()
        self.symbols = self.read_symbols()
        patches = self.read_relocations()
        self.lay_out({symbol for _, _, symbol, _ in patches})
        memory = mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        holder = ctypes.c_char.from_buffer(memory)
        self.base = ctypes.addressof(holder)
        del holder
        self.fill(memory)
        for place, kind, symbol, addend in patches:
            self.patch(memory, place, kind, symbol, addend)
        self.protect()
        addresses = {
            name: self.base + self.sections[section].place + value
            for name, section, value, binding in self.symbols
            if name and binding != LOCAL and self.is_loaded(section)
        }
        return Image(memory, addresses)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def read_sections(self) -> list[Section]:
        ident, kind, machine, _, _, _, first, _, _, _, _, size, count, names = HEADER.unpack_from(self.code)
        if ident[:6] != b"\x7fELF\x02\x01" or (kind, machine, size) != (RELOCATABLE, X86_64, SECTION.size):
            raise NotLoadable("not a relocatable ELF file for x86-64")
        found = [SECTION.unpack_from(self.code, first + number * SECTION.size) for number in range(count)]
        texts = found[names][4]
        sections = []
        for name, kind, flags, _, offset, size, link, info, alignment, _ in found:
            if (kind != NO_BITS and offset + size > len(self.code)) or alignment > mmap.PAGESIZE:
                raise NotLoadable("damaged object code: a section that cannot be")
            sections.append(Section(self.text(texts + name), kind, flags, offset, size, link, info, max(alignment, 1)))
        return sections

    def text(self, start: int) -> str:
        return self.code[start : self.code.index(b"\0", start)].decode()

    def read_symbols(self) -> list[tuple[str, int, int, int]]:
        """Name, section, place in it, and binding of each."""
        found = []
        for section in self.sections:
            if section.kind == SYMBOLS:
                texts = self.sections[section.link].offset
                for start in range(section.offset, section.offset + section.size, SYMBOL.size):
                    name, info, _, where, value, _ = SYMBOL.unpack_from(self.code, start)
                    found.append((self.text(texts + name), where, value, info >> 4))
        return found

    def read_relocations(self) -> list[tuple[tuple[Section, int], int, int, int]]:
        found = []
        for section in self.sections:
            if section.kind != ADDENDS or not self.is_loaded(section.info):
                continue
            target = self.sections[section.info]
            for start in range(section.offset, section.offset + section.size, RELOCATION.size):
                offset, info, addend = RELOCATION.unpack_from(self.code, start)
                kind, symbol = info & 0xFFFFFFFF, info >> 32
                if kind not in RELOCATIONS:
                    raise NotLoadable(f"a relocation of kind {kind}")
                if offset + struct.calcsize(RELOCATIONS[kind][0]) > target.size or target.kind == NO_BITS:
                    raise NotLoadable("damaged object code: a relocation behind the end of its section")
                found.append(((target, offset), kind, symbol, addend))
        return found

    def is_loaded(self, number: int) -> bool:
        if number >= FIRST_RESERVED or number == UNDEFINED:
            return False
        section = self.sections[number]
        if section.flags & (WRITABLE | THREAD_LOCAL) and section.name != CONSTANT_ADDRESSES:
            raise NotLoadable(f"kernels have no variables, but the section {section.name} has")
        return bool(section.flags & ALLOCATED) and section.name != ".eh_frame"  # nothing is thrown through kernels

    # ---- writing -----------------------------------------------------------------------------------------------------

    def lay_out(self, used: set[int]) -> None:
        """Code first, with the jumps; what is only read from the next page on, with the table of addresses."""
        loaded = [section for number, section in enumerate(self.sections) if self.is_loaded(number)]
        elsewhere = [number for number in sorted(used) if self.symbols[number][1] == UNDEFINED]
        place = 0
        for section in loaded:
            if section.flags & EXECUTABLE:
                place = section.place = round_up(place, section.alignment)
                place += section.size
        self.jumps = {number: round_up(place, JUMP_SIZE) + k * JUMP_SIZE for k, number in enumerate(elsewhere)}
        place = self.code_size = round_up(round_up(place, JUMP_SIZE) + len(self.jumps) * JUMP_SIZE, mmap.PAGESIZE)
        for section in loaded:
            if not section.flags & EXECUTABLE:
                place = section.place = round_up(place, section.alignment)
                place += section.size
        place = round_up(place, 8)
        self.table = {number: place + 8 * k for k, number in enumerate(sorted(used))}
        self.size = max(round_up(place + 8 * len(self.table), mmap.PAGESIZE), mmap.PAGESIZE)
        self.elsewhere = {number: self.resolve(self.symbols[number][0]) for number in elsewhere}

    def fill(self, memory: mmap.mmap) -> None:
        for section in self.sections:
            if section.place >= 0 and section.kind != NO_BITS:
                memory[section.place : section.place + section.size] = self.code[
                    section.offset : section.offset + section.size
                ]
        for number, place in self.jumps.items():
            struct.pack_into("<6sQ", memory, place, JUMP, self.elsewhere[number])
        for number, place in self.table.items():
            struct.pack_into("<Q", memory, place, self.address(number))

    def address(self, number: int) -> int:
        _, section, value, _ = self.symbols[number]
        if section == UNDEFINED:
            return self.elsewhere[number]
        if section == ABSOLUTE:
            return value
        if not self.is_loaded(section) or value > self.sections[section].size:
            raise NotLoadable("damaged object code: a symbol that is nowhere")
        return self.base + self.sections[section].place + value

    def patch(self, memory: mmap.mmap, where: tuple[Section, int], kind: int, symbol: int, addend: int) -> None:
        layout, relative, of = RELOCATIONS[kind]
        place = where[0].place + where[1]
        if of == "table":
            value = self.base + self.table[symbol]
        elif of == "call" and symbol in self.jumps:
            value = self.base + self.jumps[symbol]
        else:
            value = self.address(symbol)
        value += addend - (self.base + place if relative else 0)
        struct.pack_into(layout, memory, place, value)  # struct.error where it is further than that reaches

    def protect(self) -> None:
        allow(self.base, self.code_size, mmap.PROT_READ | mmap.PROT_EXEC)
        allow(self.base + self.code_size, self.size - self.code_size, mmap.PROT_READ)


def round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step


def allow(address: int, size: int, rights: int) -> None:
    if size:
        change = ctypes.CDLL(None, use_errno=True).mprotect
        change.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if change(address, size, rights):
            number = ctypes.get_errno()
            raise NotLoadable(f"the system does not let kernels run from memory (mprotect: error {number})")
