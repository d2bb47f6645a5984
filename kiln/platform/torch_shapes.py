"""Shape environments and their symbols, and how sympy expressions are printed. Known for torch 2.11 to 2.15.

Importing it loads sympy (half a second): import it inside functions. A missing class makes the import fail.
"""

from __future__ import annotations

from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
    free_unbacked_symbols,
)
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.printers import PythonPrinter

__all__ = [
    "DimDynamic",
    "FloorDiv",
    "GuardOnDataDependentSymNode",
    "PythonPrinter",
    "ShapeEnv",
    "StatelessSymbolicContext",
    "free_unbacked_symbols",
]
