# ruff: noqa: F401, F821, F841, F842, UP037  (the programs are what they are on purpose)
"""Control flow in captured code: branches, loops, match, assert, del, unpacking, comprehensions, walrus, slices.

PYTEST_DONT_REWRITE: the assert statements here belong to the programs.
"""

import collections
import dataclasses
import enum

import torch

import kiln
from kiln.testing import check
from tests.support.program_table import M, ProgramTable, X, Y

TABLE = program = ProgramTable(breaks_every=(None, "line", "instruction"))


# -- branches and loops ---------------------------------------------------------------------------------------------


@program(X, 3)
def branches(x, n):
    """A docstring is not a statement."""
    if n > 5:
        x = x + 1
    elif n == 3:
        x = x * 2
        if n:
            x = x - 1
    else:
        x = x / 2
    y = x if n < 10 else -x
    return y if not n else (x + y if n % 2 else x - y)


@program(X, 4)
def while_with_else(x, n):
    steps = []
    while n:
        n -= 1
        if n == 2:
            continue
        x = x + n
        steps.append(n)
    else:
        steps.append("else")
    while True:
        x = x * 2
        n += 1
        if n > 2:
            break
    else:
        steps.append("never")
    return x, n, steps


@program(X)
def for_with_else(x):
    log = []
    for i in range(5):
        for j in "abc":
            if j == "b":
                continue
            if i == 2:
                break
            log.append((i, j))
        else:
            log.append("inner else")
            continue
        log.append("broken")
        if i == 3:
            break
    else:
        log.append("outer else")
    for i in ():
        x = x + 1
    else:
        log.append(i)
    return x * len(log), log, i, j


@program(M)
def loop_over_tensor(x):
    total = torch.zeros(3)
    for index, row in enumerate(x):
        total = total + row * (index + 1)
    return total


@program(X, {"a": 1, "b": 2})
def loop_over_dict(x, table):
    for key in table:
        x = x + table[key]
    for key, value in table.items():
        x = x * value
    for value in table.values():
        x = x - value
    return x, key, value


@program(X, [1, 2, 3])
def loop_changes_list(x, items):
    for item in items:
        if len(items) < 6:
            items.append(item * 10)
    for index in range(len(items) - 1, -1, -1):
        if items[index] % 2:
            del items[index]
    return x + len(items), items


@program(X, 3)
def early_returns(x, n):
    for i in range(10):
        if i == n:
            return x * i
        while i:
            if i > 2:
                return x
            break
    return None


def test_early_return_from_nested_loops():
    def program(x, n):
        for i in range(3):
            for j in range(3):
                if i * j == n:
                    return x * i, i, j
        return x, None, None

    check(program, calls=[(X, 2), (X, 4), (X, 7)], breaks_every=(None, "line"))


# -- match ----------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Point:
    x: object
    y: object


class Shape:
    __match_args__ = ("kind", "size")

    def __init__(self, kind, size):
        self.kind = kind
        self.size = size


Named = collections.namedtuple("Named", "first second")


def describe(value):
    match value:
        case 0 | 1 | -1:
            return "small"
        case True:
            return "never: 1 comes first"
        case 2.5 | "text" | b"bytes":
            return "constant"
        case None:
            return "none"
        case int(n) if n > 100:
            return ("big", n)
        case int() | float():
            return "number"
        case str(s):
            return ("string", s)
        case Color.RED:
            return "red"
        case Color():
            return "a colour"
        case []:
            return "empty"
        case [only]:
            return ("one", only)
        case [1, 2, *rest]:
            return ("from one", rest)
        case [first, [second, third], _]:
            return ("nested", first, second, third)
        case (first, *_, last):
            return ("ends", first, last)
        case {"kind": "a", "value": found}:
            return ("kind a", found)
        case {"kind": kind, **others}:
            return ("kind", kind, others)
        case {}:
            return "mapping"
        case Point(x=0, y=y):
            return ("on axis", y)
        case Point(x, Point(inner, _) as p):
            return ("nested point", x, inner, p is value.y)
        case Point(x, y) as whole:
            return ("point", x, y, whole is value)
        case Shape("circle", size=size):
            return ("circle", size)
        case Shape(kind):
            return ("shape", kind)
        case set() | frozenset():
            return "set"
        case torch.Tensor():
            return "tensor"
        case _:
            return "other"


