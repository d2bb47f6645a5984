"""What came out for a pair: kept as JSON, read from pytest's report."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .pairs import Pair

# How it can go with a pair, from bad to good.
STATES = ("not available", "not built", "timed out", "broken off", "failed", "passed")


@dataclass
class Result:
    """A pair's row. ``reason`` says why there are no tests, or not all."""

    pair: Pair
    state: str
    reason: str = ""
    python: str = ""
    torch: str = ""
    built: bool = False
    build_seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    tests: str = "all"
    date: str = ""
    commit: str = ""
    failing: list[str] = field(default_factory=list)
    skips: dict[str, list[str]] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**asdict(self), "pair": list(self.pair)}, indent=1)
        (folder / f"{self.pair.name}.json").write_text(text + "\n")


def load(folder: Path) -> list[Result]:
    """The results in a folder, in the order of their pairs."""
    found = []
    for path in folder.glob("*.json"):
        facts = json.loads(path.read_text())
        found.append(Result(**{**facts, "pair": Pair(*facts["pair"])}))
    return sorted(found, key=lambda result: result.pair.order)


def node_name(case: ElementTree.Element) -> str:
    """A test as pytest takes it on its command line. A file that could not be collected has no class and no file."""
    name, place, inside = case.get("name", ""), case.get("file", ""), case.get("classname", "")
    if not place:
        return f"{inside}.{name}" if inside else name
    classes = inside.removeprefix(place.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join([place, *(classes.split(".") if classes else []), name])


def read_report(path: Path, result: Result) -> None:
    """Fill in numbers and names from pytest's report (junit, of the family xunit1, which has files).

    A test that fails and whose teardown fails as well counts once; expected failures count as passed.
    """
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = node_name(case)
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcomes[name] = "failed"
        elif outcomes.get(name) == "failed":
            continue
        elif skip is not None and skip.get("type") != "pytest.xfail":
            outcomes[name] = "skipped"
            result.skips.setdefault(" ".join(skip.get("message", "").split()), []).append(name)
        else:
            outcomes[name] = "passed"
    counts = Counter(outcomes.values())
    result.passed, result.failed, result.skipped = counts["passed"], counts["failed"], counts["skipped"]
    result.failing = [name for name, outcome in outcomes.items() if outcome == "failed"]


def state_after_tests(result: Result, status: int, timed_out: bool) -> str:
    """The state of a pair whose tests were run, by pytest's exit status."""
    if timed_out:
        return "timed out"
    if result.failed or status == 1:
        return "failed"
    return "passed" if status == 0 and result.passed else "broken off"
