"""Packages are layers: nothing imports upwards, not even inside a function, and packages form no cycle.

`LAYERS` lists the packages from the bottom to the top. A package may import those of the lines before its own; packages
on one line do not know each other. What is not listed is not checked as an importer.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.structure.imports import ROOT, Import, all_imports, cycles, module_names

# From the bottom to the top. Packages of one line are independent of each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("kiln._native", "kiln.exc", "kiln.operator_functions", "kiln.version"),
    ("kiln.platform",),
    ("kiln.config",),
    ("kiln.bytecode",),
    ("kiln.program",),
    ("kiln.program.operators",),
    ("kiln.program.shapes",),
    ("kiln.report",),
    ("kiln.loops",),
    ("kiln.target", "kiln.target.llvm"),
    ("kiln.lower", "kiln.target.cpu", "kiln.target.cuda"),
    ("kiln.lower.ops", "kiln.lower.schedule"),
    ("kiln.aot.partition", "kiln.aot.trace"),
    ("kiln.aot.runtime",),
    ("kiln.aot",),
    ("kiln.capture.guards",),
    ("kiln.capture.state",),
    ("kiln.capture.shadows",),
    ("kiln.capture.interpreter",),
    ("kiln.capture.writeback",),
    ("kiln.capture.python",),
    ("kiln.capture.torch",),
    ("kiln.capture.autograd",),
    ("kiln.capture.entry",),
    ("kiln.engine.walk",),
    ("kiln.engine.calls",),
    ("kiln.engine.trace",),
    ("kiln.engine.run",),
    ("kiln.codegen",),
    ("kiln.backends",),
    ("kiln.api",),
    ("kiln.compiled_autograd", "kiln.explain"),
    ("kiln.testing",),
    ("kiln.compat",),
    ("kiln.doctor",),
    ("kiln",),
    ("kiln.__main__",),
)
# Files that are one package together: each needs the others.
ONE_PACKAGE = {"kiln.api_rules": "kiln.api", "kiln.modules": "kiln.api"}
PACKAGES = tuple(package for packages in LAYERS[1:] for package in packages)
LARGEST_CYCLE = 3  # modules of one package that may import each other
LARGEST_FOLDER = 20  # Python files

HEIGHTS = {package: height for height, packages in enumerate(LAYERS) for package in packages}


def package_of(module: str) -> str:
    """The package of a module: kiln.lower of kiln.lower.ops.pointwise.copies, kiln.capture.torch of its modules.

    Packages within a package are layers of their own where `LAYERS` lists them.
    """
    parts = module.split(".")
    inner = ".".join(parts[:3])
    package = inner if inner in HEIGHTS or parts[1:2] == ["capture"] else ".".join(parts[:2])
    return ONE_PACKAGE.get(package, package)


def upward(edges: Iterable[Import], done: Iterable[str] = PACKAGES) -> list[str]:
    """The imports of packages that do not go down. What `LAYERS` does not list is above everything.

    Within capture, annotations may name classes of layers above: the trace holds frames.
    """
    found = []
    for edge in edges:
        if edge.for_types and edge.importer.startswith("kiln.capture.") and edge.imported.startswith("kiln.capture."):
            continue
        importer, imported = package_of(edge.importer), package_of(edge.imported)
        if importer in done and importer != imported:
            if HEIGHTS.get(imported, len(LAYERS)) >= HEIGHTS[importer]:
                found.append(str(edge))
    return found


def large_cycles(edges: Iterable[Import], done: Iterable[str] = PACKAGES) -> list[list[str]]:
    """Cycles of too many modules within a finished package."""
    found = []
    for package in done:
        run = (edge for edge in edges if not edge.for_types)
        own = [(edge.importer, edge.imported) for edge in run if package_of(edge.importer) == package]
        inner = [(start, end) for start, end in own if package_of(end) == package]
        found += [component for component in cycles(inner) if len(component) > LARGEST_CYCLE]
    return found


@pytest.fixture(scope="module")
def edges() -> list[Import]:
    return all_imports()


def test_no_package_imports_upwards(edges: list[Import]) -> None:
    assert not upward(edges)


def test_no_module_uses_functions_of_operator_that_a_program_may_replace() -> None:
    statement = re.compile(r"^\s*(import operator\b|from operator import)", re.MULTILINE)
    files = module_names(ROOT, "kiln")
    assert [name for name, path in files.items() if statement.search(path.read_text())] == ["kiln.operator_functions"]


def test_no_large_cycle_of_modules(edges: list[Import]) -> None:
    assert not large_cycles(edges)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_large_folder(package: str) -> None:
    top = ROOT / package.replace(".", "/")
    for folder in [top, *(path for path in top.rglob("*") if path.is_dir())]:
        assert len(list(folder.glob("*.py"))) <= LARGEST_FOLDER, folder


# ---- the test itself -------------------------------------------------------------------------------------------------


def planted(tmp_path: Path, files: dict[str, str]) -> list[Import]:
    """The imports of a package with these files."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents:
            if folder == tmp_path:
                break
            (folder / "__init__.py").touch()
        path.write_text(text)
    return all_imports(tmp_path)


