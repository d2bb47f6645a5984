"""Random numbers in kernels: the code of ``ir.philox`` (loops/philox.py says what it means).

The four numbers of one call of the generator are computed together: a vector of neighbouring elements takes as many of
them as it can.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.loops.philox import FACTORS, KEY_STEPS, NUMBERS_OF_CALL, ROUNDS, Draws

from .llvm_text import Lines
from .loop_code import Index

FITS_32_BITS = 1 << 31


def keys_of(lines: Lines, seed: str) -> list[tuple[str, str]]:
    """The keys of all rounds."""
    high = lines.new(f"lshr i64 {seed}, 32")
    low, high = (lines.new(f"trunc i64 {part} to i32") for part in (seed, high))
    found = [(low, high)]
    for _ in range(ROUNDS - 1):
        low, high = (lines.new(f"add i32 {key}, {step}") for key, step in zip((low, high), KEY_STEPS, strict=True))
        found.append((low, high))
    return found


def numbers_of_call(lines: Lines, keys: Sequence[Sequence[str]], counter: str, subsequence: str) -> list[str]:
    """The four numbers (i32) of the call with a counter (i64), in a subsequence (i32)."""
    high = lines.new(f"lshr i64 {counter}, 32")
    a, b = (lines.new(f"trunc i64 {part} to i32") for part in (counter, high))
    c, d = subsequence, "0"
    for low_key, high_key in keys:
        first, second = product(lines, a, FACTORS[0]), product(lines, c, FACTORS[1])
        a, b = mixed(lines, second[0], b, low_key), second[1]
        c, d = mixed(lines, first[0], d, high_key), first[1]
    return [a, b, c, d]


def product(lines: Lines, a: str, factor: int) -> tuple[str, str]:
    """The halves of a product of 64 bits, the high one first."""
    whole = lines.new(f"mul i64 {lines.new(f'zext i32 {a} to i64')}, {factor}")
    high = lines.new(f"lshr i64 {whole}, 32")
    return lines.new(f"trunc i64 {high} to i32"), lines.new(f"trunc i64 {whole} to i32")


def mixed(lines: Lines, a: str, b: str, c: str) -> str:
    return lines.new(f"xor i32 {lines.new(f'xor i32 {a}, {b}')}, {c}")


class Elements:
    """Code for the numbers of neighbouring elements, of which the first is given. ``threads`` is a number, or a
    register (i64) where it is dynamic."""

    def __init__(self, lines: Lines, draws: Draws, threads: Index, keys: Sequence[Sequence[str]], offset: str) -> None:
        self.lines, self.draws, self.threads, self.keys, self.offset = lines, draws, threads, keys, offset
        self.kind = "i64"
        # How many times the threads have to take elements, one each; None where that is dynamic.
        self.rounds_of_all: int | None = None
        if isinstance(draws.elements, int) and isinstance(threads, int):
            self.rounds_of_all = -(-draws.elements // threads)
            self.kind = "i32" if draws.elements < FITS_32_BITS else "i64"

    def numbers(self, first: str, count: int) -> list[str]:
        """The numbers (i64) of ``count`` elements that one call is for, from the element ``first`` (i64)."""
        element = first if self.kind == "i64" else self.lines.new(f"trunc i64 {first} to i32")
        call, subsequence, which = self.along_vector(element) if self.draws.vector > 1 else self.apart(element)
        counter = self.lines.new(f"lshr i64 {self.offset}, 2")
        if call is not None:
            counter = self.lines.new(f"add i64 {counter}, {self.widened(call)}")
        words = numbers_of_call(self.lines, self.keys, counter, self.narrowed(subsequence))
        if count == self.draws.group and self.draws.vector > 1:
            which = None
        values = [self.element_value(words, which, place) for place in range(count)]
        return values

    def element_value(self, words: list[str], which: str | None, place: int) -> str:
        if not self.draws.is_wide:
            return self.widened_word(self.chosen(words, which, place))
        high, low = (self.widened_word(self.chosen(words[half::2], which, place)) for half in (0, 1))
        return self.lines.new(f"or i64 {self.lines.new(f'shl i64 {high}, 32')}, {low}")

    def along_vector(self, element: str) -> tuple[str | None, str, str]:
        """The call, the subsequence and the first of its numbers, for neighbours."""
        vector = self.draws.vector
        chunk = self.do("lshr", element, vector.bit_length() - 1)
        call, subsequence = self.rounds(chunk, vector)
        if vector > NUMBERS_OF_CALL:
            within = self.do("and", self.do("lshr", element, 2), vector // NUMBERS_OF_CALL - 1)
            call = within if call is None else self.do("add", self.do("mul", call, vector // NUMBERS_OF_CALL), within)
        return call, subsequence, self.do("and", element, self.draws.group - 1)

    def apart(self, element: str) -> tuple[str | None, str, str | None]:
        place, subsequence = self.rounds(element, 1)
        if place is None:
            return None, subsequence, None
        unroll = self.draws.unroll
        which = self.do("and", place, unroll - 1)
        if self.fits(unroll):
            return None, subsequence, which
        return self.do("lshr", place, unroll.bit_length() - 1), subsequence, which

    def fits(self, count: int) -> bool:
        """Whether all elements are taken if each thread takes so many."""
        return self.rounds_of_all is not None and self.rounds_of_all <= count

    def rounds(self, value: str, count: int) -> tuple[str | None, str]:
        """The quotient by the number of threads, and the remainder. None where the quotient is always 0: each thread
        takes ``count`` elements at most."""
        if self.fits(count):
            return None, value
        quotient = self.do("udiv", value, self.threads)
        return quotient, self.do("sub", value, self.do("mul", quotient, self.threads))

    def chosen(self, words: list[str], which: str | None, place: int) -> str:
        """The word with the number ``which + place``."""
        if which is None:
            return words[place]
        wanted = self.do("add", which, place) if place else which
        found = words[-1]
        for number in reversed(range(len(words) - 1)):
            is_it = self.lines.new(f"icmp eq {self.kind} {wanted}, {number}")
            found = self.lines.new(f"select i1 {is_it}, i32 {words[number]}, i32 {found}")
        return found

    def do(self, instruction: str, a: str, b: str | int) -> str:
        return self.lines.new(f"{instruction} {self.kind} {a}, {b}")

    def widened(self, value: str) -> str:
        return value if self.kind == "i64" else self.lines.new(f"zext i32 {value} to i64")

    def widened_word(self, word: str) -> str:
        return self.lines.new(f"zext i32 {word} to i64")

    def narrowed(self, value: str) -> str:
        return value if self.kind == "i32" else self.lines.new(f"trunc i64 {value} to i32")
