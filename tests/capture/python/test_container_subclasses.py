"""Subclasses of builtin containers with methods in Python: native code calls some of these, and looks past others."""

# ruff: noqa: B905 (programs under test are written the way users write them)

import array
import operator
from collections import OrderedDict, UserDict, UserList, defaultdict, deque

import pytest

import kiln
from kiln.testing import check
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable(fullgraph=False)


def hundred(self, index):
    return 100


class Numbers(list):
    __getitem__ = hundred


class Pair(tuple):
    __getitem__ = hundred


class Queue(deque):
    __getitem__ = hundred


class Table(dict):
    __getitem__ = hundred


class Ordered(OrderedDict):
    __getitem__ = hundred


class Defaults(defaultdict):
    __getitem__ = hundred


class Text(str):
    __getitem__ = hundred


SEQUENCES = (Numbers([1, 2]), Pair((1, 2)), Queue([1, 2]))


def consumed(x, items):
    first, second = items
    start, *rest = items
    return (
        x + sum(items),
        list(items),
        tuple(items),
        [item for item in items],
        [*items, 3],
        sorted(items),
        max(items),
        min(*items),
        list(enumerate(items)),
        list(zip(items, items)),
        list(map(float, items)),
        set(items),
        2 in items,
        100 in items,
        len(items),
        items[0],
        operator.length_hint(items),
        (first, second, start, rest),
        dict.fromkeys(items, 0),
        any(items),
        ",".join(map(str, items)),
        list(reversed(items)),
        items.index(2),
        items.count(100),
    )


@pytest.mark.parametrize("items", SEQUENCES, ids=lambda items: type(items).__name__)
def test_iteration_looks_past_getitem(items):
    check(consumed, X, items, calls=2)

    def made_inside(x):
        return consumed(x, type(items)([1, 2]))

    check(made_inside, X, calls=2)


@pytest.mark.parametrize("make", [Table, Ordered, lambda items: Defaults(int, items)])
def test_a_dictionary_with_an_item_method(make):
    def program(x, table):
        values = [value for value in table.values()], list(table.items()), dict(table), {**table}
        return x + table["a"], values, table.get("a"), sorted(table), "a" in table, "b" in table, list(table)

    check(program, X, make({"a": 1}), calls=2)


class Counted(list):
    def __init__(self, *args):
        super().__init__(*args)
        self.asked = []

    def __len__(self):
        self.asked.append("length")
        return 7


class Iterated(list):
    def __iter__(self):
        return iter((10, 20, 30))


class Forbidden(list):
    __iter__ = None


class Silent:
    __next__ = len  # but no __iter__


class Hinted:
    def __init__(self, hint, count=3):
        self.hint, self.count = hint, count

    def __iter__(self):
        return iter(range(self.count))

    def __length_hint__(self):
        if isinstance(self.hint, type):
            raise self.hint("no hint")
        return self.hint


@program(X, Counted([1, 2]), breaks_every=(None,))  # comparing more often asks more often
def length_asked_for(x, items):
    made = list(items), tuple(items), [*items], len(items)
    target = []
    target.extend(items)
    return x, made, target, items.asked


@program(X, Iterated([1, 2]))
def iterator_in_python(x, items):
    return x + sum(items), list(items), [*items], len(items), items[0], 20 in items, 2 in items, sorted(items)


def not_iterable(x, items, silent):
    seen = []
    for value in (items, silent):
        for function in (iter, list, sum):
            try:
                function(value)
            except TypeError as error:
                seen.append(str(error))
        try:
            for _ in value:
                seen.append("iterated")
        except TypeError as error:
            seen.append(str(error))
    return x + 1, seen, items[0], len(items)


@program(X)
def made_and_not_iterable(x):
    return not_iterable(x, Forbidden([1, 2]), Silent())


@program(X, [0, 1, 12, NotImplemented, -1, "a", TypeError, ValueError])
def length_hints(x, hints):
    seen = []
    for hint in hints:
        for function in (list, tuple, operator.length_hint, sorted):
            try:
                seen.append(function(Hinted(hint)))
            except (TypeError, ValueError) as error:
                seen.append((type(error).__name__, str(error)))
    return x + 1, seen


@program(X)
def hints_of_iterators(x):
    numbers = iter([1, 2, 3])
    next(numbers)
    queue, names = iter(deque("abc")), iter({"a": 1, "b": 2})
    next(names)
    made = [operator.length_hint(it) for it in (numbers, queue, names, iter({1, 2}), iter("ab"), iter(range(5)))]
    return x + 1, made, operator.length_hint(5, 9), operator.length_hint(reversed([1, 2])), operator.length_hint([], 4)


class Dictionary(UserDict):
    def __missing__(self, key):
        return key * 2


@program(X, UserList([1, 2, 3]), Dictionary(a=1))
def containers_of_the_library(x, items, table):
    items.append(4)
    return x + sum(items), items[1:], items + [5], table["b"], "b" in table, list(table), len(items), sorted(items)


class Truthful(dict):
    def __bool__(self):
        return False


@program(X, Truthful(a=1))
def truth_in_python(x, table):
    return x + 1 if table else x - 1


@TABLE.rows
def test_programs(program, args, expect):
    TABLE.run(program, args, expect)


def test_an_empty_subclass_whose_truth_is_python_code():
    class Odd(dict):
        def __len__(self):
            raise RuntimeError("a guard asked")

    def program(x, table):
        return x + 1, list(table.values()), dict(table), [key for key in table]

    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    for table in (Odd(), Odd(), Odd(a=1)):
        assert compiled(X, table)[1:] == program(X, table)[1:]


class Endless:
    """A sequence without end, for whoever iterates over it."""

    def __getitem__(self, index):
        return index


class WithoutEnd(list):
    """A list whose items never end, but whose iterator does."""

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("make", [Endless, WithoutEnd])
def test_a_miss_does_not_iterate_over_what_has_no_end(make):
    def program(x, table):
        return x + sum(table) if isinstance(table, dict | set) else x - 1

    compiled = kiln.compile(program, backend="eager")
    for table in ({1: 2}, {1: 2, 3: 4}, {5, 6}, make(), {1: 2}):
        assert compiled(X, table).equal(program(X, table))


def test_methods_of_an_array():
    """CPython 3.11 crashes on binding ``array.__reduce_ex__`` without a class."""

    def program(x, numbers):
        reduce = numbers.__reduce_ex__
        return x + len(numbers), reduce(2)[0], numbers.tolist(), numbers.__reduce_ex__(3)[1:]

    check(program, X, array.array("i", [1, 2, 3]), calls=2, breaks_every=(None, "line"))
