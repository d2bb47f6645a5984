"""What newer CPythons compile differently or only they can parse: 3.14's opcodes, template strings, late annotations.

Programs that older versions cannot parse are texts, compiled where the running version knows them.
"""

import linecache
import sys
import typing

import pytest
import torch

import kiln
from kiln.testing import check
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable(breaks_every=(None, "line", "instruction"))


# -- what 3.14 has opcodes for --------------------------------------------------------------------------------------


@program(X, 7)
def small_integers(x, number):
    zero, most, beyond, negative = 0, 255, 256, -1
    found = [number + 1, number - 255, number * 0, zero, most, beyond, negative, 1 << 8, True + 1]
    found += [[10, 20, 30][1], (1, 2, 3)[-1], {0: "a", 1: "b"}[0], "text"[2]]
    number += 3
    return x * 2 + number, found, x[0], x[1:], x[0:2], x[::2]


@program(X, [3, 1, 2])
def constant_slices(x, items):
    text = "abcdef"
    items[1:2] = [7, 8]
    del items[0:1]
    return x[1:3] + x[-2:], text[2:4], text[::-1], items, items[:2], items[number_of(items) :]


def number_of(items):
    return len(items) - 1


@program(X, [0, 3, None])
def questions_of_generators(x, items):
    offset = 1
    found = [
        any(item for item in items),
        all(item is None for item in items),
        tuple(offset + (item or 0) for item in items),
        any(item == offset for item in ()),
        all(x for x in (1, 2)),
    ]
    return x + 1, found


def answers(values):
    return ("mine", *values)


@program(X)
def questions_of_functions_with_their_names(x):
    any = all = tuple = answers
    return x + 1, any(n for n in (1, 2)), all(n + 1 for n in (1, 2)), tuple(n * 2 for n in (1, 2))


@program(X, (1, 2), {"c": 4})
def star_calls(x, args, options):
    def target(a, b=0, *rest, c=3, **others):
        return a, b, rest, c, sorted(others.items())

    found = [target(*args), target(*args, **options), target(0, *args, 5, **options, d=6), target(a=1, **options)]
    found.append(max(*args))
    return x + 1, found, torch.stack(*[(x, x)], **{"dim": 0})


@program(X)
def borrowed_variables(x):
    y = x
    y, x = x + y, y
    z = [x, y, x]
    x = None
    (a, b), c = (y, y), z
    del y
    total = a + b + c[0]
    a = b = c = None
    for total in (total, total + 1):  # noqa: B020
        a = total
        total = a * 2  # noqa: PLW2901
    return total, a, z, x


@program(X)
def loops_left_in_many_ways(x):
    found = []
    for i in range(5):
        if i == 1:
            continue
        for j in (1, 2, 3):
            if j == i:
                break
        else:
            found.append(i)
        if i == 3:
            break
    for k in ():
        found.append(k)
    else:
        found.append("else")
    found += [n * 2 for n in found if n != "else"] + [a + b for a in "xy" for b in "zw"]
    return x + i, found, {n: n + 1 for n in range(3)}, {n % 2 for n in range(4)}


@program.breaking(X, 5)
def checks(x, number):
    assert number, "never"
    assert number > 1
    try:
        assert number > 100, f"{number} is small"
    except AssertionError as error:
        return x + 1, str(error)


# -- with ------------------------------------------------------------------------------------------------------------


class Noting:
    def __init__(self, log, name, swallow=False):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, value, traceback):
        self.log.append(("leave", self.name, kind and kind.__name__, str(value), traceback is not None))
        return self.swallow


class Static:
    """Methods that have no object: what LOAD_SPECIAL finds is called with nothing beside it."""

    log: typing.ClassVar[list] = []

    @staticmethod
    def __enter__():
        return "entered"

    @classmethod
    def __exit__(cls, *error):
        cls.log.append(error[0])
        return True


@program(X)
def with_blocks_left_in_many_ways(x):
    log = []

    def leave(way):
        for i in range(2):
            with Noting(log, way) as name, Noting(log, i, swallow=way == "swallow"):
                if way == "return":
                    return x + i
                if way == "break":
                    break
                if way == "continue":
                    continue
                if way in ("raise", "swallow"):
                    raise KeyError(way)
                log.append(name)
        return "end"

    found = [leave(way) for way in ("pass", "return", "break", "continue", "swallow")]
    try:
        leave("raise")
    except KeyError as error:
        found.append(str(error))
    return x * 2, found, log


@program.breaking(X)
def with_around_breaks(x):
    log = []
    with Noting(log, "outer"):
        x = x + 1
        print("inside")
        with Noting(log, "inner", swallow=True) as name:
            x = x * 2
            print(name)
            if x.sum() > 0:
                raise ValueError("swallowed")
            log.append("never")
        y = [x + i for i in range(2)]
        print(len(y))
    return x, y, log


@program.breaking(X)
def methods_without_objects(x):
    with Static() as value:
        x = x + 1
        print(value)
        raise TypeError("swallowed")
    with torch.no_grad(), Static():
        x = x * 2
        print("again")
    return x, value


class OnlyEnter:
    def __enter__(self):
        return 1


class OnlyExit:
    def __exit__(self, *error):
        return None


class Asynchronous:
    async def __aenter__(self):
        return 1

    async def __aexit__(self, *error):
        return None


@program(X, 3, breaks_every=(None,))
def no_context_managers(x, number):
    found = []
    for manager in (OnlyEnter(), OnlyExit(), Asynchronous(), number, None, "text"):
        try:
            with manager:
                found.append("entered")
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


