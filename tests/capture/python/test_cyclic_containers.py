"""Containers that contain themselves, directly or through objects: made, returned, copied, shown as text."""

import collections
import copy

import pytest

from kiln.testing import check
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable(fullgraph=False)


class Box:
    """Refers to a container, and is an element of it."""

    def __init__(self, value=None):
        self.value = value

    def __repr__(self):
        return repr(self.value)


@program(X)
def texts(x):
    numbers = [1]
    numbers.append(numbers)
    table = {"a": 1}
    table["self"] = table
    queue = collections.deque([1])
    queue.append(queue)
    ordered = collections.OrderedDict(a=1)
    ordered["self"] = ordered
    default = collections.defaultdict(list, a=1)
    default["self"] = default
    both = [table]
    table["both"] = both
    return x + 1, repr(numbers), str(table), repr(queue), repr(ordered), repr(default), f"{both}", repr((numbers,))


@program(X)
def texts_of_sets_with_boxes(x):
    box = Box()
    elements = {box}
    box.value = elements
    fixed = Box()
    fixed.value = frozenset([fixed])
    return x + 1, repr(elements), repr(box), repr(fixed), repr(fixed.value), repr([elements])


@program(X)
def given_back(x):
    numbers = [1]
    numbers.append(numbers)
    table = {}
    table["self"] = table
    box = Box()
    box.value = box
    queue = collections.deque()
    queue.append(queue)
    return x + 1, numbers, table, box, queue


def made_sets():
    box = Box()
    elements = {box}
    box.value = elements
    fixed = Box()
    fixed.value = frozenset([fixed, 1])
    pair = ([],)
    pair[0].append(pair)
    return elements, fixed.value, pair


def check_sets(elements, fixed, pair):
    (box,) = elements
    (inner,) = [element for element in fixed if isinstance(element, Box)]
    assert box.value is elements
    assert inner.value is fixed
    assert pair[0][0] is pair


@pytest.mark.parametrize("every", [None, "line"])
def test_sets_and_tuples_come_back_whole(every):
    import kiln

    def program(x):
        made = made_sets()
        x = x + 1
        return x, made

    with kiln.config.patch(break_every=every):
        got = kiln.compile(program, backend="eager")(X)
    assert got[0].equal(X + 1)
    check_sets(*got[1])


@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy])
def test_copies(function):
    import kiln

    def program(x, value):
        return x + 1, function(value)

    numbers = [1]
    numbers.append(numbers)
    table = {"a": 1}
    table["self"] = table
    pair = ([],)
    pair[0].append(pair)
    box = Box()
    box.value = {"box": box}
    compiled = kiln.compile(program, backend="eager")
    deep = function is copy.deepcopy
    assert compiled(X, numbers)[1][1] is not (numbers if deep else None)
    made = compiled(X, table)[1]
    assert made is not table
    assert made["self"] is (made if deep else table)
    made = compiled(X, pair)[1]
    assert made[0][0] is (made if deep else pair)
    made = compiled(X, box)[1]
    assert made is not box
    assert made.value["box"] is (made if deep else box)


class Words(frozenset):
    """A subclass with attributes."""


@program(X)
def subclass_of_frozenset(x):
    words = Words([x, 1])
    words.name = "some"
    return x + 1, len(words), words.name, type(words), sorted(str(type(word)) for word in words), words


@TABLE.rows
def test_programs(program, args, expect):
    TABLE.run(program, args, expect)


def test_a_cycle_from_outside():
    def program(x, numbers, table):
        numbers.append(len(numbers))
        table["count"] = len(table)
        return x + len(numbers), repr(numbers), repr(table)

    def arguments():
        numbers, table = [1], {}
        numbers.append(numbers)
        table["self"] = table
        return X, numbers, table

    check(program, make_args=arguments, calls=2)
