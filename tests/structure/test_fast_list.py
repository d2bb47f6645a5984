"""The list of `make check-fast`, tests/fast.txt: its files and folders exist, and every folder of tests is in it."""

from __future__ import annotations

from pathlib import Path

from tests.structure.imports import ROOT

FAST = ROOT / "tests" / "fast.txt"


def listed() -> list[Path]:
    lines = [line.partition("#")[0].strip() for line in FAST.read_text().splitlines()]
    return [ROOT / line.partition("::")[0] for line in lines if line]


def test_files_exist() -> None:
    assert [str(path) for path in listed() if not path.exists()] == []


def test_every_folder_has_a_file() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    present = {path if path.is_dir() else path.parent for path in listed()}
    assert sorted(str(folder.relative_to(ROOT)) for folder in folders - present) == []
