"""Writes the index of Kiln's modules, docs/modules.md: ``make docs-index``, or ``python3 tests/module_index.py``.

The index has each package, and each of its modules with the first sentence of its docstring; of C++ files, that of the
comment they begin with. It reads the source text, so it needs neither torch nor the environment.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "modules.md"
ENDINGS = (".py", ".cpp", ".h")

HEAD = """# Modules

Written by `make docs-index` from the docstrings; a test checks that it is up to date.
[architecture.md](architecture.md) says how the packages work together, [glossary.md](glossary.md) what the terms mean.
"""


def docstring(path: Path) -> str:
    """The docstring of a module, or the comment that a C++ file begins with."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    comment = re.match(r"(?:#pragma once\n+)?((?://.*\n)+)", text)
    return re.sub(r"^// ?", "", comment[1], flags=re.MULTILINE) if comment else ""


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line; a table's bars are escaped."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence = re.match(r".*?[.?](?=\s|$)", paragraph)
    return (sentence[0] if sentence else paragraph).replace("|", "\\|")


def packages() -> dict[Path, list[Path]]:
    """The modules of each package, without its ``__init__``; paths are relative to the repository."""
    found: dict[Path, list[Path]] = {}
    for path in sorted((ROOT / "kiln").rglob("*")):
        if path.suffix in ENDINGS and "__pycache__" not in path.parts:
            modules = found.setdefault(path.parent.relative_to(ROOT), [])
            if path.name != "__init__.py":
                modules.append(path.relative_to(ROOT))
    return dict(sorted(found.items()))


def index() -> str:
    """The text of the page."""
    parts = [HEAD]
    for package, modules in packages().items():
        parts.append(f"## {package}\n")
        initial = ROOT / package / "__init__.py"
        if initial.exists() and (sentence := first_sentence(docstring(initial))):
            parts.append(f"{sentence}\n")
        if modules:
            rows = [f"| [{path.name}](../{path}) | {first_sentence(docstring(ROOT / path))} |" for path in modules]
            parts.append("\n".join(["| module | |", "| --- | --- |", *rows, ""]))
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != index())
    PAGE.write_text(index(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
