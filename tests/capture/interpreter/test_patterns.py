"""The ``match`` statement: what class and mapping patterns ask of their subjects, and what is wrong with some."""

import collections
import collections.abc
import dataclasses
import enum

from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable()


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Named:
    __match_args__ = ("first", "second")

    def __init__(self, first, second):
        self.first, self.second = first, second

    def __getattr__(self, name):
        if name == "computed":
            return 17
        raise AttributeError(name)


class ListArguments:
    __match_args__ = ["first"]
    first = 1


class StringArguments:
    __match_args__ = "first"
    first = 1


class NumberArguments:
    __match_args__ = (1, "first")
    first = 1


class TupleSubclass(tuple):
    pass


class SubclassArguments:
    __match_args__ = TupleSubclass(("first",))
    first = 1


class NoneArguments:
    __match_args__ = None


class Twice:
    __match_args__ = ("same", "same")
    same = 1


class Plain:
    a = 1


class PropertyArguments(type):
    @property
    def __match_args__(cls):
        return ("b",)


class Metamatched(metaclass=PropertyArguments):
    b = 3


def told(attempt, subject):
    try:
        return attempt(subject)
    except (TypeError, ValueError, AttributeError) as error:
        return type(error).__name__, str(error)


def one_positional(cls):
    def attempt(subject):
        match subject:
            case cls(first):
                return ("one", first)
        return "none"

    return attempt


def two_positional(cls):
    def attempt(subject):
        match subject:
            case cls(first, second):
                return ("two", first, second)
        return "none"

    return attempt


def same_by_name(cls):
    def attempt(subject):
        match subject:
            case cls(first, first=again):
                return (first, again)
        return "none"

    return attempt


@program(X)
def class_patterns(x):
    found = []
    for cls in (Point, Named, ListArguments, StringArguments, NumberArguments, SubclassArguments, NoneArguments, Twice):
        subject = cls(1, 2) if cls in (Point, Named) else cls()
        for maker in (one_positional, two_positional, same_by_name):
            found.append(told(maker(cls), subject))
    for cls, subject in ((int, 5), (str, "s"), (dict, {1: 2}), (Plain, Plain()), (Metamatched, Metamatched())):
        found += [told(one_positional(cls), subject), told(two_positional(cls), subject)]
    found += [told(one_positional(cls), 3) for cls in (3, "int", len, (int, str), None)]
    return x + len(found), found


@program(X, Point(3, 4))
def names_in_patterns(x, point):
    match point:
        case Point(z=0) | Point(x=1):
            return x, "wrong"
        case Point(x=a, y=b):
            first = (a, b)
    match Named(1, 2):
        case Named(first=1, computed=c, second=s):
            second = (c, s)
    match Named(1, 2):
        case Named(missing=_):
            third = "wrong"
        case _:
            third = "no such attribute"
    return x + 1, first, second, third


class Defaulting(collections.defaultdict):
    pass


class Missing(dict):
    def __missing__(self, key):
        raise RuntimeError("never asked")


class OwnGet(collections.abc.Mapping):
    def __init__(self):
        self.asked = []

    def __getitem__(self, key):
        self.asked.append(("item", key))
        return {"a": 1, "b": 2}[key]

    def __iter__(self):
        return iter(["a", "b"])

    def __len__(self):
        return 2

    def get(self, key, default=None):
        self.asked.append(("get", key))
        return {"a": 1}.get(key, default)


class NoGet(collections.abc.Mapping):
    get = None

    def __getitem__(self, key):
        return 1

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0


@program(X)
def mapping_patterns(x):
    found = []
    own = OwnGet()
    for subject in (Defaulting(int, a=1), Missing(a=1), own, collections.ChainMap({"a": 1}, {"b": 2}), {"b": None}):
        match subject:
            case {"a": a, "b": b}:
                found.append(("both", a, b))
            case {"a": a}:
                found.append(("a", a))
            case {"b": None}:
                found.append("none")
            case {}:
                found.append("any")
    return x + len(found), found, own.asked


@program.breaking(X)
def mapping_with_rest(x):
    found = []
    for subject in ({"a": 1, "b": 2}, collections.OrderedDict(a=1, c=3), collections.Counter("aab")):
        match subject:
            case {"a": a, **rest}:
                found.append((a, sorted(rest.items()), type(rest).__name__))
    return x + 1, found


class Keys(enum.Enum):
    A = "a"


class Names:
    key = "a"
    other = "a"


def duplicate_keys(subject):
    match subject:
        case {Names.key: first, Names.other: second}:
            return first, second
    return "none"


def no_get(subject):
    match subject:
        case {"a": 1}:
            return "a"
    return "none"


@program(X)
def errors_of_mappings(x):
    return x + 1, told(duplicate_keys, {"a": 1}), told(duplicate_keys, {}), told(no_get, NoGet()), told(no_get, {})


class Compared:
    def __init__(self):
        self.asked = []

    def __eq__(self, other):
        self.asked.append(other)
        return other == 2


@program(X, 3, [1, 2, 3])
def other_patterns(x, number, items):
    asked = Compared()
    match asked:
        case 1:
            first = 1
        case 2:
            first = 2
    match items:
        case [a, *rest, b] if a < b:
            second = (a, rest, b)
    match (number, {"k": Keys.A}):
        case (int() as n, {"k": Keys.A}):
            third = n
    match "text":
        case [*_]:
            fourth = "sequence"
        case str(s):
            fourth = s
    match collections.deque([1, 2]):
        case [one, two]:
            fifth = (one, two)
    match x:
        case int() | float():
            sixth = "number"
        case [a, b]:
            sixth = "sequence"
        case _:
            sixth = "tensor"
    return x + 1, first, asked.asked, second, third, fourth, fifth, sixth


@TABLE.rows
def test_patterns(program, args, expect):
    TABLE.run(program, args, expect)
