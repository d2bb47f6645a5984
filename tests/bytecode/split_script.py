"""Breaks the functions of the corpus, and of the standard library, and compares with the unbroken ones.

Usage: python -m tests.bytecode.split_script EVERY_NTH_INDEX SEEDS
"""

import json
import sys
import types

from tests.bytecode import breaking, corpus, library_programs
from tests.bytecode.standalone import bytecode

EVERY, SEEDS = int(sys.argv[1]), int(sys.argv[2])
counts = {"single": 0, "stepped": 0, "nested": 0, "library functions": 0, "library breaks": 0}
failures = []


def compare(function, expected, replacement, what):
    leaked = sys.exception()
    got = breaking.outcome(replacement)
    if got != expected:
        failures.append([function.__name__, what, str(expected)[:300], str(got)[:300]])
    if sys.exception() is not leaked:
        failures.append([function.__name__, what, "an exception is still being handled", repr(sys.exception())])


def break_everywhere(function, expected, number):
    for index in breaking.breakable(function.__code__)[number % EVERY :: EVERY]:
        compare(function, expected, breaking.broken(function, [index]), f"broken at {index}")
        counts["single"] += 1


def step(function, expected):
    """Run all of it (or the beginning, if it is long) one instruction at a time."""
    compare(function, expected, breaking.broken(function, (), breaking.Stepper(10 + 50 // EVERY)), "stepped")
    counts["stepped"] += 1


def break_at_random(function, expected):
    for seed in range(SEEDS):
        nested = breaking.Breaker(f"{function.__name__} {seed}", 1 + seed % 3, 1 + seed % 4)
        compare(function, expected, nested(function, None), f"nested, seed {seed}")
        counts["nested"] += 1


LOOKS_AT_FRAME = {
    "locals",
    "vars",
    "dir",
    "eval",
    "exec",
    "_getframe",
    "_getframemodulename",
    "currentframe",
    "stacklevel",
}


def can_break(code):
    generator = code.co_flags & bytecode.split_plan.UNSUPPORTED_FLAGS
    return not generator and not LOOKS_AT_FRAME & set(code.co_names) and len(code.co_code) < 6000


def break_library(seed):
    """Replace the code of library functions by code broken at random places, run programs, compare."""
    expected = library_programs.run_all()
    runners = []
    originals = {f: f.__code__ for f in library_programs.functions() if can_break(f.__code__)}
    for function, code in originals.items():
        breaker = breaking.Breaker(f"{function.__qualname__} {seed}", min(2, SEEDS), 2)
        twin = types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
        runners.append(breaker(twin, None).runner)
        function.__code__ = breaking.trampoline(code, runners[-1])
    try:
        results = library_programs.run_all()
    finally:
        for function, code in originals.items():
            function.__code__ = code
    called = [runner for runner in runners if runner.skeleton is not None]
    counts["library functions"] += len(called)
    counts["library breaks"] += sum(1 + len(runner.also) for runner in called)
    for name in expected:
        if expected[name] != results[name]:
            failures.append([name, f"library, seed {seed}", expected[name][:300], results[name][:300]])


def main():
    for number, function in enumerate(corpus.FUNCTIONS):
        expected = breaking.outcome(function)
        break_everywhere(function, expected, number)
        step(function, expected)
        break_at_random(function, expected)
    for seed in range(max(1, SEEDS // 4)):
        break_library(seed)
    print(
        json.dumps(
            {"counts": counts, "functions": len(corpus.FUNCTIONS), "failures": failures[:10], "failed": len(failures)}
        )
    )


main()
