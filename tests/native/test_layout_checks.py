"""What kiln/native/platform assumes of CPython and torch is checked: wrong expectations are planted and found."""

from __future__ import annotations

import mmap
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from tests.structure.imports import ROOT

NATIVE = ROOT / "kiln" / "native"
COMPILER = shutil.which("g++") or shutil.which("c++")

MODULE = """
#include <Python.h>
#include "native.h"
{planted}
#include "platform/python.h"
static PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "probe", nullptr, -1, nullptr}};
PyMODINIT_FUNC PyInit_probe() {{
  return kiln::platform::check_python() < 0 ? nullptr : PyModule_Create(&definition);
}}
"""
# Fields that python.h takes for others than they are, and what the check says of it.
WRONG_FIELDS = {
    "the version of a class": (
        "#define tp_version_tag tp_flags",
        "the version of a class stays the same when it changes",
    ),
}
STATES = "the state of a dictionary stays the same when it changes"
if sys.version_info < (3, 13):
    WRONG_FIELDS["the version of a dictionary"] = ("#define ma_version_tag ob_base.ob_refcnt", STATES)
else:
    WRONG_FIELDS["the watch of a dictionary"] = ("#define PyDict_Watch(watcher, dictionary) 0", STATES)


def import_probe(folder: Path, planted: str) -> subprocess.CompletedProcess[str]:
    """Import a module in a fresh process that checks Python as kiln._native does."""
    source = folder / "probe.cpp"
    source.write_text(MODULE.format(planted=planted))
    includes = [f"-I{sysconfig.get_path('include')}", f"-I{NATIVE}"]
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", "-fpermissive", "-w"]
    command = [str(COMPILER), *flags, *includes, str(source), "-o", str(folder / "probe.so")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return subprocess.run(
        [sys.executable, "-c", "import probe"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(folder)},
    )


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_this_python_is_as_expected(tmp_path: Path) -> None:
    done = import_probe(tmp_path, "")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(("planted", "said"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_a_wrong_field_is_an_import_error(tmp_path: Path, planted: str, said: str) -> None:
    done = import_probe(tmp_path, planted)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: kiln._native does not know this Python") and said in last


# ---- mangled names ---------------------------------------------------------------------------------------------------


def is_in_torch(name: str) -> bool:
    """Whether one of torch's libraries has this text."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch*.so")):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            if text.find(name.encode()) >= 0:
                return True
    return False


MANGLED = sorted(set(re.findall(r'"(N5torch\w+)"', (NATIVE / "platform" / "type_names.h").read_text())))


def test_there_are_mangled_names() -> None:
    assert len(MANGLED) >= 12


@pytest.mark.parametrize("name", MANGLED)
def test_mangled_names_are_torchs(name: str) -> None:
    assert is_in_torch(name)


def test_a_wrong_mangled_name_is_found() -> None:
    assert not is_in_torch("N5torch8autograd14AccumulateGrudE")
