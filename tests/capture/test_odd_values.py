"""Values that Python allows and few programs have; most were found by ``tests/sweep_odd.py``."""

import collections
import copy
import enum
import functools
import itertools
import types

import pytest
import torch

import kiln
from tests.support.program_table import ProgramTable, X

program = ProgramTable(fullgraph=False)


class CountingMeta(type):
    """Special methods of a class itself: native code must not run them past the interpreter."""

    def __iter__(cls):
        cls.log.append("iter")
        return iter((1, 2))

    def __len__(cls):
        cls.log.append("len")
        return 2


class Counting(metaclass=CountingMeta):
    log: list = []


class Rank(enum.Enum):
    LOW = 1
    HIGH = 2

    def __lt__(self, other):
        Counting.log.append("lt")
        return self.value < other.value


class SetWithIter(set):
    def __iter__(self):
        Counting.log.append("iter")
        return iter((3, 1))


class ListWithLength(list):
    def __len__(self):
        return 3


class ListWithItems(list):
    def __getitem__(self, index):
        return 1


class ReflectedFloat(float):
    def __radd__(self, other):
        return "added"

    def __eq__(self, other):
        return "equal"

    __hash__ = float.__hash__


class DictWithKeys(dict):
    def keys(self):
        return ["other"]

    def __getitem__(self, key):
        return 42


class MappingLike:
    def keys(self):
        return ["a", "b"]

    def __getitem__(self, key):
        return key * 2


def logged(compute):
    """A program's result with the calls that it made."""
    Counting.log.clear()
    return compute(), list(Counting.log)


@program(X)
def iteration_over_a_class(x):
    return x + 1, logged(lambda: (sum(Counting), sorted(Counting), max(Counting), [*Counting], any(Counting)))


@program(X)
def sets_and_keys_from_a_class(x):
    return x + 1, logged(lambda: (set(Counting), dict.fromkeys(Counting), (lambda *args: args)(*Counting)))


@program(X)
def members_that_compare_in_python(x):
    return x + 1, logged(lambda: (min(Rank), sorted([Rank.HIGH, Rank.LOW]), list(Rank)))


@program(X, SetWithIter({1, 2, 3}))
def sets_with_their_own_iteration(x, values):
    return x + 1, logged(lambda: (sum(values), max(values), sorted([2, 1], key=lambda item: values)))


@program(X, ListWithLength([1, 2]), name="length")
@program(X, ListWithItems([0, 2]), name="items")
def sequences_that_torch_reads_by_their_methods(x, values):
    try:
        return torch.tensor(values), x[values]
    except IndexError as error:
        return str(error)


@program(X, ReflectedFloat(1.5))
def tensors_take_numbers_of_any_class_first(x, number):
    return x + number, x - number, x == number, x < number


@program(X)
def spread_takes_mappings_alone(x):
    found = []
    for value in ("ab", zip("ab", "cd", strict=True), [("a", 1)], 3):
        try:
            found.append({**value})
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


@program(X, DictWithKeys(a=1))
def spread_copies_dictionaries_past_their_methods(x, values):
    return x + 1, {**values}, dict(**values), {**MappingLike()}, (lambda **named: named)(**MappingLike())


@program(X)
def attributes_of_what_has_none(x):
    try:
        vars(3)
    except TypeError as error:
        return x + 1, str(error)


@program(X)
def iterators_are_equal_to_themselves(x):
    values = map(abs, [1]), zip([1]), (item for item in "ab")
    return x + 1, [value == value for value in values], [{value: 1}[value] for value in values]


@program(X)
def attributes_of_generic_aliases(x):
    return x + 1, hasattr(list[int], "__len__"), list[int].append is list.append, list[int].__origin__


@program(X)
def copies_of_cells(x):
    def inner():
        return x

    for copied in (copy.copy, copy.deepcopy):
        try:
            copied(inner.__closure__[0])
        except TypeError as error:
            return x + 1, str(error)


@program(X)
def sequences_too_long_for_memory(x):
    try:
        first, *rest = range(10**15)
    except MemoryError:
        return x + 1


class ListWithIter(list):
    def __iter__(self):
        Counting.log.append("iter")
        return iter((7, 8))


@program(X)
def iterators_as_keys(x):
    try:
        value = itertools.count()
        return x + 1, {value: 1}[value], value in {value}
    except KeyError:
        return "lost"


@program(X)
def slices_and_keys_of_lists_that_iterate_in_python(x):
    target = [1, 2, 3]
    target[1:2] = ListWithIter([1])
    return x + 1, target, logged(lambda: (dict.fromkeys(ListWithIter([1])), copy.copy(ListWithIter([1]))))


@program(X, SetWithIter({1, 2, 3}))
def sets_with_their_own_iteration_are_changed(x, values):
    values.clear()
    values.add(5)
    return x + 1


@program(X, ReflectedFloat(1.26))
def native_methods_of_numbers_with_methods_in_python(x, number):
    try:
        return x + 1, round(number, 1), int(number), float(number), abs(number)
    except TypeError as error:
        return str(error)


@program(X, collections.ChainMap({"a": 1}, {"b": 2}))
def text_of_objects_that_may_contain_themselves(x, mapping):
    try:
        return x + 1, str(mapping), f"{ValueError('a'):>5}"
    except (AttributeError, TypeError) as error:
        return str(error)


class PairOfSevens(tuple):
    def __getitem__(self, index):
        return 7

    def __iter__(self):
        return iter((7, 7))


@program(X, PairOfSevens((1, 2)))
def star_arguments_of_a_tuple_subclass(x, values):
    return x + 1, (lambda *args: args)(*values), max(values)


HUGE = 7**9000


@program(X, HUGE, {HUGE: 1}, name="huge")
@program(X, HUGE + 1, {HUGE + 1: 1}, name="huge and one")
def ints_that_python_does_not_write_out(x, number, table):
    made = 7**9000
    kiln.graph_break()
    return x + 1, number % 1000, table.get(made), table.get(number), made - 1


def test_a_miss_because_of_an_int_that_python_does_not_write_out():
    reasons = []
    compiled = kiln.compile(
        lambda x, number: x + len(bin(number)), backend="eager", on_recompile=lambda function, why: reasons.append(why)
    )
    for number in (HUGE, HUGE * 2, HUGE * 4):
        assert torch.equal(compiled(X, number), X + len(bin(number)))
    assert reasons


@program.rows
def test_values(program, args, expect):
    ProgramTable(fullgraph=False).run(program, args, expect)


IMMUTABLE = [functools.partial(max, 1), types.MappingProxyType({"a": 1}), [1].append, collections.deque([1]).__len__]


@pytest.mark.parametrize("value", IMMUTABLE, ids=lambda value: type(value).__name__)
def test_an_immutable_object_met_twice_is_one(value):
    def program(x, first, box):
        return x + 1, first is box["kept"], first is box["other"]

    box = {"kept": value, "other": [2].append}
    compiled = kiln.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(X, value, box)[1:] == program(X, value, box)[1:] == (True, False)


def test_two_immutable_objects_that_become_one():
    def program(x, first, second):
        return x + 1 if first is second else x - 1

    compiled = kiln.compile(program, backend="eager")
    one, other = functools.partial(max, 1), functools.partial(max, 1)
    for pair in ((one, other), (one, one), (other, one), (other, other)):
        assert torch.equal(compiled(X, *pair), program(X, *pair))
