"""The table of results: for a terminal, and in docs/platforms.md between two markers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table

from .pairs import Pair, parse
from .results import Result

BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
COLUMNS = "Python|torch|state|built|passed|failed|skipped|tests|time|commit|date".split("|")
FAILING, SKIPPED = "Tests that fail:", "Tests that are skipped, and why:"
NAMED = 10  # tests with the same reason that are listed by name
ENTRY = re.compile(r"- (3\.\d+ with \d+\.\d+(?:\.\d+)?): (.*)")


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def cells(result: Result) -> list[str]:
    """A row; what is not known is left empty. Where the logs are matters on the machine alone."""
    ran = result.passed + result.failed + result.skipped > 0
    state = result.state if not result.reason else f"{result.state}: {result.reason.partition('; see ')[0]}"
    return [
        result.python or result.pair.python,
        result.torch or result.pair.torch,
        state,
        duration(result.build_seconds) if result.built else "",
        *([str(result.passed), str(result.failed), str(result.skipped), result.tests] if ran else [""] * 4),
        duration(result.seconds) if ran else "",
        result.commit[:10],
        result.date,
    ]


def print_table(results: Iterable[Result], console: Console) -> None:
    """The rows, and below them why tests were not run and the names of those that fail."""
    table = Table()
    for name in COLUMNS:
        table.add_column(name, no_wrap=name != "tests")
    shown = list(results)
    for result in shown:
        row = cells(result)
        row[2] = result.state
        table.add_row(*row, style=None if result.state == "passed" else "bold")
    console.print(table)
    for result in shown:
        if result.reason:
            told = f"{result.pair}: {result.state}: {result.reason}"
            console.print(told, markup=False, highlight=False, soft_wrap=True)
        for name in result.failing:
            console.print(f"{result.pair}: {name}", markup=False, highlight=False, soft_wrap=True)


def skip_text(reason: str, tests: list[str]) -> str:
    """A reason and its tests: by name where they are few, else by file."""
    functions = list(dict.fromkeys(name.partition("[")[0] for name in tests))
    reason = reason.removeprefix("Skipped: ") or "no reason given"
    if len(functions) <= NAMED:
        return f"{reason}: {', '.join(f'`{name}`' for name in functions)}"
    files = Counter(name.partition("::")[0] for name in tests)
    return f"{reason}: {', '.join(f'{count} of {file}' for file, count in sorted(files.items()))}"


class Page:
    """The part of the page that is written here: rows and lists by pair, of which those of other pairs stay."""

    def __init__(self, text: str) -> None:
        self.before, begin, rest = text.partition(BEGIN)
        inside, end, self.after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"the page has no {BEGIN} … {END}")
        self.rows: dict[Pair, list[str]] = {}
        self.failing: dict[Pair, str] = {}
        self.skipped: dict[Pair, str] = {}
        entries = self.failing
        for line in inside.splitlines():
            if line in (FAILING, SKIPPED):
                entries = self.failing if line == FAILING else self.skipped
            elif found := ENTRY.fullmatch(line):
                entries[parse(found[1])] = found[2]
            elif line.startswith("| 3."):
                row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
                self.rows[row_pair(row)] = row

    def add(self, result: Result) -> None:
        """Put a result in the place of the pair's older one. What was not to be had here may have run elsewhere."""
        pair = row_pair(cells(result))
        if result.state == "not available" and pair in self.rows:
            return
        self.rows[pair] = [cell.replace("|", "\\|") for cell in cells(result)]
        self.failing.pop(pair, None)
        self.skipped.pop(pair, None)
        if result.failing:
            self.failing[pair] = ", ".join(f"`{name}`" for name in result.failing)
        if result.skips:
            self.skipped[pair] = "; ".join(skip_text(*item) for item in sorted(result.skips.items()))

    def text(self) -> str:
        """The page with what was added."""
        lines = [line(COLUMNS), line(["---"] * len(COLUMNS)), *map(line, in_order(self.rows))]
        for head, entries in ((FAILING, self.failing), (SKIPPED, self.skipped)):
            if entries:
                pairs = sorted(entries, key=lambda pair: pair.order)
                lines += ["", head, "", *(f"- {pair}: {entries[pair]}" for pair in pairs)]
        return "\n".join([f"{self.before}{BEGIN}", *lines, f"{END}{self.after}"])


def line(row: list[str]) -> str:
    return f"| {' | '.join(row)} |"


def in_order(rows: dict[Pair, list[str]]) -> list[list[str]]:
    key: Callable[[Pair], tuple[int, ...]] = lambda pair: pair.order  # noqa: E731
    return [rows[pair] for pair in sorted(rows, key=key)]


def row_pair(row: list[str]) -> Pair:
    """The pair of a row with exact versions: releases of Python and of torch, without patches."""
    python, torch = (".".join(cell.split("+")[0].split(".")[:2]) for cell in row[:2])
    return Pair(python, torch)
