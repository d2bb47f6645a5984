"""Which behaviours of the five seed documents have a test of ours: ``make coverage-of-seeds``.

``tests/seeds`` has the names of the tests in each document, and nothing else of them. A test of ours says what it
covers: ``@pytest.mark.covers("test_modules::test_lazy_module1")``. This script collects the tests as pytest does, so
that marks given to parameters count too, prints what is covered and what is missing, and writes the table into
``docs/seed-coverage.md``. Everything in that page outside the two marker lines is written by hand and kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "seed-coverage.md"
BEGIN, END = "<!-- the table: begin (written by make coverage-of-seeds) -->", "<!-- the table: end -->"

# document -> test of the document -> tests of ours
Coverage = dict[str, dict[str, list[str]]]


def document_names() -> dict[str, list[str]]:
    """The names of the tests in each seed document, in its order."""
    return {path.stem: path.read_text().split() for path in sorted((TESTS / "seeds").glob("*.txt"))}


def unknown(names: Iterable[str], documents: dict[str, list[str]]) -> list[str]:
    """Those of `names` ("document::test") that no document has."""
    known = {f"{document}::{test}" for document, tests in documents.items() for test in tests}
    return sorted({name for name in names if name not in known})


def covered_by(items: Iterable[pytest.Item]) -> Iterator[tuple[str, str]]:
    """Each name in a `covers` mark, with the id of the test that has it."""
    for item in items:
        for mark in item.iter_markers("covers"):
            for name in mark.args:
                yield name, item.nodeid


def coverage(pairs: Iterable[tuple[str, str]], documents: dict[str, list[str]]) -> Coverage:
    """Our tests by document and name; tests in the order in which pytest collects them."""
    found: Coverage = {document: {test: [] for test in tests} for document, tests in documents.items()}
    for name, test in pairs:
        document, _, behaviour = name.partition("::")
        found[document][behaviour].append(test)
    return found


def summary(found: Coverage) -> str:
    """Covered out of all for each document, and what is missing."""
    lines = []
    for document, tests in found.items():
        missing = [test for test, ours in tests.items() if not ours]
        lines.append(f"{document}: {len(tests) - len(missing)} of {len(tests)} covered")
        lines += [f"    missing: {test}" for test in missing]
    return "\n".join(lines)


def table(found: Coverage) -> str:
    """The generated part of the page."""
    parts = []
    for document, tests in found.items():
        covered = sum(bool(ours) for ours in tests.values())
        parts += [f"## {document}: {covered} of {len(tests)}", "", "| behaviour | our tests |", "| --- | --- |"]
        parts += [f"| `{test}` | {_cell(ours)} |" for test, ours in tests.items()]
        parts.append("")
    return "\n".join(parts)


def _cell(ours: list[str]) -> str:
    """Tests of one function, which differ in their parameters only, are named once: the page must stay readable."""
    functions = dict.fromkeys(test.partition("[")[0].removeprefix("tests/") for test in ours)
    shown = []
    for function in functions:
        variants = [test for test in ours if test.partition("[")[0].removeprefix("tests/") == function]
        parameters = f"[{variants[0].partition('[')[2]}" if len(variants) == 1 and "[" in variants[0] else ""
        shown.append(f"`{function}{parameters}`")
    return ", ".join(shown).replace("|", "\\|")


def with_table(page: str, text: str) -> str:
    """The page with its generated part replaced."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{text}\n{END}{tail or chr(10)}"


class _Collected:
    """A pytest plugin that keeps what was collected."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.pairs = list(covered_by(session.items))


def collect() -> list[tuple[str, str]]:
    """Every (name, test of ours) in the test-suite."""
    plugin, output = _Collected(), io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main(
            ["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(TESTS.parent), str(TESTS)], [plugin]
        )
    if status != pytest.ExitCode.OK:
        sys.exit(f"{output.getvalue()}\nThe tests could not be collected.")
    return plugin.pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    arguments = parser.parse_args()
    documents = document_names()
    pairs = collect()
    wrong = unknown((name for name, _ in pairs), documents)
    if wrong:
        print("No document has these names:", *wrong, sep="\n    ")
        return 1
    found = coverage(pairs, documents)
    print(summary(found))
    page = with_table(PAGE.read_text(), table(found))
    if arguments.check:
        if page != PAGE.read_text():
            print(f"{PAGE.relative_to(TESTS.parent)} is not up to date: make coverage-of-seeds")
            return 1
    else:
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
