"""PTX without instructions on 16-bit integers that NVIDIA's assembler compiles wrongly for sm_90 (12.8 and 13.0 do, and
the driver's own).

- ``max.s16 r, x, c`` (and min, u16, the packed forms), then ``r == c``: the comparison becomes the predicate which says
  that x was taken. Such instructions are replaced by those on 32 bits.
- ``add.s16x2 r, {x, x}, {0, 1}``: the upper half becomes x. LLVM writes packed instructions only for PTX from 8.0 on
  (`ptx.PTX_FEATURES`).
"""

from __future__ import annotations

import re

EXTREME = re.compile(r"^\t(m(?:in|ax))\.([su])16 +\t?(%\w+), (%\w+), (%\w+|-?\d+);$", re.MULTILINE)
PACKED = re.compile(r"\.[su]16x2\b")


def without_wrong_instructions(ptx: str) -> str:
    assert not PACKED.search(ptx), "packed integers in PTX"
    return EXTREME.sub(in_words, ptx)


def in_words(found: re.Match[str]) -> str:
    """A minimum or maximum of 16 bits, by the instruction for 32 bits."""
    name, sign, result, first, second = found.groups()
    extended = f"cvt.{sign}32.{sign}16 \t%word1, {second}"
    if not second.startswith("%"):
        extended = f"mov.b32 \t%word1, {int(second) if sign == 's' else int(second) & 0xFFFF}"
    lines = [
        "{",
        ".reg .b32 \t%word<2>;",
        f"cvt.{sign}32.{sign}16 \t%word0, {first};",
        f"{extended};",
        f"{name}.{sign}32 \t%word0, %word0, %word1;",
        f"cvt.u16.u32 \t{result}, %word0;",
        "}",
    ]
    return "\n".join(f"\t{line}" for line in lines)
