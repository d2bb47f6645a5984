"""Scenarios of guards: something changes between calls, and a compiled function must notice.

A scenario is a generator that compiles, calls, changes something and calls again. It is run once in plain Python and
once compiled; each result must be the same, and each step must recompile (for the reason given) or not (None).
"""

import functools

import pytest

import kiln
from kiln.report import events
from kiln.testing import CompileCounter, same

BACK = "hit"  # an entry made before fits again
ANY = "any"  # whether this step recompiles is not the point


def plain(function, **options):
    return function


def play(scenario, expected, **options):
    """Run both ways; gives the reasons of the recompiles."""
    eager = scenario(plain)
    steps = scenario(functools.partial(kiln.compile, backend=CompileCounter(), **options))
    seen = []
    for number, wanted in enumerate(eager):
        with events.listen() as heard:
            result = next(steps)
        assert same(wanted, result), f"step {number}: {wanted} expected, {result} seen"
        seen.append([reason for _, reason in heard.recompiles])
        assert not heard.skips, heard.skips
    if expected is None:
        return seen
    assert len(seen) == len(expected), f"{len(seen)} steps"
    for number, (words, reasons) in enumerate(zip(expected, seen, strict=True)):
        if words is None or words == BACK:
            assert reasons == [], f"step {number}: no recompile expected, but {reasons}"
        elif words != ANY:
            assert len(reasons) == 1, f"step {number}: one recompile expected: {reasons}"
            assert words in reasons[0], f"step {number}: {words!r} expected in the reason, {reasons[0]!r} seen"
    return seen


class Scenarios(list):
    """Scenarios of one file, filled by a decorator that says what each step is to do."""

    def __call__(self, *expected, **options):
        def register(scenario):
            self.append(pytest.param(scenario, expected or None, options, id=scenario.__name__))
            return scenario

        return register
