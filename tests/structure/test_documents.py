"""Pages of the documentation name only files that exist."""

from __future__ import annotations

import re

import pytest
from imports import ROOT

PAGES = (
    "aot.md",
    "architecture.md",
    "bytecode.md",
    "capture.md",
    "compat.md",
    "codegen.md",
    "engine.md",
    "lower.md",
    "native.md",
    "target.md",
)
FILE = re.compile(r"`((?:[\w*]+/)*[\w*]+\.(?:py|cpp|h))(?::[^`]*)?`|`((?:\w+/)+)`")


def is_there(name: str) -> bool:
    """Whether a file or folder of this name is in the repository; a page may leave out the leading folders."""
    return any(ROOT.glob(name)) or any((ROOT / "kiln").glob(f"**/{name}"))


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page: str) -> None:
    named = {one or two for one, two in FILE.findall((ROOT / "docs" / page).read_text())}
    assert named and [name for name in sorted(named) if not is_there(name)] == []


def test_a_file_that_is_gone_is_noticed() -> None:
    assert is_there("lower/schedule/fusion.py") and is_there("native/program/*.cpp") and is_there("tests/structure")
    assert not is_there("lower/fusion.py")
