"""Arguments for calls of builtins: plain values, spies that log their special methods, proxies, tensors, iterators.

A maker is a function ``(k, x)``: ``k`` is a small int that varies between calls, ``x`` a tensor of three elements. Made
in the compiled function, values are shadows; made outside, they come as lazy values with sources.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import operator
import re
import types
from collections.abc import Callable

import torch

LOG: list[str] = []  # what spies were asked, in order

Maker = Callable[[int, torch.Tensor], object]

UNLOGGED = frozenset(
    "__new__ __init__ __getattribute__ __setattr__ __delattr__ __class__ __init_subclass__ __subclasshook__ __reduce__ "
    "__reduce_ex__ __dir__ __sizeof__ __getnewargs__ __class_getitem__ __doc__ __getstate__ __setstate__ "
    "__getnewargs_ex__ __getformat__ __alloc__ __dict__ __weakref__ __module__".split()
)


def logged(place: str, name: str, original: Callable) -> Callable:
    def method(self, *args):
        LOG.append(place + name)
        return original(self, *args)

    method.__name__ = name
    return method


def special_names(base: type) -> list[str]:
    names = [name for name in dir(base) if name.startswith("__") and name not in UNLOGGED]
    names = [name for name in names if callable(getattr(base, name)) and getattr(base, name) is not None]
    return names + (["keys"] if issubclass(base, dict) else [])


def spy_class(base: type, names: list[str], place: str) -> type:
    """A subclass of a builtin that logs calls of these special methods and then does what the builtin does."""
    methods = {name: logged(place, name, getattr(base, name)) for name in names}
    if "__eq__" in methods and base.__hash__ is not None:
        methods.setdefault("__hash__", base.__hash__)
    return type(f"Spy{base.__name__.capitalize()}", (base,), methods)


BASES = (int, float, str, bytes, list, tuple, dict, set, frozenset, collections.deque, complex)
BASES += (collections.OrderedDict, collections.defaultdict)


@functools.cache
def spy_classes(base: type, place: str) -> list[type]:
    """One class that logs everything, then one for each special method."""
    names = special_names(base)
    return [spy_class(base, names, place), *(spy_class(base, [name], place) for name in names)]


class Thing:
    """An instance with attributes and nothing special."""

    def __init__(self, value):
        self.value = value


def only_class(place: str, **answers: object) -> type:
    """A class with nothing but these special methods."""

    def method_for(name: str, answer: object) -> Callable:
        def method(self, *args):
            LOG.append(place + name)
            return answer(self, *args) if callable(answer) else answer

        method.__name__ = name
        return method

    methods: dict[str, object] = {name: method_for(name, answer) for name, answer in answers.items()}
    return type("Only", (), methods)


def fail(self, *args):
    raise KeyError("from a special method")


def item_below_three(self, index):
    if index >= 3:
        raise IndexError("end")
    return index


ANSWERS: dict[str, object] = {
    "__index__": 1,
    "__int__": 2,
    "__float__": 2.5,
    "__complex__": 1j,
    "__bool__": False,
    "__len__": 3,
    "__length_hint__": 3,
    "__hash__": 5,
    "__str__": "text",
    "__repr__": "repr",
    "__format__": "formatted",
    "__bytes__": b"bytes",
    "__fspath__": "path",
    "__trunc__": 4,
    "__floor__": 4,
    "__ceil__": 5,
    "__round__": lambda self, *digits: 6,
    "__abs__": 7,
    "__neg__": -7,
    "__pos__": 7,
    "__invert__": 8,
    "__iter__": lambda self: iter([1, 2]),
    "__reversed__": lambda self: iter([2, 1]),
    "__getitem__": item_below_three,
    "__contains__": True,
    "__eq__": True,
    "__ne__": True,
    "__lt__": True,
    "__gt__": False,
    "__le__": True,
    "__ge__": False,
    "__call__": lambda self, *args: len(args),
    "__setitem__": None,
    "__delitem__": None,
    "__missing__": 9,
    "__getattr__": lambda self, name: 3,
}
for _name in "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor".split():
    ANSWERS[f"__{_name}__"] = ANSWERS[f"__r{_name}__"] = lambda self, other, *rest: ("answer", 1)
    ANSWERS[f"__i{_name}__"] = lambda self, other: self


@functools.cache
def only_classes(place: str) -> dict[str, type]:
    made = {name: only_class(place, **{name: answer}) for name, answer in ANSWERS.items() if name != "__getattr__"}
    made["sequence"] = only_class(place, __len__=3, __getitem__=item_below_three)
    made["mapping"] = only_class(place, keys=lambda self: ["a", "b"], __getitem__=1)
    made["iterator"] = only_class(place, __iter__=lambda self: self, __next__=stop_after_two)
    made["next"] = only_class(place, __next__=stop_after_two)
    made["ordered"] = only_class(place, __lt__=True, __eq__=False, __hash__=3)
    made["hinting"] = only_class(place, __iter__=lambda self: iter([1]), __length_hint__=2)
    made["raising"] = only_class(place, **dict.fromkeys([n for n in ANSWERS if n not in UNRAISED], fail))
    made["refusing"] = only_class(place, **dict.fromkeys([n for n in ANSWERS if n not in UNRAISED], refuse))
    made["wrong"] = only_class(place, **dict.fromkeys([n for n in ANSWERS if n not in UNRAISED], "wrong"))
    return made


UNRAISED = ("__repr__", "__str__", "__getattr__", "__hash__", "__eq__")


def refuse(self, *args):
    return NotImplemented


def stop_after_two(self):
    count = self.__dict__.get("count", 0)
    if count == 2:
        raise StopIteration
    self.count = count + 1
    return count


class Shade(enum.Enum):
    DARK = 1
    LIGHT = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


Pair = collections.namedtuple("Pair", "first second")


class Clearing:
    """An element whose comparison changes the container it is in."""

    def __init__(self, container):
        self.container = container

    def __eq__(self, other):
        LOG.append("element __eq__")
        self.container.clear()
        return False

    def __lt__(self, other):
        LOG.append("element __lt__")
        self.container.clear()
        return False

    __hash__ = None  # type: ignore[assignment]


def clearing(container, count):
    container.extend([Clearing(container) for _ in range(count)])
    return container


def containing_itself():
    made = [1]
    made.append(made)
    return made


def generated(k):
    LOG.append("generator begins")
    yield k
    LOG.append("generator goes on")
    yield k + 1


def first(*args):
    LOG.append("callback")
    return args[0] if args else None


def raising(*args):
    LOG.append("callback")
    raise LookupError("callback")


# -- makers ---------------------------------------------------------------------------------------------------------

NUMBERS: list[Maker] = [
    lambda k, x: 0,
    lambda k, x: 1,
    lambda k, x: k + 2,
    lambda k, x: -1,
    lambda k, x: k,
    lambda k, x: True,
    lambda k, x: 1.5,
    lambda k, x: -0.0,
    lambda k, x: float("nan"),
    lambda k, x: k + 0.5,
    lambda k, x: 2 - 1j,
    lambda k, x: x.shape[0],
    lambda k, x: x.shape[0] + k,
    lambda k, x: Level.HIGH,
]
BIG: list[Maker] = [lambda k, x: 2**70, lambda k, x: -(2**64), lambda k, x: float("inf"), lambda k, x: 1e308]
TEXTS: list[Maker] = [
    lambda k, x: "abc",
    lambda k, x: "",
    lambda k, x: "a b a",
    lambda k, x: "12",
    lambda k, x: "%s",
    lambda k, x: "{}",
    lambda k, x: "ä",
    lambda k, x: "b" * k,
    lambda k, x: b"ab",
    lambda k, x: b"",
    lambda k, x: bytearray(b"ab"),
    lambda k, x: "utf-8",
    lambda k, x: "value",
]
CONTAINERS: list[Maker] = [
    lambda k, x: [],
    lambda k, x: [1, 2, k],
    lambda k, x: [3, 1, 2],
    lambda k, x: (1, 2),
    lambda k, x: (k, "a"),
    lambda k, x: {"a": 1, "b": k},
    lambda k, x: {1: "x", 2: "y"},
    lambda k, x: {1, 2, 3},
    lambda k, x: frozenset([1, k]),
    lambda k, x: collections.deque([1, 2, 3], 5),
    lambda k, x: collections.OrderedDict([("a", 1), ("b", 2)]),
    lambda k, x: collections.defaultdict(list, a=[1]),
    lambda k, x: collections.Counter("ab"),
    lambda k, x: range(3),
    lambda k, x: range(k, k + 3),
    lambda k, x: ["a", "b"],
    lambda k, x: [b"a", b"b"],
    lambda k, x: [(1, 2), (3, 4)],
    lambda k, x: [("a", 1), ("b", 2)],
    lambda k, x: [[1, 2], [3]],
    lambda k, x: ([1], {"n": [k]}),
    lambda k, x: {"n": {"m": [1, 2]}},
    lambda k, x: [1.5, 2.5],
    lambda k, x: [1, 1.0, True],
    lambda k, x: [x, x + 1],
    lambda k, x: (x, 1),
    lambda k, x: {"t": x},
    lambda k, x: [x.shape[0], 2],
    lambda k, x: x.shape,
    lambda k, x: Pair(1, [2]),
    lambda k, x: types.SimpleNamespace(a=1, b=[2]),
    lambda k, x: types.MappingProxyType({"a": 1}),
    lambda k, x: [Thing(1), Thing(2)],
    lambda k, x: [Shade.DARK, Shade.LIGHT],
    lambda k, x: containing_itself(),
    lambda k, x: [None, (), ""],
    lambda k, x: slice(0, 2),
    lambda k, x: slice(None, None, -1),
]
CHANGING: list[Maker] = [lambda k, x: clearing([], 3), lambda k, x: clearing(collections.deque(), 3)]
ITERATORS: list[Maker] = [
    lambda k, x: iter([1, 2, 3]),
    lambda k, x: iter((1, k)),
    lambda k, x: iter({"a": 1}),
    lambda k, x: iter("ab"),
    lambda k, x: {"a": 1, "b": 2}.keys(),
    lambda k, x: {"a": 1, "b": k}.values(),
    lambda k, x: {"a": 1, "b": [k]}.items(),
    lambda k, x: generated(k),
    lambda k, x: (value for value in ("a", "b")),
    lambda k, x: map(first, [1, 2]),
    lambda k, x: filter(None, [0, 1, 2]),
    lambda k, x: zip([1, 2], "ab", strict=False),
    lambda k, x: enumerate(["a", "b"]),
    lambda k, x: reversed([1, 2, 3]),
    lambda k, x: itertools.chain([1], (2,)),
    lambda k, x: itertools.islice([1, 2, 3], 2),
]
CALLABLES: list[Maker] = [
    lambda k, x: first,
    lambda k, x: lambda *args: k,
    lambda k, x: raising,
    lambda k, x: operator.add,
    lambda k, x: operator.itemgetter(0),
    lambda k, x: functools.partial(first, k),
    lambda k, x: len,
    lambda k, x: str,
    lambda k, x: Thing,
    lambda k, x: abs,
    lambda k, x: lambda a, b=0: a,
]
OTHERS: list[Maker] = [
    lambda k, x: None,
    lambda k, x: Thing(k),
    lambda k, x: x,
    lambda k, x: x.sum(),
    lambda k, x: torch.float32,
    lambda k, x: torch.device("cpu"),
    lambda k, x: int,
    lambda k, x: list,
    lambda k, x: Ellipsis,
    lambda k, x: NotImplemented,
    lambda k, x: Shade.DARK,
    lambda k, x: ValueError("v", k),
    lambda k, x: Thing(x),
]


@functools.cache
def spy_makers(place: str) -> list[Maker]:
    """Makers of spies: instances of subclasses of builtins that log, and objects with one special method."""
    contents: dict[type, list[tuple]] = {
        int: [(1,), (2,), (0,)],
        float: [(1.5,), (0.0,)],
        complex: [(1j,)],
        str: [("abc",), ("a",)],
        bytes: [(b"ab",)],
        list: [([1, 2],), ([[1], 2],)],
        tuple: [((1, 2),), (("a", 1),)],
        dict: [({"a": 1},), ({1: [2]},)],
        set: [({1, 2},)],
        frozenset: [({1, 2},)],
        collections.deque: [([1, 2],)],
        collections.OrderedDict: [({"a": 1},)],
        collections.defaultdict: [(list, {"a": [1]})],
    }
    made: list[Maker] = []
    for base, options in contents.items():
        for number, cls in enumerate(spy_classes(base, place)):
            made.append(functools.partial(make_spy, cls, options[number % len(options)]))
    for cls in only_classes(place).values():
        made.append(functools.partial(make_spy, cls, ()))
    return made


def make_spy(cls, arguments, k, x):
    return cls(*arguments)


def holding(maker: Maker, kind: int) -> Maker:
    """A container around a value that a maker makes."""

    def make(k, x):
        value = maker(k, x)
        if kind == 0:
            return [value]
        if kind == 1:
            return (value, value)
        if kind == 2:
            return {"a": value}
        if kind == 3:
            return collections.deque([value, 1])
        if kind == 4:
            return [1, value]
        if kind == 5:
            return iter([value, value])
        if kind == 6:
            return {"a": value}.values()
        if kind == 7:
            return {value: 1}
        return {value}  # with more, the order could depend on addresses

    return make


# -- owners ---------------------------------------------------------------------------------------------------------


@functools.cache
def owners() -> dict[type, list[Maker]]:
    """Makers of instances of each class whose methods may run."""

    made: dict[type, list[Maker]] = {}
    for maker in NUMBERS + TEXTS + CONTAINERS + ITERATORS + CALLABLES + OTHERS + EXTRA + ENDLESS:
        made.setdefault(type(maker(0, torch.ones(3))), []).append(maker)
    return made


# Only as owners of their own methods: what goes through them does not come to an end.
ENDLESS: list[Maker] = [lambda k, x: itertools.count(k), lambda k, x: itertools.cycle([1, 2])]
EXTRA: list[Maker] = [
    lambda k, x: bytearray(b"abc"),
    lambda k, x: 3 + 4j,
    lambda k, x: slice(k, 5, 2),
    lambda k, x: staticmethod(first),
    lambda k, x: classmethod(first),
    lambda k, x: property(first),
    lambda k, x: types.CellType(k),
    lambda k, x: types.CellType(),
    lambda k, x: Thing(1).__init__,
    lambda k, x: first.__code__,
    lambda k, x: operator.attrgetter("value"),
    lambda k, x: operator.attrgetter("real", "imag"),
    lambda k, x: operator.methodcaller("count", 1),
    lambda k, x: operator.itemgetter(1, 0),
    lambda k, x: functools.partial(first, 1, 2),
    lambda k, x: functools.cmp_to_key(lambda a, b: a - b)(k),
    lambda k, x: list[int],
    lambda k, x: dict[str, int],
    lambda k, x: torch.finfo(torch.float32),
    lambda k, x: torch.iinfo(torch.int32),
    lambda k, x: Shade,
    lambda k, x: re.compile("(a)(?P<n>b)?"),
    lambda k, x: re.compile(b"a"),
    lambda k, x: re.compile("(a)(?P<n>b)?").match("abc"),
    lambda k, x: iter(b"ab"),
    lambda k, x: iter({1, 2}),
    lambda k, x: iter(range(3)),
    lambda k, x: iter(range(2**70, 2**70 + 2)),
    lambda k, x: iter({"a": 1}.items()),
    lambda k, x: iter({"a": 1}.values()),
    lambda k, x: iter(bytearray(b"ab")),
    lambda k, x: reversed({"a": 1}),
    lambda k, x: reversed({"a": 1}.items()),
    lambda k, x: reversed({"a": 1}.values()),
    lambda k, x: iter(collections.deque([1, 2])),
    lambda k, x: reversed(collections.deque([1, 2])),
    lambda k, x: iter(first, None),
    lambda k, x: iter(collections.OrderedDict(a=1)),
    lambda k, x: reversed(range(3)),
    lambda k, x: reversed("abc"),
    lambda k, x: collections.OrderedDict(a=1).keys(),
    lambda k, x: collections.OrderedDict(a=1).values(),
    lambda k, x: collections.OrderedDict(a=1).items(),
    lambda k, x: itertools.accumulate([1, 2]),
    lambda k, x: itertools.chain.from_iterable([[1], [2]]),
    lambda k, x: itertools.combinations([1, 2, 3], 2),
    lambda k, x: itertools.combinations_with_replacement([1, 2], 2),
    lambda k, x: itertools.compress("abc", [1, 0, 1]),
    lambda k, x: itertools.dropwhile(bool, [1, 0]),
    lambda k, x: itertools.filterfalse(None, [1, 0]),
    lambda k, x: itertools.groupby([1, 1, 2]),
    lambda k, x: itertools.pairwise([1, 2, 3]),
    lambda k, x: itertools.permutations([1, 2]),
    lambda k, x: itertools.product([1, 2], "a"),
    lambda k, x: itertools.repeat(k, 2),
    lambda k, x: itertools.starmap(first, [(1,), (2,)]),
    lambda k, x: itertools.takewhile(bool, [1, 0]),
    lambda k, x: itertools.tee([1, 2])[0],
    lambda k, x: itertools.zip_longest([1], "ab"),
    lambda k, x: super(Thing, Thing(1)),
    lambda k, x: StopIteration(k),
    lambda k, x: KeyError("key"),
    lambda k, x: OSError(2, "no", "file"),
    lambda k, x: ImportError("no", name="n"),
    lambda k, x: UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"),
    lambda k, x: BaseException("base", k),
    lambda k, x: ExceptionGroup("group", [ValueError(1)]),
    lambda k, x: object(),
]
