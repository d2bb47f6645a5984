"""Pages, comments and docstrings name only files and modules that exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.imports import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]
)
SOURCES = sorted(
    str(path.relative_to(ROOT)) for ending in ("py", "cpp", "h") for path in (ROOT / "kiln").rglob(f"*.{ending}")
)

# In pages a file or folder stands in backticks; a name may follow it: `frame.py:RootFrame`.
IN_PAGES = re.compile(r"`((?:[\w*.]+/)*[\w*]+\.(?:py|cpp|h|md|txt)(?::\w[\w.]*)?)`|`((?:\w+/)+)`")
# A table says where a class is: `Guard`, `GuardSet` (`guards/guards.py`).
CLASSES = re.compile(r"((?:`\w+`(?:, )?)+) \(`((?:\w+/)*\w+\.py)`\)")
LINKS = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
# In comments it stands anywhere.
IN_COMMENTS = re.compile(r"(?<![\w/.<-])((?:[\w*]+/)*[\w*]+\.(?:py|cpp|md))\b")
MODULES = re.compile(r"(?<![\w/.])kiln(?:\.\w+)+")

# Files that are the user's, torch's or Python's, or that are written by a program.
NOT_OURS = {
    *"script.py test_file.py program.py file.py f.py sitecustomize.py".split(),
    *"conftest.py repro.py".split(),
}


def is_there(name: str) -> bool:
    """Whether a file or folder of this name is in the repository; a page may leave out the leading folders.

    Of `file.py:Class.method`, each word after the colon must be in the file."""
    name, _, inside = name.partition(":")
    if name in NOT_OURS:
        return True
    found = [path for folder, pattern in PLACES for path in (ROOT / folder).glob(f"{pattern}{name}")]
    return any(not inside or has_words(path, inside.split(".")) for path in found)


def has_words(path: Path, words: list[str]) -> bool:
    text = path.read_text(encoding="utf-8")
    return all(word.isdigit() or re.search(rf"\b{word}\b", text) for word in words)


PLACES = [("", ""), ("kiln", "**/"), ("tests", "**/"), ("benchmarks", ""), ("docs", "")]


def defines(name: str) -> bool:
    """Whether a dotted name, `kiln.package.module.attribute`, begins with a module that has what comes next."""
    first, *rest = name.split(".")
    path = ROOT / first
    for number, part in enumerate(rest):
        if (path / part).is_dir() or (path / f"{part}.py").exists():
            path = path / part
            continue
        text = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return part.startswith("_native") or bool(re.search(rf"\b{part}\b", text.read_text())) or number < 0
    return True


def comments(path: Path) -> Iterator[str]:
    """The comments and docstrings of a source file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from re.findall(r"//.*", text)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def missing_in_page(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {one or two for one, two in IN_PAGES.findall(text)}
    named |= {f"{file}:{name}" for names, file in CLASSES.findall(text) for name in re.findall(r"\w+", names)}
    linked = {name for name in LINKS.findall(text) if not ((ROOT / page).parent / name).exists()}
    modules = {name for name in MODULES.findall(text) if not defines(name)}
    return sorted({name for name in named if not is_there(name)} | linked | modules)


def missing_in_source(source: str) -> list[str]:
    found = set()
    for text in comments(ROOT / source):
        found |= {name for name in IN_COMMENTS.findall(text) if not is_there(name)}
        found |= {name for name in MODULES.findall(text) if not defines(name)}
    return sorted(found)


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page: str) -> None:
    assert missing_in_page(page) == []


def test_files_named_in_comments_exist() -> None:
    missing = {source: names for source in SOURCES if (names := missing_in_source(source))}
    assert missing == {}


def test_each_package_has_a_page_with_its_invariants() -> None:
    pages: dict[str, list[str]] = {}
    for row in re.findall(r"^\| `.*", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE):
        for package in re.findall(r"`(\w+)/`", row.split("|")[1]):
            pages[package] = LINKS.findall(row)
    packages = {path.name for path in (ROOT / "kiln").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages - {package for package, found in pages.items() if found} == set()
    for found in pages.values():
        texts = [(ROOT / "docs" / page).read_text() for page in found]
        assert any(re.search(r"(?m)^#+ (Invariants|Rules)|^Rules:|must stay true", text) for text in texts), found


def test_a_file_that_is_gone_is_noticed() -> None:
    assert is_there("lower/schedule/fusion.py") and is_there("native/program/*.cpp") and is_there("tests/structure")
    assert not is_there("lower/fusion.py")
    assert is_there("lower/schedule/fusion.py:Fuser.join") and not is_there("lower/schedule/fusion.py:Fuser.no_such")
    assert defines("kiln.testing.check") and not defines("kiln.testing.no_such_name")
    assert IN_COMMENTS.findall("see routing.py, or native/walk/order.cpp.") == ["routing.py", "native/walk/order.cpp"]