PLANTED = {
    "at module level": "from ..lower import lowering\n",
    "inside a function": "def f():\n    from ..lower.lowering import Lowering\n",
    "with its whole name": "import kiln.lower.lowering\n",
    "for types alone": "if TYPE_CHECKING:\n    from kiln.lower.lowering import Lowering\n",
    "from an unknown package": "from ..unknown import thing\n",
}


@pytest.mark.parametrize("text", PLANTED.values(), ids=PLANTED)
def test_an_upward_import_is_found(tmp_path: Path, text: str) -> None:
    files = {"kiln/target/cpu.py": text, "kiln/lower/lowering.py": "Lowering = 1\n", "kiln/unknown/thing.py": ""}
    assert len(upward(planted(tmp_path, files))) == 1


def test_a_downward_import_is_not(tmp_path: Path) -> None:
    files = {"kiln/lower/lowering.py": "from ..loops import ir\nfrom .. import config\n", "kiln/loops/ir.py": ""}
    assert not upward(planted(tmp_path, files | {"kiln/config.py": ""}))


def test_a_large_cycle_is_found(tmp_path: Path) -> None:
    def files(count: int) -> dict[str, str]:
        following = {number: (number + 1) % count for number in range(count)}
        return {
            f"kiln/loops/m{number}.py": f"def f():\n    from . import m{following[number]}\n" for number in following
        }

    assert not large_cycles(planted(tmp_path / "three", files(3)))
    (found,) = large_cycles(planted(tmp_path / "four", files(4)))
    assert found == [f"kiln.loops.m{number}" for number in range(4)]


def test_the_dispatcher_loads_every_file_of_capture(edges: list[Import]) -> None:
    """A file that nobody imports registers no rules. What only a function imports is loaded when it is needed."""
    importlib.import_module("kiln.api_rules")
    importlib.import_module("kiln.capture.entry.dispatch")
    files = [name for name in module_names(ROOT, "kiln") if name.startswith("kiln.capture.")]
    imported = {edge.imported for edge in edges if not edge.importer.endswith(".all_rules")}
    assert files and [name for name in files if name not in sys.modules and name not in imported] == []


def test_every_operation_is_registered() -> None:
    """What files of capture call through `operations` is defined by a file above them, and nothing else is."""
    importlib.import_module("kiln.capture.entry.dispatch")
    operations = importlib.import_module("kiln.capture.state.operations").operations
    files = [path.read_text() for path in (ROOT / "kiln" / "capture").rglob("*.py")]
    used = {name for text in files for name in re.findall(r"(?<![.\w])operations\.(\w+)", text)} - {"py"}
    assert used == set(vars(operations))
    assert used == set(type(operations).__annotations__)  # each has a type
