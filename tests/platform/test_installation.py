"""`import kiln` says clearly what is wrong with an installation, before the native module could crash."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kiln.platform.support import build_record, native_module, supported
from tests.structure.imports import ROOT
from tests.support.kiln_copies import MODULE, RECORD, copy_of, newer_torch, record_of, run

# Imports Kiln once for each folder, each time as if for the first time, and tells what was raised.
IMPORTS = """
import json, sys
import torch
told = {}
for name, folder in json.loads(sys.argv[1]).items():
    sys.path.insert(0, folder)
    try:
        import kiln
        told[name] = "imported"
    except ImportError as error:
        told[name] = str(error)
    sys.path.remove(folder)
    for module in [name for name in sys.modules if name.partition(".")[0] == "kiln"]:
        del sys.modules[module]
print(json.dumps(told))
"""


def not_built(folder: Path) -> None:
    module = copy_of(folder)
    module.unlink()
    record_of(module).unlink()


def for_another_python(folder: Path) -> None:
    module = copy_of(folder)
    tag = build_record.python_tag(str(module))
    module.rename(module.with_name(module.name.replace(tag, "cpython-39-x86_64-linux-gnu")))
    record_of(module).unlink()


def renamed_from_another_python(folder: Path) -> None:
    copy_of(folder, python="cpython-39-x86_64-linux-gnu")


def for_another_torch(folder: Path) -> None:
    copy_of(folder, torch="2.10.3+cu130")


def for_a_nightly(folder: Path) -> None:
    running = json.loads(RECORD.read_text())["torch"]
    copy_of(folder, torch=running.partition("+")[0] + ".dev20260102+cpu")


def for_another_abi(folder: Path) -> None:
    copy_of(folder, cxx11_abi=not json.loads(RECORD.read_text())["cxx11_abi"])


def for_another_kiln(folder: Path) -> None:
    copy_of(folder, kiln="0.0.1")


def without_a_record(folder: Path) -> None:
    record_of(copy_of(folder)).unlink()


def with_a_damaged_record(folder: Path) -> None:
    record = record_of(copy_of(folder))
    record.write_text(record.read_text()[:40])


def with_an_incomplete_record(folder: Path) -> None:
    record = record_of(copy_of(folder))
    facts = json.loads(record.read_text())
    del facts["cxx11_abi"]
    record.write_text(json.dumps(facts))


def cut_off(folder: Path) -> None:
    module = copy_of(folder)
    module.write_bytes(module.read_bytes()[:300_000])


def empty(folder: Path) -> None:
    copy_of(folder).write_bytes(b"")


def no_library(folder: Path) -> None:
    copy_of(folder).write_text("#!/bin/sh\n" * 1000)


def with_a_missing_symbol(folder: Path) -> None:
    module = copy_of(folder)
    source = folder / "missing.c"
    source.write_text("void *of_another_torch(void); void *PyInit__native(void) { return of_another_torch(); }")
    command = [str(COMPILER), "-shared", "-fPIC", str(source), "-o", str(module)]
    subprocess.run(command, check=True, capture_output=True)


COMPILER = shutil.which("gcc") or shutil.which("cc")
BUILD = "Build it again:  cd "
# What the package is like, and what is said of it.
CASES: dict[Callable[[Path], None], tuple[str, ...]] = {
    not_built: ("is not there", "was not built", "Build it:  cd ", "pip install --no-build-isolation -e ."),
    for_another_python: ("is not there", "modules for other Pythons (cpython-39-x86_64-linux-gnu)", BUILD),
    renamed_from_another_python: ("was built for another Python: cpython-39-x86_64-linux-gnu", BUILD),
    for_another_torch: ("was built for torch 2.10.3+cu130, and torch ", "installed", BUILD, '"torch==2.10.*"'),
    for_a_nightly: (".dev20260102+cpu, and torch ", BUILD),
    for_another_abi: ("another C++ ABI", "_GLIBCXX_USE_CXX11_ABI was", BUILD),
    for_another_kiln: ("was built for Kiln 0.0.1, and this is Kiln ", BUILD),
    without_a_record: ("is not known, so it is not loaded", "is missing", BUILD),
    with_a_damaged_record: ("is not known, so it is not loaded", "is damaged", BUILD),
    with_an_incomplete_record: ("is damaged: it has no 'cxx11_abi'", BUILD),
    cut_off: ("is damaged", "The file is cut off", BUILD),
    empty: ("is damaged", "The file is cut off", BUILD),
    no_library: ("is damaged", "no library at all", BUILD),
    with_a_missing_symbol: ("cannot be loaded", "This build of torch (", "undefined symbol: of_another_torch", BUILD),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `import kiln` says in each case."""
    folders = {}
    for make in CASES:
        if COMPILER is None and make is with_a_missing_symbol:
            continue
        folder = tmp_path_factory.mktemp(make.__name__)
        make(folder)
        (folder / "setup.py").touch()  # a source tree
        folders[make.__name__] = str(folder)
    whole = tmp_path_factory.mktemp("whole")
    copy_of(whole)
    folders["whole"] = str(whole)
    done = run(whole, "-c", IMPORTS, json.dumps(folders))
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_module_that_does_not_fit_is_not_loaded(told: dict[str, str], make: Callable[[Path], None]) -> None:
    if make.__name__ not in told:
        pytest.skip("no C compiler")
    for words in CASES[make]:
        assert words in told[make.__name__]
    assert sys.executable in told[make.__name__]


