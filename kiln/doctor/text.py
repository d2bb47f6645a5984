"""The report as text: with colours on a terminal, plain in a pipe."""

from __future__ import annotations

import textwrap
from typing import Any, TextIO

from .facts import BROKEN, NOTE, OK, Fact, Section, broken

MARKS = {OK: " ", NOTE: "!", BROKEN: "x"}
COLOURS = {OK: "", NOTE: "yellow", BROKEN: "red"}


def show(sections: list[Section], file: TextIO) -> None:
    console = terminal(file)
    for line, style in lines(sections):
        if console is None:
            print(line, file=file)
        else:
            console.print(line, style=style or None, markup=False, highlight=False, soft_wrap=True)


def terminal(file: TextIO) -> Any:
    """A console of rich's for a terminal; None for anything else, or without rich."""
    if not file.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=file)


def lines(sections: list[Section]) -> list[tuple[str, str]]:
    """Each line with its style."""
    found: list[tuple[str, str]] = []
    for section in sections:
        found.append((section.name, "bold"))
        width = max((len(fact.name) for fact in section.facts), default=0)
        for fact in section.facts:
            found += lines_of(fact, width)
        found.append(("", ""))
    wrong = broken(sections)
    if not wrong:
        found.append(("Kiln works here.", "bold green"))
    else:
        names = ", ".join(fact.name for fact in wrong)
        found.append((f"Something is broken: {names}. Lines with x say what, and how to mend it.", "bold red"))
    return found


def lines_of(fact: Fact, width: int) -> list[tuple[str, str]]:
    value = ", ".join(map(str, fact.value)) if isinstance(fact.value, list) else str(fact.value)
    first, *rest = value.splitlines() or [""]
    found = [f"{MARKS[fact.state]} {fact.name:<{width}} {first}"]
    indent = " " * (width + 3)
    found += [textwrap.indent(line, indent) for line in rest]
    if fact.fix:
        first, *rest = fact.fix.splitlines()
        found += [f"{indent}-> {first}", *(textwrap.indent(line, indent + "   ") for line in rest)]
    return [(line, COLOURS[fact.state]) for line in found]
