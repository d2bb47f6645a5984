"""Native code that calls Python code of the program: every call runs it, not only the one that is captured."""

import collections
import functools
import types

from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable(fullgraph=False, breaks_every=(None, "line"), calls=3)


def noted(*values, by=0):
    print("called", len(values), by)
    return len(values) + by


class Holder:
    def method(self, value):
        print("method", value)
        return value


@program(X, noted, Holder())
def calls_through_call(x, function, holder):
    found = [types.FunctionType.__call__(function, 1, 2, by=3), function.__call__(1)]
    found.append(types.MethodType.__call__(holder.method, 4))
    found.append(functools.partial.__call__(functools.partial(function, 1), 2))
    found.append(types.BuiltinFunctionType.__call__(len, found))
    return x + 1, found


class Owner:
    def __init__(self):
        self.items = []

    @property
    def last(self):
        print("asked")
        return self.items[-1]

    @last.setter
    def last(self, value):
        print("set")
        self.items.append(value)

    @last.deleter
    def last(self):
        print("deleted")
        self.items.pop()


@program(X, Owner())
def properties_called_by_name(x, owner):
    found = []
    made = Owner()
    for value in (owner, made):
        Owner.last.__set__(value, 3)
        property.__set__(Owner.last, value, 4)
        found.append(property.__get__(Owner.last, value))
        property.__delete__(Owner.last, value)
        found.append(Owner.last.__get__(value, Owner))
    found.append(property.__get__(property(lambda value: value + 1), 5))
    return x + 1, found, made.items


class Deque(collections.deque):
    def __iter__(self):
        print("iterated")
        return super().__iter__()


@program(X)
def copies_of_deques(x):
    value = Deque([1, 2])
    return x + 1, collections.deque.copy(value), len(value + collections.deque([3])), len(value * 2)


class Bytes(bytes):
    def __buffer__(self, flags):
        print("asked for memory")
        return memoryview(b"a")


@program(X)
def memory_given_by_python(x):
    """Of a class with ``__buffer__``, which counts from 3.12 on."""
    value = Bytes(b"b")
    found = [b"ab".find(value), b"-".join([b"x", value]), b"ab" + value, b"ba".startswith(b"b")]
    return x + 1, found


class Hashed:
    def __init__(self, value):
        self.value = value

    def __hash__(self):
        print("hashed")
        return 5


@program(X)
def views_hashed_anew(x):
    table = {1: Hashed(2), 3: "text"}
    made = dict.fromkeys(table.values(), 4)
    return x + 1, list(made.values()), list(dict.fromkeys(table.keys()))


@program(X, collections.defaultdict(list, a=[1]))
def default_factories_taken_away(x, table):
    before = table["b"]
    collections.defaultdict.__init__(table)
    try:
        return x + 1, before, table["c"]
    except KeyError as error:
        return x + 1, before, str(error), table.default_factory


@TABLE.rows
def test_python_inside_natives(program, args, expect):
    TABLE.run(program, args, expect)