# -- annotations -----------------------------------------------------------------------------------------------------


@program(X, breaks_every=(None, "line"))
def annotations_of_inner_functions(x):
    kind = float

    def inner(a: int, b: kind = 1.0, *c: "text", **d: int) -> kind:  # noqa: F821
        e: kind = a + b
        return e

    first = inner.__annotations__
    first["more"] = 1
    return x + inner(1), inner.__annotations__, first is inner.__annotations__, inner.__annotations__["return"]


@program(X, breaks_every=(None, "line"))
def annotations_assigned(x):
    def inner(a: int) -> int:
        return a

    before = dict(inner.__annotations__)
    inner.__annotations__ = {"b": str}
    after = inner.__annotations__
    del inner.__annotations__
    return x + 1, before, after, inner.__annotations__


def outside(a: int, b: "Later" = 2) -> torch.Tensor:
    return a


class Annotated:
    first: int
    second: "Later" = 3


class Later:
    pass


@program(X, breaks_every=(None, "line"))
def annotations_from_outside(x):
    found = [outside.__annotations__, Annotated.__annotations__, typing.get_type_hints(outside)]
    found.append(typing.get_type_hints(Annotated))
    return x + 1, [sorted(map(str, item.items())) for item in found]


@TABLE.rows
def test_newer(program, args, expect):
    TABLE.run(program, args, expect)


def test_functions_that_leave_keep_their_annotations():
    """Also where evaluating them fails, which nothing but reading them may notice."""

    def program(x, kind):
        def plain(a: kind, b: list[kind] = ()) -> "kind":
            return a

        def failing(a: undefined) -> kind:  # noqa: F821
            return a

        return x + 1, plain, failing

    if sys.version_info < (3, 14):
        with pytest.raises(NameError, match="undefined"):
            program(X, int)
        return
    _, plain, failing = kiln.compile(program, fullgraph=True, backend="eager")(X, int)
    assert plain.__annotations__ == {"a": int, "b": list[int], "return": "kind"}
    assert plain(3) == failing(3) == 3
    with pytest.raises(NameError, match="undefined"):
        failing.__annotations__  # noqa: B018


# -- texts that older versions cannot parse -------------------------------------------------------------------------

TEXTS = {
    (3, 14): """
class Early(Exception): pass

def several_exceptions_without_parentheses(x):
    found = []
    for number in (0, 1, 2):
        try:
            if number == 0:
                raise KeyError("a")
            if number == 1:
                raise ValueError("b")
            [][number]
        except KeyError, ValueError:
            found.append("one")
        except IndexError, Early:
            found.append("two")
    return x + 1, found

def template_strings(x):
    name, width = "kiln", 8
    made = t"hello {name!r:>{width}} and {x.shape[0] + 1:03} {{}}"
    parts = [part if isinstance(part, str) else part.value for part in made]
    print(len(parts))
    described = [(item.value, item.expression, item.conversion, item.format_spec) for item in made.interpolations]
    joined = t"{x}" + t" end"
    return x + 1, parts, described, made.strings, joined.interpolations[0].value is x, t"".strings, joined.strings

def returns_in_finally(x):
    def overriding(way):
        for i in range(3):
            try:
                if way == "raise":
                    raise KeyError(i)
                if way == "return":
                    return x
            finally:
                if way == "break":
                    break
                if way == "continue":
                    continue
                return i
        return "after"

    return x + 1, [overriding(way) for way in ("raise", "return", "break", "continue")]

def annotations_of_inner_classes(x):
    class Inner:
        a: int = 1
        if x.dim() > 5:
            b: str
        c: Later = None
        def method(self, q: a) -> Inner:
            return self.a

    class Later: pass
    hints = Inner.__annotations__
    return x + Inner().method(1), sorted(hints), hints["c"] is Later, Inner.method.__annotations__["return"] is Inner

def annotations_in_functions_are_not_evaluated(x):
    y: undefined = x + 1
    z: also.undefined
    return y
""",
    (3, 12): """
def type_parameters(x):
    def first[T](items: list[T]) -> T:
        return items[0]

    type Numbers = list[int]
    return first([x + 1]), Numbers.__name__, [parameter.__name__ for parameter in first.__type_params__]

def comprehensions_with_shadowed_names(x):
    i = "outer"
    squares = [i * i for i in range(3)]
    lazily = [lambda: i for i in range(2)]
    return x + squares[-1], i, [f() for f in lazily], {i: [j for j in range(i)] for i in range(3)}

def nested_quotes(x):
    names = {"a": 1}
    return x + 1, f"{names["a"]} {f"{names['a'] + 1}"}"
""",
}


def functions_of(text, name):
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space = {"__name__": __name__, "torch": torch}
    exec(compile(text, name, "exec", dont_inherit=True), space)
    return {key: value for key, value in space.items() if type(value) is type(functions_of)}


def names_in(text):
    return [line.split()[1].split("(")[0] for line in text.splitlines() if line.startswith("def ")]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize(
    "version, name", [(version, name) for version, text in TEXTS.items() for name in names_in(text)]
)
@pytest.mark.parametrize("every", [None, "line", "instruction"])
def test_newer_texts(version, name, every):
    if sys.version_info < version:
        pytest.skip(f"CPython {sys.version_info.major}.{sys.version_info.minor} cannot parse it")
    function = functions_of(TEXTS[version], f"<texts of {version}>")[name]
    check(function, X, fullgraph=False, breaks_every=(every,), calls=2)
