"""The matrix: pairs, commands with a time limit, results, the table and the page. Nothing is installed here."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tools import environments, matrix, results
from tools.interpreters import Interpreter, NoInterpreter
from tools.page import BEGIN, END, Page, duration, print_table, skip_text
from tools.pairs import SHOWN, Pair, parse
from tools.processes import Failed, must, run
from tools.results import Result

# ---- pairs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["3.12:2.15", "py3.12-torch2.15", "3.12 with 2.15", "3.12+2.15"])
def test_a_pair_is_written_in_several_ways(text: str) -> None:
    assert parse(text) == Pair("3.12", "2.15")


@pytest.mark.parametrize("text", ["3.12", "2.15:3.12", "3.12:", "3.12:2", "3.12.1:2.15", "3.12:2.15.0.1"])
def test_what_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 3.12:2.15"):
        parse(text)


def test_pairs_name_releases_and_patches() -> None:
    assert parse("3.12:2.15").requirement == "torch==2.15.*"
    assert parse("3.12:2.14.1").requirement == "torch==2.14.1"
    assert sorted([Pair("3.9", "2.15"), Pair("3.12", "2.9")], key=lambda pair: pair.order)[0].torch == "2.9"
    for pair in SHOWN:
        assert parse(pair.name) == parse(str(pair)) == pair


# ---- commands --------------------------------------------------------------------------------------------------------


def test_a_command_is_interrupted_after_its_time_and_may_still_write(tmp_path: Path) -> None:
    code = """
import time
print("begun", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("written")
"""
    done = run([sys.executable, "-c", code], tmp_path / "logs" / "log", seconds=2)
    assert done.timed_out and done.log.read_text().split() == ["begun", "written"]
    with pytest.raises(Failed, match="the work: no end after"):
        must(done, "the work")


def test_a_command_that_does_not_stop_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.processes.GRACE", 0.2)
    script = "trap '' INT; sleep 60 & echo $!; wait; wait"
    done = run(["sh", "-c", script], tmp_path / "log", seconds=0.5)
    assert done.timed_out and done.status < 0
    child = done.log.read_text().split()[0]
    state = Path("/proc", child, "stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_the_error_of_a_command_is_found_in_its_output(tmp_path: Path) -> None:
    script = "echo building; echo 'x.cpp:3: error: no such thing'; echo 'cause: it is gone'; echo done; exit 3"
    done = run(["sh", "-c", script], tmp_path / "log")
    assert done.status == 3 and not done.timed_out
    with pytest.raises(Failed, match="build: x.cpp:3: error: no such thing / cause: it is gone; see .*log"):
        must(done, "build")
    assert must(run(["echo", "fine"], tmp_path / "log"), "nothing").last_lines() == "fine"
    assert run(["sh", "-c", "echo a; echo b; exit 1"], tmp_path / "log").error() == "b"


# ---- results ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import pytest

class TestClass:
    @pytest.mark.parametrize("value", [1, 2])
    def test_value(self, value):
        assert value == 1

def test_passes(): pass
@pytest.mark.skip(reason="needs a GPU")
def test_skipped(): pass
@pytest.mark.xfail(strict=True)
def test_expected(): assert False
@pytest.fixture
def broken():
    yield
    raise ValueError
def test_teardown(broken): assert False
def test_setup(missing_fixture): pass
"""


def pytest_report(folder: Path, program: str) -> tuple[Path, int]:
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(program)
    options = ["-q", "-p", "no:cacheprovider", "--junit-xml=report.xml", "-o", "junit_family=xunit1", "--rootdir=."]
    command = [sys.executable, "-m", "pytest", *options, "-c", "/dev/null", "tests"]
    return folder / "report.xml", subprocess.run(command, cwd=folder, capture_output=True).returncode


def test_numbers_and_names_are_those_of_pytest(tmp_path: Path) -> None:
    report, status = pytest_report(tmp_path, PROGRAM)
    result = Result(SHOWN[0], "not built")
    results.read_report(report, result)
    assert (result.passed, result.failed, result.skipped) == (3, 3, 1)
    names = ["TestClass::test_value[2]", "test_teardown", "test_setup"]
    assert result.failing == [f"tests/test_it.py::{name}" for name in names]
    assert result.skips == {"needs a GPU": ["tests/test_it.py::test_skipped"]}
    assert results.state_after_tests(result, status, False) == "failed"


def test_a_file_that_cannot_be_collected_fails(tmp_path: Path) -> None:
    report, status = pytest_report(tmp_path, "import no_such_module_anywhere")
    result = Result(SHOWN[0], "not built")
    results.read_report(report, result)
    assert result.failed == 1 and "test_it" in result.failing[0]
    assert results.state_after_tests(result, status, False) != "passed"


def test_states_after_tests() -> None:
    good, bad, none = Result(SHOWN[0], "", passed=3), Result(SHOWN[0], "", passed=3, failed=1), Result(SHOWN[0], "")
    assert results.state_after_tests(good, 0, False) == "passed"
    assert results.state_after_tests(bad, 1, False) == "failed"
    assert results.state_after_tests(good, -9, False) == "broken off"
    assert results.state_after_tests(good, 2, True) == "timed out"
    assert results.state_after_tests(none, 5, False) == "broken off"  # pytest found no tests


def test_results_are_kept(tmp_path: Path) -> None:
    first = Result(parse("3.12:2.15"), "passed", python="3.12.1", built=True, passed=7, skips={"why": ["a"]})
    second = Result(parse("3.11:2.11"), "not available", "no CPython 3.11")
    first.save(tmp_path)
    second.save(tmp_path)
    assert results.load(tmp_path) == [second, first]


# ---- the table and the page ------------------------------------------------------------------------------------------


def passed(text: str, **facts: object) -> Result:
    pair = parse(text)
    known = {"python": f"{pair.python}.1", "torch": f"{pair.torch}.0+cu130", "built": True, "passed": 10}
    known |= {"seconds": 75.0, "build_seconds": 9.4, "commit": "0123456789abcdef", "date": "2026-11-19"}
    return Result(pair, "passed", **{**known, **facts})  # type: ignore[arg-type]


def empty_page() -> Page:
    return Page(f"# Platforms\n\n{BEGIN}\n{END}\n\nafter\n")


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.4, 9.6, 59.7, 3601)] == ["0 s", "10 s", "1 min 00 s", "60 min 01 s"]


def test_the_table_has_reasons_and_names() -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    failing = passed("3.13:2.15", failed=1, failing=["tests/a.py::b[1]"])
    missing = Result(parse("3.14:2.15"), "not available", "no CPython 3.14 [here]")
    print_table([failing, missing], console)
    text = console.export_text()
    assert "3.13.1" in text and "2.15.0+cu130" in text and "0123456789 " in text and "1 min 15 s" in text
    assert "3.13 with 2.15: tests/a.py::b[1]" in text
    assert "3.14 with 2.15: not available: no CPython 3.14 [here]" in text


def test_the_page_keeps_rows_of_other_pairs() -> None:
    page = empty_page()
    page.add(passed("3.13:2.15", failed=2, failing=["tests/a.py::b[x|y]", "tests/a.py::c"]))
    page.add(passed("3.12:2.13", skips={"needs a GPU": ["tests/g.py::h"]}))
    first = page.text()
    assert first.startswith("# Platforms\n\n") and first.endswith("\n\nafter\n")
    assert first.index("| 3.12.1 | 2.13.0+cu130 |") < first.index("| 3.13.1 | 2.15.0+cu130 |")
    again = Page(first)
    assert again.text() == first
    again.add(passed("3.13:2.15", passed=12, commit="fedcba9876543210"))
    second = again.text()
    assert "tests/a.py" not in second and "fedcba9876" in second and "12" in second
    assert [line for line in first.splitlines() if "3.12" in line] == [
        line for line in second.splitlines() if "3.12" in line
    ]


def test_what_is_not_available_here_does_not_replace_a_row() -> None:
    page = empty_page()
    page.add(passed("3.14:2.15"))
    before = page.text()
    page.add(Result(parse("3.14:2.15"), "not available", "no CPython 3.14"))
    assert page.text() == before
    page.add(Result(parse("3.13:2.15"), "not available", "a | b; see /some/log"))
    text = page.text()
    assert "| 3.13 | 2.15 | not available: a \\| b |" in text
    assert Page(text).text() == text


def test_a_page_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="the page has no"):
        Page("# Platforms\n")


def test_few_skipped_tests_are_named_and_many_counted() -> None:
    few = [f"tests/a.py::test_it[{number}]" for number in range(30)]
    assert skip_text("Skipped: needs 3.14", few) == "needs 3.14: `tests/a.py::test_it`"
    many = [f"tests/a.py::test_{number}" for number in range(30)] + ["tests/b.py::test_it"]
    assert skip_text("needs a GPU", many) == "needs a GPU: 30 of tests/a.py, 1 of tests/b.py"


# ---- the command -----------------------------------------------------------------------------------------------------


def no_interpreter(*arguments: object) -> Interpreter:
    raise NoInterpreter("no CPython at all")


def test_a_pair_that_is_not_to_be_had_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(empty_page().text())
    monkeypatch.setattr(matrix, "find", no_interpreter)
    monkeypatch.setattr(matrix, "git", lambda *arguments: "0123456789abcdef" if arguments[0] == "rev-parse" else "")
    monkeypatch.setattr(matrix, "MATRIX", tmp_path)
    monkeypatch.setattr(matrix, "PAGE", page)
    assert matrix.main(["--no-uv", "--pairs", "3.14:2.15", "--page"]) == 2
    assert "3.14 with 2.15: not available: no CPython at all" in capsys.readouterr().out
    assert "| 3.14 | 2.15 | not available: no CPython at all |" in page.read_text()
    (kept,) = results.load(tmp_path / "results")
    assert kept.reason == "no CPython at all" and kept.commit == "0123456789abcdef"
    assert matrix.main(["--no-uv", "--results"]) == 2
    assert "no CPython at all" in capsys.readouterr().out


def test_a_build_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = environments.Environment(tmp_path / "environment", tmp_path / "logs", None)

    def failing(*arguments: object, **options: object) -> float:
        raise Failed("installing kiln: x.cpp:1: error: no")

    monkeypatch.setattr(matrix, "pair_environment", lambda *arguments, **options: environment)
    monkeypatch.setattr(environments.Environment, "versions", lambda self: {"python": "3.12.1", "torch": "2.15.0"})
    monkeypatch.setattr(matrix, "checkout", lambda *arguments: None)
    monkeypatch.setattr(matrix, "build", failing)
    asked = matrix.arguments(["--tests", "tests/native", "--pytest", "-k some"])
    result = matrix.run_pair(parse("3.12:2.15"), Interpreter("/python", (3, 12, 1)), "0123", None, asked)
    assert (result.state, result.built, result.torch) == ("not built", False, "2.15.0")
    assert result.reason == "installing kiln: x.cpp:1: error: no" and result.tests == "tests/native -k some"
    assert matrix.status([result, passed("3.12:2.13")]) == 1
    assert matrix.status([passed("3.12:2.13")]) == 0


def test_a_checkout_follows_commits_and_keeps_what_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tree = tmp_path / "source", tmp_path / "tree"
    source.mkdir()

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        return environments.git(*identity, *arguments, folder=source)

    git("init", "--quiet")
    (source / ".gitignore").write_text("*.so\n")
    commits = []
    for text in ("one", "two"):
        (source / "file").write_text(text)
        git("add", "-A")
        git("commit", "--quiet", "-m", text)
        commits.append(git("rev-parse", "HEAD"))
    monkeypatch.setattr(environments, "ROOT", source)
    environments.checkout(commits[0], tree)
    (tree / "kept.so").touch()
    (tree / "file").write_text("changed")
    (tree / "stray").touch()
    environments.checkout(commits[1], tree)
    assert (tree / "file").read_text() == "two" and (tree / "kept.so").exists() and not (tree / "stray").exists()
    (source / "file").write_text("not committed")
    environments.checkout(commits[0], tree)
    assert (tree / "file").read_text() == "one"
    with pytest.raises(Failed, match="git checkout"):
        environments.checkout("0" * 40, tree)
