"""The tool that says which behaviours of the seed documents have tests."""

from __future__ import annotations

from tests import seed_coverage

DOCUMENTS = {"one": ["test_a", "test_b"], "two": ["test_a"]}


def test_names_of_every_document_are_known():
    names = seed_coverage.document_names()
    assert {document: len(tests) for document, tests in names.items()} == {
        "test_aot_autograd": 31,
        "test_backward_higher_order_ops": 6,
        "test_compiled_autograd": 59,
        "test_hooks": 28,
        "test_modules": 114,
    }
    assert all(len(set(tests)) == len(tests) for tests in names.values())


def test_marks_of_the_tests_in_this_run_are_names_of_documents(request):
    pairs = list(seed_coverage.covered_by(request.session.items))
    assert seed_coverage.unknown((name for name, _ in pairs), seed_coverage.document_names()) == []


def test_unknown_names():
    assert seed_coverage.unknown(["one::test_b", "two::test_b", "test_a"], DOCUMENTS) == ["test_a", "two::test_b"]


def test_what_is_missing_is_printed():
    found = seed_coverage.coverage([("one::test_b", "tests/x.py::test_1[p]")], DOCUMENTS)
    assert seed_coverage.summary(found).splitlines() == [
        "one: 1 of 2 covered",
        "    missing: test_a",
        "two: 0 of 1 covered",
        "    missing: test_a",
    ]


def test_the_table_replaces_only_itself():
    pairs = [("one::test_a", f"tests/x.py::test_1[{name}]") for name in "pq"] + [("two::test_a", "tests/y.py::test[p]")]
    text = seed_coverage.table(seed_coverage.coverage(pairs, DOCUMENTS))
    assert "| `test_a` | `x.py::test_1` |" in text
    assert "| `test_a` | `y.py::test[p]` |" in text
    page = f"by hand\n{seed_coverage.BEGIN}\nold\n{seed_coverage.END}\nby hand too\n"
    written = seed_coverage.with_table(page, text)
    assert written.startswith("by hand\n") and written.endswith("\nby hand too\n") and "old" not in written
    assert seed_coverage.with_table(written, text) == written
