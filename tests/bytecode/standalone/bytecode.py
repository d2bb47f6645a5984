"""`kiln.bytecode` as the package `bytecode`, without `kiln/__init__.py`, which needs torch."""

import sys
import types
from pathlib import Path

kiln = types.ModuleType("kiln")
kiln.__path__ = [str(Path(__file__).parents[3] / "kiln")]
sys.modules["kiln"] = kiln

import kiln.bytecode  # noqa: E402

sys.modules["bytecode"] = kiln.bytecode
