"""From kernels to LLVM IR text: one function a kernel, ``void NAME(ptr pointers, ptr sizes, i64 start, i64 end)``.

``pointers`` are those of the kernel's buffers, ``sizes`` the values of its sizes (int64). The function computes the
units of work (`workload.Extent`) from ``start`` up to ``end``: a run of the kept points. A kernel of fixed sizes that
one thread runs alone ignores ``start`` and ``end`` and computes everything.
"""

from __future__ import annotations

from collections.abc import Mapping

from kiln.loops.kernel import Kernel

from ...llvm.llvm_text import Lines, Names
from ..workload import extent_of
from .kernel_plan import plan_of
from .nest import Nest


def emit(kernel: Kernel, name: str) -> str:
    """The LLVM module of one kernel."""
    return emit_module({name: kernel})


def emit_module(kernels: Mapping[str, Kernel]) -> str:
    """One LLVM module with a function for each kernel, by name."""
    declarations: dict[str, None] = {}
    functions = [function_of(kernel, name, declarations) for name, kernel in kernels.items()]
    return "\n".join([*declarations, *functions]) + "\n"


def function_of(kernel: Kernel, name: str, declarations: dict[str, None]) -> str:
    plan = plan_of(kernel)
    extent = extent_of(plan)
    lines = Lines(Names(declarations))
    units = extent.units()
    if not isinstance(units, int) or (units > 0 and not extent.is_whole):
        Nest(plan, lines).write("%start", "%end")
    elif units > 0:
        Nest(plan, lines).write(0, units)
    body = "\n".join([*lines.text, "ret void"])
    return f"define void @{name}(ptr %pointers, ptr %sizes, i64 %start, i64 %end) nounwind {{\nentry:\n{body}\n}}\n"
