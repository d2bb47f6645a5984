"""Conditions that stop the GPU where they are false: indices out of range.

The function ``__assertfail`` is part of every driver. It ends the kernel with the error that eager's kernels end with,
a "device-side assert", and prints the text.
"""

from __future__ import annotations

import zlib

from ...llvm.llvm_text import Lines

FUNCTION = "__assertfail"


def stop_unless(lines: Lines, condition: str, lanes: int, text: str) -> None:
    """Ends the kernel if the condition (an i1, or a vector of them) is not true."""
    if lanes > 1:
        condition = lines.call(f"llvm.vector.reduce.and.v{lanes}i1", "i1", [(f"<{lanes} x i1>", condition)])
    wrong, right = lines.fresh("wrong"), lines.fresh("right")
    lines.branch_if(condition, right, wrong)
    lines.label(wrong)
    lines.declare(f"declare void @{FUNCTION}(ptr, ptr, i32, ptr, i64)")
    message, place = constant_text(lines, text), constant_text(lines, "kiln")
    lines.add(f"call void @{FUNCTION}(ptr {message}, ptr {place}, i32 0, ptr {place}, i64 1)")
    lines.branch(right)
    lines.label(right)


def constant_text(lines: Lines, text: str) -> str:
    """A pointer to characters, with a zero at the end."""
    data = text.encode("ascii", "replace") + b"\0"
    name = f"@kiln_text_{zlib.crc32(data):08x}"
    shown = "".join(f"\\{byte:02X}" for byte in data)
    lines.declare(f'{name} = internal addrspace(1) constant [{len(data)} x i8] c"{shown}", align 1')
    return f"addrspacecast (ptr addrspace(1) {name} to ptr)"
