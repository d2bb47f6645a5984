"""Numbers that vary, together with bools, enumerations, instances of classes derived from numbers, and other numbers.

The programs catch what is raised, because an error that leaves a program is raised by eager, which runs it again.
Each expression is tried with some of the operands; with KILN_EVERY_OPERAND=1 with all, which takes a minute.
"""

import bisect
import decimal
import enum
import fractions
import heapq
import itertools
import math
import operator
import os
import sys

import pytest
import torch

import kiln


class Whole(int):
    pass


class Real(float):
    pass


class Reflecting(int):
    """An integer with methods of its own."""

    def __radd__(self, other):
        return ("radd", int(other))

    def __lt__(self, other):
        return int(self) > int(other)

    def __rmul__(self, other):
        return NotImplemented


class Level(enum.IntEnum):
    HIGH = 4


class Flags(enum.IntFlag):
    BOTH = 3


OPERANDS = [
    *(True, False, Whole(4), Whole(-2), Real(2.5), Reflecting(4), Level.HIGH, Flags.BOTH, 4.5, 2j),
    *(fractions.Fraction(1, 2), decimal.Decimal("2.5"), None, "ab", (1, 2)),
]
EXPRESSIONS = """
n + v | v + n | n - v | v - n | n * v | v * n | n / v | v / n | n // v | v // n | n % v | v % n | n ** v
v ** (n % 3) | n & v | v | n | n ^ v | n << v | v >> n | n < v | v < n | n <= v | v >= n | n == v | v != n
n is v | -v + n | ~v & n | max(n, v) | min(v, n) | min(v, n, 2) | max(n, 4.5, v) | sum([n, v]) | sum([v, n], v)
sum([True, n, v]) | pow(n, 2, v) | divmod(n, v) | divmod(v, n) | pow(v, n) | abs(v - n) | round(n / 7, v)
int(v) + n | float(v) * n | complex(n, v) | operator.add(n, v) | operator.mul(v, n) | math.pow(n, v)
math.hypot(n, v) | math.gcd(n, v) | math.copysign(n, v) | math.prod([n, v, 2]) | math.fsum([n, v])
math.isclose(n, v) | list(range(v, n)) | [1, 2, 3, 4, 5, 6][v:n] | (1,) * n * v | v in (n, 4) | n in [v, 5]
(n, v, 1.5).index(v) | [n, v, 5.0].count(5) | {n: 1, v: 2} | sorted([n, v]) | sorted([n, True, 2.0])
(n, v) == (v, n) | (n, v) < (v, n) | [n, v] == [v, 5] | {"a": n} == {"a": v} | f"{n}{v}" | f"{n:>{v}}"
"%s %s" % (n, v) | min([n, v], key=lambda k: -k) | heapq.nsmallest(2, [n, v, 3]) | bisect.bisect([1, 3, 5], n)
any([v - n, n - v]) | list(itertools.accumulate([n, v, True])) | max((n, 1), (v, 2)) | isinstance(n + v, int)
(n + v).bit_length() | not n * v | torch.ones(7)[:v].shape | torch.full((2,), v * n).tolist()
torch.ones(2).mul(n + v).tolist() | torch.ones(n + v).shape
"""
NAMES = {"bisect": bisect, "heapq": heapq, "itertools": itertools, "math": math, "operator": operator, "torch": torch}
PROGRAM = """
def program(x, n, v):
    {change}
    try:
        result = {expression}
    except Exception as error:
        result = type(error), str(error)
    return x + 1, result
"""
CHANGES = {"int": "pass", "float": "n = n + 0.5", "size": "n = x.shape[0]"}


def expressions():
    text = (
        EXPRESSIONS.replace("v | n | n", "v @ n | n").strip().replace("\n", " | ")
    )  # the one with the operator itself
    return [expression.replace("v @ n", "v | n") for expression in text.split(" | ")]


def crashes_python(expression, operand):
    """CPython before 3.13.3 crashes on a decimal that is only the third argument of pow()."""
    broken = (3, 13) <= sys.version_info < (3, 13, 3)
    return broken and expression == "pow(n, 2, v)" and isinstance(operand, decimal.Decimal)


STEP = 1 if os.environ.get("KILN_EVERY_OPERAND") else 4


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize(("place", "expression"), list(enumerate(expressions())), ids=expressions())
def test_operand_of_a_number_that_varies(place, expression, kind):
    names = dict(NAMES)
    exec(PROGRAM.format(change=CHANGES[kind], expression=expression), names)
    program = names["program"]
    for operand in OPERANDS[(place + list(CHANGES).index(kind)) % STEP :: STEP]:
        if crashes_python(expression, operand):
            continue
        kiln.reset()
        compiled = kiln.compile(program, backend="eager")
        for number in (3, 5, 6):
            x = torch.ones(number)
            expected, found = program(x, number, operand)[1], compiled(x, number, operand)[1]
            where = f"{expression} for {number} ({kind}) and {operand!r}"
            assert type(found) is type(expected), (where, expected, found)
            assert repr(found) == repr(expected), where