def test_one_that_fits_is(told: dict[str, str]) -> None:
    assert told["whole"] == "imported"


def test_the_record_of_another_module_is_noticed(tmp_path: Path) -> None:
    record = record_of(newer_torch(tmp_path))
    record.write_text(RECORD.read_text())
    done = run(tmp_path, "-c", "import kiln")
    assert done.returncode == 1
    assert "was built for torch 2.16.0" in done.stderr and "belongs to another module" in done.stderr


def test_without_sources_the_command_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_module, "source_tree", lambda: None)
    assert "--no-binary kiln-torch kiln-torch" in native_module.how_to_build("2.13.0")


def test_patches_and_builds_of_one_release_are_alike() -> None:
    same = native_module.is_same_torch
    assert same("2.14.0+cpu", "2.14.1+cu130") and same("2.13.0", "2.13.0+cpu")
    assert not same("2.14.0", "2.15.0") and not same("2.1.0", "2.13.0")
    assert same("2.16.0.dev20261101+cpu", "2.16.0.dev20261101+cu130")
    assert not same("2.16.0.dev20261101", "2.16.0.dev20261102") and not same("2.15.0rc1", "2.15.0")


def test_the_build_notes_what_it_was_for() -> None:
    import torch

    record = build_record.read(str(MODULE))
    assert record["torch"].split(".")[:2] == torch.__version__.split(".")[:2]
    assert record["checksum"] == build_record.checksum(str(MODULE))
    assert record["cxx11_abi"] is torch.compiled_with_cxx11_abi()


# ---- Pythons that do not fit -----------------------------------------------------------------------------------------

PYTHONS = {
    "free-threaded, by its flags": ("sys.abiflags = 't'", "free-threaded builds of CPython"),
    "free-threaded, without the lock": ("sys._is_gil_enabled = lambda: False", "free-threaded builds of CPython"),
    "3.15": ("sys.version_info = (3, 15, 0, 'final', 0)", "Kiln does not work with Python 3.15"),
    "3.10": ("sys.version_info = (3, 10, 9, 'final', 0)", "Kiln does not work with Python 3.10"),
    "pypy": ("sys.implementation.name = 'pypy'", "Kiln works with CPython alone, and this is pypy"),
    "without torch": ("sys.modules['torch'] = None", "Kiln needs torch, and this Python has none"),
}


@pytest.mark.parametrize("name", PYTHONS)
def test_another_python_is_refused_at_import(name: str) -> None:
    planted, said = PYTHONS[name]
    done = run(ROOT, "-c", f"import sys; {planted}; import kiln")
    assert done.returncode == 1
    message = done.stderr.partition("ImportError: ")[2]
    assert said in message.splitlines()[0]
    assert f"Use CPython {supported.between(supported.PYTHON)}" in message or "-m pip install" in message


@pytest.mark.parametrize("name", [name for name in PYTHONS if name != "without torch"])
def test_another_python_is_refused_by_the_build(name: str) -> None:
    planted, said = PYTHONS[name]
    program = f"import runpy, sys; {planted}; sys.argv = ['setup.py', 'build_ext']; runpy.run_path('setup.py')"
    done = run(ROOT, "-c", program)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def test_an_older_torch_is_refused() -> None:
    problem = supported.torch_problem("2.10.2+cpu")
    assert problem is not None and "needs torch 2.11 to 2.15" in problem and "pip install" in problem
    assert supported.torch_problem("2.11.0") is None and supported.torch_problem("2.16.0.dev20261101") is None


def test_releases_are_those_of_the_metadata() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (low, high) = supported.PYTHON
    assert f'requires-python = ">={supported.dotted(low)},<{high[0]}.{high[1] + 1}"' in text


def test_what_the_build_runs_imports_nothing_of_kiln() -> None:
    for name in ("supported", "build_record"):
        assert runpy.run_path(str(ROOT / "kiln" / "platform" / "support" / f"{name}.py"))
    runs = "[runpy.run_path(f'kiln/platform/support/{name}.py') for name in ('supported', 'build_record')]"
    done = run(
        ROOT,
        "-c",
        f"import sys, runpy; {runs}; print([name for name in sys.modules if name.startswith(('kiln', 'torch'))])",
    )
    assert done.stdout.strip() == "[]", os.linesep.join([done.stdout, done.stderr])


def test_import_loads_nothing_that_binds_private_names_of_torch() -> None:
    """A newer torch may lack one: then `import kiln` still works, and capture is switched off."""
    shown = "import sys, kiln; print(*[name for name in sys.modules if name.startswith('kiln.platform.torch_')])"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == []
