"""`make matrix`: builds Kiln and runs its tests with several pairs of Python and torch, and prints a table.

    python -m tools.matrix [--pairs 3.12:2.15 …] [--tests tests/native …] [--page]

Everything is kept under .matrix/: for each pair an environment, a checkout of the commit and logs, and the results as
JSON in .matrix/results. docs/platforms.md says how to use it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console

from . import results as reports
from .environments import MATRIX, ROOT, Environment, checkout, find_uv, git, pair_environment
from .interpreters import Interpreter, NoInterpreter, find, given_interpreters
from .page import Page, duration, print_table
from .pairs import SHOWN, Pair, parse
from .processes import Failed, must, run
from .results import Result

PAGE = ROOT / "docs" / "platforms.md"
IMPORT = "import kiln, torch; print(kiln.__file__, torch.__version__)"


def build(environment: Environment, tree: Path, commit: str, *, fresh: bool) -> float:
    """Build Kiln in a checkout and install it from there; the seconds that it took, now or when it was built."""
    mark = environment.folder.parent / "built.json"
    wanted = {"commit": commit, **environment.versions()}
    known = json.loads(mark.read_text()) if mark.exists() else {}
    if not fresh and {**known, "seconds": 0} == {**wanted, "seconds": 0} and environment.works():
        return float(known["seconds"])
    mark.unlink(missing_ok=True)
    began = datetime.datetime.now()
    environment.install("kiln", "--no-build-isolation", "--force-reinstall", "--no-deps", "--editable", str(tree))
    seconds = (datetime.datetime.now() - began).total_seconds()
    # The dependencies come from the metadata that the build has made.
    environment.install("dependencies", "--no-build-isolation", "--editable", str(tree))
    log = environment.logs / "import.log"
    must(run([environment.python, "-c", IMPORT], log, folder=tree, environment=environment.variables()), "import kiln")
    mark.write_text(json.dumps({**wanted, "seconds": seconds}))
    return seconds


def run_tests(environment: Environment, tree: Path, result: Result, asked: argparse.Namespace) -> None:
    """Run the tests of a checkout and write into the result what came out."""
    report = environment.logs / "junit.xml"
    report.unlink(missing_ok=True)
    cache = environment.folder.parent / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    command = [environment.python, "-m", "pytest", "-v", "-n", str(asked.workers), "--timeout", "300"]
    command += [f"--junit-xml={report}", "-o", "junit_family=xunit1", *shlex.split(asked.pytest), *asked.tests]
    variables = {**environment.variables(), "KILN_CACHE_DIR": str(cache)}
    log = environment.logs / "tests.log"
    done = run(command, log, folder=tree, environment=variables, seconds=asked.timeout)
    result.seconds = done.seconds
    if report.exists():
        reports.read_report(report, result)
    result.state = reports.state_after_tests(result, done.status, done.timed_out)
    if result.state == "timed out":
        result.reason = f"after {duration(done.seconds)}"
    elif result.state == "broken off":
        result.reason = f"{done.last_lines(1)}; see {log}"


def run_pair(pair: Pair, interpreter: Interpreter, commit: str, uv: str | None, asked: argparse.Namespace) -> Result:
    """One row of the table."""
    result = Result(pair, "not available", date=datetime.date.today().isoformat(), commit=commit)
    result.tests = " ".join([*asked.tests, *shlex.split(asked.pytest)]) or "all"
    result.python = ".".join(map(str, interpreter.release))
    try:
        environment = pair_environment(pair, interpreter, uv, fresh=asked.fresh)
        versions = environment.versions()
        result.python, result.torch = versions["python"], versions["torch"]
        result.state = "not built"
        tell(pair, f"building with torch {result.torch}")
        tree = environment.folder.parent / "checkout"
        checkout(commit, tree)
        result.build_seconds = build(environment, tree, commit, fresh=asked.fresh)
        result.built = True
        tell(pair, f"built in {duration(result.build_seconds)}, testing")
        run_tests(environment, tree, result, asked)
    except Failed as failed:
        result.reason = str(failed)
    return result


def tell(pair: Pair, what: str) -> None:
    print(f"{pair}: {what}", flush=True)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tools.matrix", description=__doc__.partition("\n")[0] if __doc__ else ""
    )
    shown = " ".join(f"{pair.python}:{pair.torch}" for pair in SHOWN)
    parser.add_argument("--pairs", nargs="+", type=parse, default=list(SHOWN), help=f"pairs to run (default: {shown})")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="an interpreter to use for the pairs of its version; may be repeated",
    )
    parser.add_argument("--uv", metavar="PATH", help="the uv to use (default: that on PATH, else venv and pip)")
    parser.add_argument("--no-uv", action="store_true", help="use venv and pip also where there is uv")
    parser.add_argument("--commit", default="HEAD", help="the commit to test (default: HEAD)")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="tests to run (default: all)")
    parser.add_argument("--pytest", default="", metavar="OPTIONS", help="more options of pytest, in one word")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests (default: 2)")
    parser.add_argument("--timeout", type=float, default=5400, help="seconds for a pair's tests (default: 5400)")
    parser.add_argument("--fresh", action="store_true", help="make environments and builds anew")
    parser.add_argument("--page", action="store_true", help="write the rows into docs/platforms.md")
    parser.add_argument("--results", action="store_true", help="run nothing: show the results in .matrix/results")
    parser.add_argument("--list", action="store_true", help="run nothing: show which interpreter each pair would use")
    return parser.parse_args(words)


def status(results: list[Result]) -> int:
    """0: all passed; 1: something failed; 2: nothing failed, but not every pair was to be had."""
    states = {result.state for result in results}
    if states - {"passed", "not available"}:
        return 1
    return 0 if states == {"passed"} else 2


def list_interpreters(asked: argparse.Namespace, given: list[Interpreter], uv: str | None) -> int:
    print(f"uv: {uv or 'not found, venv and pip are used'}")
    missing = 0
    for pair in asked.pairs:
        try:
            print(f"{pair}: {find(pair.python, given, uv, None).path}")
        except NoInterpreter as reason:
            missing += 1
            print(f"{pair}: {reason}")
    return 2 if missing else 0


def main(words: list[str] | None = None) -> int:
    asked = arguments(words)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # in a file or a pipe
    uv = None if asked.no_uv else find_uv(asked.uv)
    given = given_interpreters(asked.python)
    if asked.list:
        return list_interpreters(asked, given, uv)
    folder = MATRIX / "results"
    if asked.results:
        found = [result for result in reports.load(folder) if result.pair in asked.pairs]
    else:
        found = run_all(asked, given, uv, folder, console)
    print_table(found, console)
    if asked.page:
        write_page(found)
    return status(found)


def run_all(
    asked: argparse.Namespace, given: list[Interpreter], uv: str | None, folder: Path, console: Console
) -> list[Result]:
    """The results of all pairs, one after the other; each is saved at once."""
    commit = git("rev-parse", f"{asked.commit}^{{commit}}")
    if git("status", "--porcelain", "--untracked-files=no"):
        console.print(f"Changes that are not committed are left out: the matrix runs commit {commit[:10]}.")
    found = []
    for pair in asked.pairs:
        try:
            interpreter = find(pair.python, given, uv, MATRIX / "interpreters")
        except NoInterpreter as missing:
            result = Result(pair, "not available", str(missing), commit=commit)
            result.date = datetime.date.today().isoformat()
        else:
            tell(pair, f"{interpreter.path}; logs in {MATRIX / pair.name / 'logs'}")
            result = run_pair(pair, interpreter, commit, uv, asked)
        told = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped" if result.built else ""
        tell(pair, ": ".join(text for text in (result.state, result.reason or told) if text))
        result.save(folder)
        found.append(result)
    return found


def write_page(found: list[Result]) -> None:
    page = Page(PAGE.read_text(encoding="utf-8"))
    for result in found:
        page.add(result)
    PAGE.write_text(page.text(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
