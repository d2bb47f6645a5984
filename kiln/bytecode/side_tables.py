"""The two packed side tables of a code object: exception ranges and source positions."""

from collections.abc import Iterable, Iterator

from .instruction import Positions

NO_LOCATION, LONG, NO_COLUMNS, ONE_LINE = 15, 14, 13, 10
MAX_ENTRY_UNITS = 8


def parse_exception_table(table: bytes) -> Iterator[tuple[int, int, int, int, bool]]:
    """(start, end, target, depth, lasti) for each entry; positions in code units, end exclusive."""
    numbers: list[int] = []
    continued = False
    for byte in table:
        if not continued:
            numbers.append(0)
        numbers[-1] = numbers[-1] << 6 | byte & 0x3F
        continued = bool(byte & 0x40)
    for at in range(0, len(numbers), 4):
        start, length, target, packed = numbers[at : at + 4]
        yield start, start + length, target, packed >> 1, bool(packed & 1)


def build_exception_table(entries: Iterable[tuple[int, int, int, int, bool]]) -> bytes:
    """The packed form of what `parse_exception_table` yields."""
    table = bytearray()
    for start, end, target, depth, lasti in entries:
        first = len(table)
        for number in (start, end - start, target, depth << 1 | lasti):
            table += _big_endian(number)
        table[first] |= 0x80
    return bytes(table)


def _big_endian(number: int) -> bytes:
    """Six bits a byte, most significant first, bit 6 set on all but the last."""
    digits = [number & 0x3F]
    while number := number >> 6:
        digits.append(number & 0x3F | 0x40)
    return bytes(reversed(digits))


def _little_endian(number: int) -> bytes:
    """Six bits a byte, least significant first, bit 6 set on all but the last."""
    digits = bytearray()
    while number >= 64:
        digits.append(number & 0x3F | 0x40)
        number >>= 6
    digits.append(number)
    return bytes(digits)


def _signed(number: int) -> bytes:
    return _little_endian(-number << 1 | 1 if number < 0 else number << 1)


def build_line_table(firstlineno: int, entries: Iterable[tuple[Positions | None, int]]) -> bytes:
    """The position table for runs of (positions, length in code units)."""
    table = bytearray()
    line = firstlineno
    for positions, length in entries:
        code, payload, line = _location(positions, line)
        while length > 0:
            units = min(length, MAX_ENTRY_UNITS)
            table.append(0x80 | code << 3 | units - 1)
            table += payload
            length -= units
            if length > 0:  # the rest of a long run repeats the place, now zero lines away
                code, payload, line = _location(positions, line)
    return bytes(table)


def _location(positions: Positions | None, line: int) -> tuple[int, bytes, int]:
    """(kind of entry, its payload, the line after it), taking the most compact kind that holds the positions."""
    first, last, start, end = positions or (None, None, None, None)
    if first is None:
        return NO_LOCATION, b"", line
    delta = first - line
    last = first if last is None else last
    if start is None or end is None:
        if last == first:
            return NO_COLUMNS, _signed(delta), first
        return LONG, _signed(delta) + _little_endian(last - first) + b"\0\0", first
    if last == first and delta == 0 and start < 80 and 0 <= end - start < 16:
        return start >> 3, bytes([(start & 7) << 4 | end - start]), first
    if last == first and 0 <= delta < 3 and start < 128 and end < 128:
        return ONE_LINE + delta, bytes([start, end]), first
    payload = _signed(delta) + _little_endian(last - first) + _little_endian(start + 1) + _little_endian(end + 1)
    return LONG, payload, first
