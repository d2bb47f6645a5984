"""The list of `make check-fast`, tests/fast.txt: its files exist, and every folder of tests has one in it."""

from __future__ import annotations

from pathlib import Path

from tests.structure.imports import ROOT

FAST = ROOT / "tests" / "fast.txt"


def listed() -> list[Path]:
    lines = [line.partition("#")[0].strip() for line in FAST.read_text().splitlines()]
    return [ROOT / line for line in lines if line]


def test_files_exist_and_are_named_once() -> None:
    paths = listed()
    assert [str(path) for path in paths if not path.exists()] == []
    assert len(set(paths)) == len(paths)


def test_every_folder_has_a_file() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert sorted(str(folder.relative_to(ROOT)) for folder in folders - {path.parent for path in listed()}) == []
