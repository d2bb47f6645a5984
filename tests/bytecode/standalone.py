"""`kiln.bytecode` without `kiln/__init__.py`, which needs torch: for interpreters that have none."""

import importlib
import sys
import types
from pathlib import Path

kiln = types.ModuleType("kiln")
kiln.__path__ = [str(Path(__file__).parents[2] / "kiln")]
sys.modules["kiln"] = kiln

bytecode = importlib.import_module("kiln.bytecode")
