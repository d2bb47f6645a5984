"""500 generated programs must do under Kiln what they do in plain Python; the generator itself is tested too.

`python tests/fuzz/run.py --examples 10000` is the long run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import random
import warnings

import pytest

from .oracle import failures_in_chunk, reduced, signature_of
from .program import generate
from .reduce import reduce

CHUNKS = 20
EXAMPLES = 500


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_generated_programs(chunk):
    failures = failures_in_chunk(chunk, EXAMPLES // CHUNKS)
    if failures:
        first = reduced(failures[0], seconds=30)
        others = "\n".join(f"also: {failure.message.splitlines()[1]}" for failure in failures[1:])
        mode = f"(break_every={first.break_every!r})"
        pytest.fail(f"{len(failures)} of {EXAMPLES // CHUNKS} {mode}\n{first.source}\n{first.message}\n{others}")


def test_generated_programs_are_valid_and_end():
    ended = 0
    for number in range(200):
        source = generate(random.Random(number).randbytes(600))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            code = compile(source, "<program>", "exec")
        namespace = {"__name__": "program"}
        exec(code, namespace)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            for arguments in namespace["make_calls"]():
                namespace["main"](*arguments)
            ended += 1
    assert ended > 100  # most programs return; the others end in an exception of their own


def test_generation_is_deterministic():
    tape = random.Random(5).randbytes(500)
    assert generate(tape) == generate(tape)
    assert "def main" in generate(b"")


def test_generated_programs_cover_the_language():
    wanted = {
        *("If", "For", "While", "Break", "Continue", "Try", "Raise", "With", "Match", "Lambda", "Nonlocal", "Global"),
        *("ListComp", "DictComp", "SetComp", "GeneratorExp", "Yield", "YieldFrom", "JoinedStr", "Starred", "NamedExpr"),
        *("Slice", "Delete", "AugAssign", "Assert", "IfExp", "BoolOp", "Compare", "keyword"),
    }
    seen = set()
    for number in range(300):
        tree = ast.parse(generate(random.Random(number).randbytes(600)))
        main = next(node for node in tree.body if getattr(node, "name", "") == "main")
        seen.update(type(node).__name__ for node in ast.walk(main))
    assert wanted - seen == set()


PROGRAM_WITH_BUG = """
def main():
    a = 1
    if a:
        b = [a, 2]
        for i in b:
            bug(i + 1)
    return a
"""


def test_reduction():
    small = reduce(PROGRAM_WITH_BUG, lambda text: "bug(" in text)
    assert "bug(" in small
    assert len(small.splitlines()) <= 2


def plain(program, **options):
    return program


def forgetful(program, **options):
    """A compiler with a bug: what the program appends to LOG is lost."""

    def run(*args):
        log = program.__globals__["LOG"]
        before = list(log)
        try:
            return program(*args)
        finally:
            log[:] = before

    return run


def test_oracle_finds_nothing_in_plain_python():
    assert failures_in_chunk(7, 40, compile=plain) == []


def test_oracle_finds_a_bug_and_reduces_it():
    failures = failures_in_chunk(7, 40, compile=forgetful)
    assert len(failures) > 5
    failure = next(item for item in failures if "state['LOG']" in item.message)
    small = reduced(failure, seconds=20, compile=forgetful)
    assert len(small.source) < len(failure.source) / 4
    assert "LOG" in small.source


def test_signatures_ignore_values():
    assert signature_of("result['a']: 1 expected, 2 seen") == signature_of("result['b']: 17 expected, 3 seen")
