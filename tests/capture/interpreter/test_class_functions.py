"""Methods that a class is asked for behind the program's back have closures, too: state that must stay outside."""

import datetime
import enum

import pytest
import torch

from kiln.testing import check
from tests.support.program_table import X


def counting(kind):
    """A program that runs one special method twice, and the count of its runs, kept in a closure."""
    count = 0

    class Descriptor:
        def __get__(self, instance, owner):
            nonlocal count
            count += 1
            return count

        def __set__(self, instance, value):
            nonlocal count
            count += value

        def __delete__(self, instance):
            nonlocal count
            count += 100

    class Meta(type):
        def __call__(cls, *args):
            if kind == "call":
                nonlocal count
                count += 1
            return super().__call__(*args)

        def __getattr__(cls, name):
            if name != "missing":
                raise AttributeError(name)
            nonlocal count
            count += 10
            return count

        def __instancecheck__(cls, instance):
            nonlocal count
            count += 1
            return count > 1

        def __getitem__(cls, key):
            nonlocal count
            count += key
            return count

        def method(cls):
            nonlocal count
            count += 3
            return count

        @property
        def shown(cls):
            nonlocal count
            count += 5
            return count

    class Made(metaclass=Meta):
        described = Descriptor()

        def __getattr__(self, name):
            if name != "missing":
                raise AttributeError(name)
            nonlocal count
            count += 2
            return count

    class Read:
        def __getattribute__(self, name):
            if name != "anything":
                return super().__getattribute__(name)
            nonlocal count
            count += 4
            return count

    made, read = Made(), Read()

    def stored():
        made.described = 7
        return count

    def deleted():
        del made.described
        return count

    action = {
        "get": lambda: made.described,
        "get_on_class": lambda: Made.described,
        "set": stored,
        "delete": deleted,
        "call": lambda: (Made() is not None, count)[1],
        "getattr_of_metaclass": lambda: Made.missing,
        "instancecheck": lambda: isinstance(3, Made),
        "item_of_metaclass": lambda: Made[6],
        "method_of_metaclass": lambda: Made.method(),
        "property_of_metaclass": lambda: Made.shown,
        "getattr": lambda: made.missing,
        "getattribute": lambda: read.anything,
    }[kind]

    def program(x):
        first = action()
        second = action()
        return x + count, first, second

    return program


KINDS = ["get", "get_on_class", "set", "delete", "call", "getattr_of_metaclass", "instancecheck", "item_of_metaclass"]
KINDS += ["method_of_metaclass", "property_of_metaclass", "getattr", "getattribute"]


@pytest.mark.parametrize("kind", KINDS)
def test_state_in_closures_of_special_methods(kind):
    def setup():
        return counting(kind), (X,)

    check(None, setup=setup, calls=3, breaks_every=(None, "line"))


class Named(type):
    def method(cls):
        return cls.__name__

    def __len__(cls):
        return 3


class Class(metaclass=Named):
    pass


def test_method_of_a_metaclass_stays_the_same_function():
    def program(x):
        before = Class.method
        x = x + len(Class)
        torch._C._get_tracing_state()  # breaks the graph, or not
        return x, before == Class.method, before.__func__ is Named.method, before()

    check(program, X, calls=2, breaks_every=(None, "line"))


class Dated(datetime.date, enum.Enum):
    FIRST = (2021, 12, 25)
    SECOND = (2020, 3, 15)


@pytest.mark.parametrize("look", ["enum", "dictionary", "set", "tuple_key"])
def test_hash_of_an_object_that_nobody_may_look_into(look):
    table = {datetime.date(2021, 12, 25): 1, datetime.date(2020, 3, 15): 2}
    pairs = {(1, datetime.date(2021, 12, 25))}

    def program(x, day):
        if look == "enum":
            return x, Dated(day).name
        if look == "dictionary":
            return x, table[day], table.get(day)
        if look == "set":
            return x, day in table, day in {datetime.date(2020, 3, 15)}
        return x, (1, day) in pairs

    check(program, calls=[(X, datetime.date(2021, 12, 25)), (X, datetime.date(2020, 3, 15))])


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1


def plain_member_made_inside(x):
    made = object.__new__(Permission)
    made._name_, made._value_ = "BOTH", x.shape[0]
    print(end="")
    return x + 1, made._name_, made._value_, type(made).__name__


def number_member_made_inside(x):
    made = int.__new__(Level, 7)
    made._name_, made._value_ = "HIGH", x.shape[0]
    print(end="")
    return x + 1, made._name_, made._value_, int(made), type(made).__name__


def members_over_a_break(x):
    both = Permission.READ | Permission.WRITE
    found = Level(1)
    print(end="")
    return x + 1, both is Permission(3), found is Level.LOW, [member.name for member in Level]


@pytest.mark.parametrize("program", [plain_member_made_inside, number_member_made_inside, members_over_a_break])
def test_members_of_enumerations(program):
    check(program, torch.ones(2))
