"""What is checked in wheels, and the metadata that setup.py makes, without building the module."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tools.environments import ROOT
from tools.processes import Failed
from tools.wheel_check import (
    content_problems,
    expected_files,
    library_problems,
    metadata_problems,
    needed_libraries,
    newest_versions,
)
from tools.wheel_trial import fifteen_lines, in_eager

OWN = {"kiln/__init__.py", "kiln/__main__.py", "kiln/_native.pyi", "kiln/py.typed"}
INFO = "kiln_torch-0.1.0+torch2.13.dist-info"
ABOUT = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
MODULE = "kiln/_native.cpython-312-x86_64-linux-gnu.so"
GOOD = OWN | ABOUT | {MODULE}


def test_a_complete_wheel_is_accepted() -> None:
    assert content_problems(GOOD, OWN) == []
    assert content_problems(GOOD | {MODULE.replace(".so", ".json")}, OWN) == []


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (GOOD - {"kiln/py.typed"}, "kiln/py.typed is missing"),
        (GOOD - {"kiln/__init__.py"}, "kiln/__init__.py is missing"),
        (GOOD | {"kiln/native/module.cpp"}, "kiln/native/module.cpp does not belong into it"),
        (GOOD | {"tests/test_api.py"}, "tests/test_api.py does not belong into it"),
        (GOOD | {"kiln/platform/generate.py"}, "kiln/platform/generate.py does not belong into it"),
        (GOOD - {MODULE}, "it has 0 native modules"),
        (GOOD | {MODULE.replace("312", "313")}, "it has 2 native modules"),
        (GOOD - {f"{INFO}/licenses/LICENSE"}, "licenses/LICENSE is missing"),
    ],
)
def test_a_wrong_file_is_found(names: set[str], problem: str) -> None:
    assert content_problems(names, OWN) == [problem]


def test_the_package_is_expected_without_its_sources() -> None:
    expected = expected_files(ROOT)
    assert expected >= OWN and "kiln/capture/entry/dispatch.py" in expected
    assert not any("native/" in name or name.endswith((".cpp", ".h", ".so")) for name in expected)


DYNAMIC = """
 0x0000000000000001 (NEEDED)             Shared library: [libtorch_python.so]
 0x0000000000000001 (NEEDED)             Shared library: [libc10.so]
 0x0000000000000001 (NEEDED)             Shared library: [libstdc++.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [ld-linux-x86-64.so.2]
"""
ELSEWHERE = """
 0x0000000000000001 (NEEDED)             Shared library: [libpython3.12.so.1.0]
 0x000000000000001d (RUNPATH)            Library runpath: [/home/me/torch/lib]
"""


def test_libraries_of_other_machines_are_found() -> None:
    assert needed_libraries(DYNAMIC) == ["libtorch_python.so", "libc10.so", "libstdc++.so.6", "ld-linux-x86-64.so.2"]
    assert library_problems(DYNAMIC) == []
    assert library_problems(DYNAMIC + ELSEWHERE) == [
        "the module needs libpython3.12.so.1.0",
        "the module has a search path: /home/me/torch/lib",
    ]


def test_versions_are_compared_as_numbers() -> None:
    text = (
        "Name: GLIBC_2.9  Flags: none\nName: GLIBC_2.34\nName: GLIBCXX_3.4.30\nName: GLIBCXX_3.4.9\nName: GLIBC_2.2.5"
    )
    assert newest_versions(text) == {"GLIBC": "2.34", "GLIBCXX": "3.4.30"}


# ---- setup.py --------------------------------------------------------------------------------------------------------

COPIED = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "kiln")
HOOK = "import sys; from setuptools import build_meta; build_meta.{}(sys.argv[1])"
NO_TORCH = "import sys; sys.modules['torch'] = None\n"
# A torch that is there in name alone: metadata need nothing else of it.
STAND_IN = """
import sys, types, setuptools
from setuptools.command.build_ext import build_ext
torch, utils, cpp = (types.ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.cpp_extension"))
torch.__version__, torch.__file__ = "2.99.1+cpu", {file!r}
cpp.BuildExtension, cpp.CppExtension = build_ext, setuptools.Extension
sys.modules.update({{"torch": torch, "torch.utils": utils, "torch.utils.cpp_extension": cpp}})
"""


def hook(tree: Path, name: str, before: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a hook of the build backend, with output in the folder "out"."""
    (tree / "out").mkdir(exist_ok=True)
    command = [sys.executable, "-c", before + HOOK.format(name), str(tree / "out")]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What setup.py sees, without what was built."""
    for name in COPIED:
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_sources_are_packed_without_torch_and_for_all_releases(tree: Path) -> None:
    done = hook(tree, "build_sdist", NO_TORCH)
    assert done.returncode == 0, done.stderr
    (archive,) = (tree / "out").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        (about,) = (name for name in opened.getnames() if name.count("/") == 1 and name.endswith("/PKG-INFO"))
        file = opened.extractfile(about)
        assert file is not None
        metadata = email.message_from_bytes(file.read())
    assert archive.name == f"kiln_torch-{metadata['Version']}.tar.gz"
    assert "torch<2.16,>=2.11" in metadata.get_all("Requires-Dist", [])
    assert "requires-dist" in metadata.get_all("Dynamic", [])
    sources = {
        path.relative_to(ROOT).as_posix() for end in ("cpp", "h", "py") for path in (ROOT / "kiln").rglob(f"*.{end}")
    }
    assert sources <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "kiln/py.typed"} <= names
    assert not [name for name in names if name.startswith(("tests", "build", "docs", "tools")) or name.endswith(".so")]


def test_a_build_without_torch_says_what_to_do(tree: Path) -> None:
    done = hook(tree, "prepare_metadata_for_build_wheel", NO_TORCH)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "pip install --no-build-isolation" in done.stderr


@pytest.mark.parametrize("named", [False, True], ids=["plain", "named"])
def test_what_is_built_is_tied_to_its_torch(tree: Path, named: bool) -> None:
    include = tree / "torch" / "include" / "torch" / "csrc" / "autograd" / "generated"
    include.mkdir(parents=True)
    (include / "Functions.h").write_text("")
    before = STAND_IN.format(file=str(tree / "torch" / "__init__.py"))
    variables = {"KILN_TORCH_IN_VERSION": "1"} if named else {}
    done = hook(tree, "prepare_metadata_for_build_wheel", before, **variables)
    assert done.returncode == 0, done.stderr
    (path,) = (tree / "out").glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text(encoding="utf-8"))
    problems = metadata_problems(metadata, "2.99")
    expected = [] if named else [f"the version {metadata['Version']} does not name torch 2.99"]
    assert problems == expected
    assert metadata_problems(metadata, "2.13") != problems


# ---- the README's program --------------------------------------------------------------------------------------------


def test_the_program_of_the_readme_is_found() -> None:
    program = fifteen_lines((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "@kiln.compile" in program and re.search(r"^print\(kiln\.explain", program, re.MULTILINE)
    eager = in_eager(program)
    assert "kiln" not in eager and "print(step" in eager
    compile(eager, "README.md", "exec")
    with pytest.raises(Failed, match="Fifteen lines"):
        fifteen_lines("# Kiln\n")