@program(X)
def match_patterns(x):
    values = [
        0,
        True,
        2.5,
        None,
        101,
        50,
        0.5,
        "s",
        "text",
        Color.RED,
        Color.BLUE,
        [],
        [7],
        (1, 2, 3, 4),
        [1, (2, 3), 4],
    ]
    values += [(9, 8, 7, 6), {"kind": "a", "value": 1}, {"kind": "b", "z": 2}, {"q": 1}, {}, Point(0, 5), Point(1, 2)]
    values += [
        Point(1, Point(2, 3)),
        Shape("circle", 4),
        Shape("square", 5),
        {1},
        Named(1, 2),
        Named(5, 6),
        range(3),
        3j,
    ]
    values += [b"bytes", collections.deque([1]), "abc"[:2], -1, True]
    return x + 1, [describe(value) for value in values]


@program(X, {"op": "add", "args": [1, 2]}, [("x", 1), {"k": (3, 4)}])
def match_outside_values(x, command, shapes):
    results = []
    match command:
        case {"op": "sub", "args": [a, b]}:
            results.append(a - b)
        case {"op": "add", "args": [a, b], **rest}:
            results.append((a + b, rest))
    for shape in shapes:
        match shape:
            case [str(name), int(value)]:
                x = x * value
                results.append(name)
            case {"k": (a, b)} if a < b:
                x = x + a
    match results:
        case []:
            pass
    return x, results


@program.breaking(X)
def match_errors(x):
    messages = []
    try:
        match Point(1, 2):
            case Point(1, 2, 3):
                messages.append("never")
    except TypeError as error:
        messages.append(str(error))
    try:
        match 5:
            case int(a, b):
                messages.append(a + b)
    except TypeError as error:
        messages.append(str(error))
    return messages


# -- assert, del, assignment, slices --------------------------------------------------------------------------------


@program(X, 3)
def assertions(x, n):
    assert n == 3
    assert x is not None, f"not {x}"
    try:
        assert n > 5, ("message", n)
    except AssertionError as error:
        args = error.args
    try:
        assert not n
    except AssertionError as error:
        return x * 2, args, error.args


@program.breaking(X)
def failing_assertion(x):
    y = x + 1
    assert y is None, f"y is {y.shape}"


@program(X)
def deletions(x):
    a = b = [1, 2, 3, 4, 5]
    table = {"k": 1, "l": 2}
    del a[0], table["k"], b[-1:]
    y = x + 1
    del x
    try:
        x
    except UnboundLocalError as error:
        message = str(error)
    del y, a
    x = torch.ones(2)
    return x, b, table, message


@program(X)
def unpacking(x):
    a, b = 1, 2
    a, b = b, a
    (c, [d, e]), f = (3, [4, 5]), 6
    first, *middle, last = range(5)
    *init, end = "abc"
    head, *empty = [1]
    [p, q] = {"k": 1, "l": 2}
    for i, (j, *k) in [(1, (2, 3, 4)), (5, (6,))]:
        x = x + i * j + len(k)
    g = h = m = [0]
    g[0], h = 9, 8
    index = 0
    items = [0, 0, 0]
    index, items[index] = 1, 5
    return x, a, b, c, d, e, f, first, middle, last, init, end, head, empty, p, q, i, j, k, g, h, m, items


@program(X)
def unpacking_a_tensor(x):
    u, v, w = x
    first, *rest = x
    return u + v * w, first, rest


@program.breaking(X)
def unpacking_errors(x):
    messages = []
    for value in ([1], [1, 2, 3], 5, "abcd", None):
        try:
            a, b = value
        except (ValueError, TypeError) as error:
            messages.append((type(error).__name__, str(error)))
    try:
        a, *b, c = [1]
    except ValueError as error:
        messages.append(str(error))
    try:
        a, *b = 5
    except TypeError as error:
        messages.append(str(error))
    return messages


