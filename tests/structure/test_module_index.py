"""The index of modules, docs/modules.md, is up to date, and has a sentence for each module."""

from __future__ import annotations

from tests.module_index import PAGE, ROOT, docstring, first_sentence, index, packages


def test_the_index_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == index(), "run: make docs-index (or: python3 tests/module_index.py)"


def test_each_module_says_what_it_is() -> None:
    silent = [str(path) for modules in packages().values() for path in modules if not docstring(ROOT / path)]
    assert silent == []


def test_first_sentence() -> None:
    assert first_sentence("One thing: a | b, as ``x.y``.\nMore.\n\nEven more.") == "One thing: a \\| b, as ``x.y``."
    assert first_sentence("No full stop\nat all\n\nMore.") == "No full stop at all"