@program(X, list(range(10)))
def slices(x, items):
    copied = items[:]
    copied[2:4] = [20, 30, 40]
    copied[::4] = ["a"] * len(copied[::4])
    del copied[-3:-1]
    where = slice(1, None, 3)
    return x * len(copied), items[where], items[5:2:-1], items[-2:], copied, (1, 2, 3)[1:], "abc"[::2], where.indices(8)


@program(X, [1, 2, 3])
def walrus(x, items):
    if (n := len(items)) > 2:
        x = x * n
    values = [y := 1, y + 1, (z := y + 5)]
    total = 0
    while (total := total + 4) < 10:
        pass
    found = [last := i for i in range(4) if i % 2]
    any((witness := i) > 2 for i in range(10))
    return x, n, values, z, total, found, last, witness


@program(X)
def annotations(x):
    a: int = 3
    b: "undefined_name"
    c: list[int] = [a]
    return x * a, c


# -- comprehensions -------------------------------------------------------------------------------------------------


@program(X, [1, 2, 3, 4])
def comprehensions(x, items):
    squares = [i * i for i in items if i % 2 == 0 if i > 1]
    grid = [(i, j) for i in range(3) for j in range(i) if i != j]
    nested = [[x * i + j for j in range(2)] for i in range(2)]
    table = {f"k{i}": i for i in items}
    flipped = {v: k for k, v in table.items() if v > 2}
    letters = {c.upper() for c in "abca"}
    lazy = sum(i for i in items)
    i = "untouched"
    return squares, grid, nested, table, flipped, sorted(letters), lazy, i


@program(X)
def comprehensions_and_closures(x):
    functions = [lambda: i for i in range(3)]
    bound = [lambda i=i: i for i in range(3)]
    k = 10
    scaled = [(lambda v: v * k + j)(j) for j in range(3)]
    inner = [[lambda: (a, b) for b in range(2)] for a in range(2)]
    return x, [f() for f in functions], [f() for f in bound], scaled, [f() for row in inner for f in row]


@program(X)
def comprehension_over_tensors(x):
    parts = [row + index for index, row in enumerate(x.unsqueeze(1))]
    table = {index: part * 2 for index, part in enumerate(parts)}
    return torch.cat(parts), table, sum(p.sum() for p in parts), tuple(p for p in parts)


@program(X)
def generator_expressions(x):
    lazy = (i * x for i in range(3))
    first = next(lazy)
    rest = list(lazy)
    nested = list(tuple(j for j in range(i)) for i in range(3))
    return (
        first,
        rest,
        nested,
        max(len(str(n)) for n in (1, 22, 333)),
        dict((k, 1) for k in "ab"),
        ",".join(c for c in "xyz"),
    )


@program(X)
def print_is_called_in_loops(x):
    for i in range(3):
        x = x + i
        print("step", i)
        if i == 1:
            continue
        x = x * 2
    else:
        print("done")
    return x


TABLE.programs[-1].values[2]["fullgraph"] = False


@TABLE.rows
def test_control(program, args, expect):
    TABLE.run(program, args, expect)


def test_branches_on_tensors_break_and_are_right_both_ways():
    def program(x):
        if x.sum() > 0:
            y = x + 1
        else:
            y = 1 - x
        while y.sum() < 5:
            y = y * 2
        return y if y.max() > 3 and not (y < 0).any() else -y

    check(program, calls=[(X,), (-X,), (X * 3,), (X * 10,)], breaks_every=(None, "line"))


def test_loops_are_unrolled_into_one_graph():
    def program(x, n):
        for i in range(n):
            x = x * i if i % 2 else x + i
        return x

    check(program, X, 4, fullgraph=True, graphs=1, ops=4, breaks=0)


def test_a_break_in_a_loop_compiles_the_body_once():
    def program(x):
        for i in range(20):
            x = x + 1
            print(end="")
            x = x * 2
        return x

    report = check(program, X)
    assert len(report.graphs) < 8


def test_long_loops_without_tensors_are_left_to_python():
    def program(x, steps):
        total = 0
        for step in range(steps):
            total += step % 7
        return x + total

    compiled = kiln.compile(program, backend="eager")
    assert torch.equal(compiled(X, 100_000), program(X, 100_000))
    whole = kiln.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(whole(X, 30_000), program(X, 30_000))
