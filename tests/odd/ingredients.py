"""Odd values for generated programs: each entry of ``INGREDIENTS`` is an expression that makes one.

The classes below are legal and strange: sequences without an end, lengths that lie, comparisons that raise, objects
that refer to themselves. Each special method writes its name into ``LOG``, so that the order of calls is compared
with plain Python as well. A class without a natural end raises ``Exhausted`` after ``LIMIT`` calls: plain Python then
comes to an end with every use, and so must Kiln.
"""

from __future__ import annotations

import collections
import contextlib  # noqa: F401 - this and the next ones are for the expressions of INGREDIENTS
import enum
import functools  # noqa: F401
import itertools  # noqa: F401
import operator  # noqa: F401
import types
import weakref  # noqa: F401
from dataclasses import dataclass, field
from typing import NamedTuple

LIMIT = 300
LOG: list[str] = []


class Exhausted(Exception):
    """Raised by an object without an end after ``LIMIT`` calls."""


class Counted:
    """Base of the odd classes: logs calls and limits their number."""

    def __init__(self):
        self.calls = 0

    def note(self, name):
        LOG.append(name)
        self.calls = self.calls + 1
        if self.calls > LIMIT:
            raise Exhausted(name)


class EndlessItems(Counted):
    """``__getitem__`` answers every index."""

    def __getitem__(self, index):
        self.note("getitem")
        return 100


class EndlessList(list):
    """Native iteration ends; ``__getitem__`` would not."""

    def __getitem__(self, index):
        LOG.append("getitem")
        return 100


class EndlessTuple(tuple):
    def __getitem__(self, index):
        LOG.append("getitem")
        return 100


class EndlessDeque(collections.deque):
    def __getitem__(self, index):
        LOG.append("getitem")
        return 100


class ListWithIter(list):
    def __iter__(self):
        LOG.append("iter")
        return iter([7, 8])


class ListWithLength(list):
    def __len__(self):
        LOG.append("len")
        return 10**6


class EndlessIterator(Counted):
    def __iter__(self):
        self.note("iter")
        return self

    def __next__(self):
        self.note("next")
        return self.calls


class IteratorOfItself(Counted):
    def __iter__(self):
        self.note("iter")
        return self

    def __next__(self):
        self.note("next")
        return self


class RestartingIterator:
    """Goes on after its first ``StopIteration``."""

    def __init__(self):
        self.turn = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.turn += 1
        LOG.append(f"next {self.turn}")
        if self.turn % 3 == 0:
            raise StopIteration(self.turn)
        return self.turn


class LyingLength(Counted):
    def __len__(self):
        self.note("len")
        return 10**9

    def __getitem__(self, index):
        self.note("getitem")
        if index >= 3:
            raise IndexError(index)
        return index


class NegativeLength(Counted):
    def __len__(self):
        self.note("len")
        return -1


class TextLength(Counted):
    def __len__(self):
        self.note("len")
        return "three"


class LyingHint(Counted):
    def __iter__(self):
        self.note("iter")
        return iter((1, 2))

    def __length_hint__(self):
        self.note("length_hint")
        return 10**4


class RaisingHint(Counted):
    def __iter__(self):
        self.note("iter")
        return iter((1, 2))

    def __length_hint__(self):
        self.note("length_hint")
        raise ValueError("no hint")


class EqualToAll(Counted):
    def __eq__(self, other):
        self.note("eq")
        return True

    def __hash__(self):
        self.note("hash")
        return 1


class EqualToNone(Counted):
    def __eq__(self, other):
        self.note("eq")
        return False

    def __hash__(self):
        self.note("hash")
        return 1


class EqualRaises(Counted):
    def __eq__(self, other):
        self.note("eq")
        raise ValueError("not comparable")

    def __hash__(self):
        self.note("hash")
        return 1


class EqualIsText(Counted):
    def __eq__(self, other):
        self.note("eq")
        return "perhaps"

    def __ne__(self, other):
        self.note("ne")
        return ""

    def __lt__(self, other):
        self.note("lt")
        return "less"


class ChangingHash(Counted):
    def __hash__(self):
        self.note("hash")
        return self.calls


class HashRaises(Counted):
    def __hash__(self):
        self.note("hash")
        raise TypeError("not today")


class BoolRaises(Counted):
    def __bool__(self):
        self.note("bool")
        raise ValueError("undecided")


class BoolIsInt(Counted):
    def __bool__(self):
        self.note("bool")
        return 1


class Everything(Counted):
    """Every attribute is there and is the object itself."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        LOG.append(f"getattr {name}")
        return self

    def __call__(self, *args, **kwargs):
        self.note("call")
        return self


class DunderGetattr(Counted):
    """``__getattr__`` answers special names too; the interpreter must look only at the class."""

    def __getattr__(self, name):
        LOG.append(f"getattr {name}")
        return lambda *args: 5


class GetattrRecursion:
    def __getattr__(self, name):
        return getattr(self, name + "_")


class LyingClass(Counted):
    @property
    def __class__(self):  # not logged: how often C code asks for it is no promise of Python's
        return dict


class IndexFive(Counted):
    def __index__(self):
        self.note("index")
        return 5


class IndexText(Counted):
    def __index__(self):
        self.note("index")
        return "5"


class FloatOnly(Counted):
    def __float__(self):
        self.note("float")
        return 2.5


class IntSubclass(int):
    def __add__(self, other):
        LOG.append("add")
        return IntSubclass(int(self) + 10 * int(other))

    def __eq__(self, other):
        LOG.append("eq")
        return True

    __hash__ = int.__hash__


class FloatSubclass(float):
    def __radd__(self, other):
        LOG.append("radd")
        return "added"


class TextSubclass(str):
    def __str__(self):
        LOG.append("str")
        return "shown"

    def __format__(self, spec):
        LOG.append("format")
        return f"<{spec}>"

    def __add__(self, other):
        LOG.append("add")
        return "sum"


class DictWithMissing(dict):
    def __missing__(self, key):
        LOG.append("missing")
        return key


class DictWithGet(dict):
    def __getitem__(self, key):
        LOG.append("getitem")
        return 42

    def keys(self):
        LOG.append("keys")
        return ["a", "b"]


class MappingLike(Counted):
    def keys(self):
        self.note("keys")
        return iter(["a", "b"])

    def __getitem__(self, key):
        self.note("getitem")
        return key * 2 if isinstance(key, str) else key


class SelfKeys(Counted):
    def keys(self):
        self.note("keys")
        return self

    def __iter__(self):
        self.note("iter")
        return iter(["a"])

    def __getitem__(self, key):
        self.note("getitem")
        return self


class SetSubclass(set):
    def __contains__(self, item):
        LOG.append("contains")
        return item != 2

    def __iter__(self):
        LOG.append("iter")
        return iter((3, 1))


class Reflected(Counted):
    def __add__(self, other):
        self.note("add")
        return NotImplemented

    def __radd__(self, other):
        self.note("radd")
        return NotImplemented

    def __iadd__(self, other):
        self.note("iadd")
        return NotImplemented

    def __lt__(self, other):
        self.note("lt")
        return NotImplemented

    def __gt__(self, other):
        self.note("gt")
        return NotImplemented


class Blocked:
    __add__ = __iter__ = __len__ = __contains__ = __getitem__ = __hash__ = __bool__ = None


class ContextThatSuppresses(Counted):
    def __enter__(self):
        self.note("enter")
        return self

    def __exit__(self, kind, error, traceback):
        self.note(f"exit {kind and kind.__name__}")
        return True


class ContextThatRaises(Counted):
    def __enter__(self):
        self.note("enter")
        return 1

    def __exit__(self, *error):
        self.note("exit")
        raise KeyError("exit")


class ReprRaises(Counted):
    def __repr__(self):
        self.note("repr")
        raise ValueError("no text")


class ReprOfItself(Counted):
    def __repr__(self):
        self.note("repr")
        return f"<{self!s}>"

    def __str__(self):
        self.note("str")
        return repr(self) if self.calls < 5 else "deep"


class ReduceToItself(Counted):
    def __reduce__(self):
        self.note("reduce")
        return (list, ((1, 2),))


class DeepCopyGrows(Counted):
    def __deepcopy__(self, memo):
        self.note("deepcopy")
        return [self.calls]

    def __copy__(self):
        self.note("copy")
        return self


class Descriptor:
    def __get__(self, owner, kind):
        LOG.append("get")
        return (owner is None, kind.__name__)

    def __set__(self, owner, value):
        LOG.append("set")


class WithDescriptor(Counted):
    x = Descriptor()
    size = property(lambda self: LOG.append("size") or 4)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


class MetaCall(type):
    def __call__(cls, *args):
        LOG.append("meta call")
        return [cls.__name__, *args]

    def __iter__(cls):
        LOG.append("meta iter")
        return iter((1, 2))

    def __len__(cls):
        return 2

    def __getitem__(cls, key):
        return (cls.__name__, key)

    def __contains__(cls, key):
        return key == 1

    def __instancecheck__(cls, value):
        LOG.append("instancecheck")
        return isinstance(value, int | list)


class OddClass(metaclass=MetaCall):
    pass


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclass
class Point:
    x: int = 1
    y: list = field(default_factory=list)


@dataclass(order=True, frozen=True)
class Version:
    major: int = 1
    minor: int = 2


class Pair(NamedTuple):
    left: int = 1
    right: str = "b"


def cyclic_list():
    value = [1, 2]
    value.append(value)
    return value


def cyclic_dict():
    value = {"a": 1}
    value["self"] = value
    return value


def cyclic_tuple():
    inner = []
    value = (1, inner)
    inner.append(value)
    return value


def cyclic_object():
    value = types.SimpleNamespace(a=1)
    value.me = value
    return value


def cyclic_deque():
    value = collections.deque([1], maxlen=3)
    value.append(value)
    return value


def deep_list(depth=200):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def cyclic_error(length=2):
    errors = [ValueError(number) for number in range(length)]
    for one, other in zip(errors, [*errors[1:], errors[0]], strict=True):
        one.__context__ = other
    return errors[0]


def cyclic_cause():
    one, other = KeyError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def generator_of(*values):
    LOG.append("started")
    try:
        yield from values
    finally:
        LOG.append("finished")


def endless_generator():
    number = 0
    while True:
        number += 1
        if number > LIMIT:
            raise Exhausted("generator")
        yield number


def generator_with_return():
    got = yield 1
    got = yield got
    return got


def recursive_generator(depth):
    if depth:
        yield from recursive_generator(depth - 1)
    yield depth


def deep_recursion(depth):
    return 0 if depth == 0 else 1 + deep_recursion(depth - 1)


def endless_recursion(number=0):
    return endless_recursion(number + 1)


def finalized():
    """An object with a finalizer that logs."""

    class Finalized:
        def __del__(self):
            LOG.append("del")

    return Finalized()


INGREDIENTS: dict[str, str] = {
    name: f"{name}()"
    for name in (
        "EndlessItems EndlessIterator IteratorOfItself RestartingIterator LyingLength NegativeLength "
        "TextLength LyingHint RaisingHint EqualToAll EqualToNone EqualRaises EqualIsText ChangingHash "
        "HashRaises BoolRaises BoolIsInt Everything DunderGetattr GetattrRecursion LyingClass IndexFive "
        "IndexText FloatOnly MappingLike SelfKeys Reflected Blocked ContextThatSuppresses ContextThatRaises "
        "ReprRaises ReprOfItself ReduceToItself DeepCopyGrows WithDescriptor Slotted Point Version Pair "
        "cyclic_list cyclic_dict cyclic_tuple cyclic_object cyclic_deque deep_list cyclic_error cyclic_cause "
        "endless_generator generator_with_return finalized "
    ).split()
}
INGREDIENTS |= {
    "EndlessList": "EndlessList([1, 2])",
    "EndlessTuple": "EndlessTuple([1, 2])",
    "EndlessDeque": "EndlessDeque([1, 2])",
    "ListWithIter": "ListWithIter([1, 2, 3])",
    "ListWithLength": "ListWithLength([1, 2])",
    "IntSubclass": "IntSubclass(3)",
    "FloatSubclass": "FloatSubclass(1.5)",
    "TextSubclass": "TextSubclass('ab')",
    "DictWithMissing": "DictWithMissing(a=1)",
    "DictWithGet": "DictWithGet(a=1)",
    "SetSubclass": "SetSubclass({1, 2, 3})",
    "OddClass": "OddClass",
    "Color": "Color.RED",
    "Level": "Level.HIGH",
    "Flags": "Flags.A | Flags.B",
    "enum class": "Color",
    "generator": "generator_of(1, 2, 3)",
    "recursive generator": "recursive_generator(12)",
    "count": "itertools.count()",
    "cycle": "itertools.islice(itertools.cycle([1, 2]), 50)",
    "repeat": "itertools.repeat(4, 20)",
    "zip of itself": "(lambda it: zip(it, it))(iter([1, 2, 3, 4, 5]))",
    "tee": "itertools.tee([1, 2, 3])[0]",
    "chain": "itertools.chain([1], (2,), {3})",
    "sentinel iterator": "iter(functools.partial(next, itertools.count()), 5)",
    "map": "map(operator.neg, [1, 2])",
    "range": "range(10**12)",
    "big int": "10**400",
    "negative zero": "-0.0",
    "nan": "float('nan')",
    "infinity": "float('inf')",
    "complex": "complex(1, -0.0)",
    "text": "'a{}b'",
    "bytes": "b'ab'",
    "bytearray": "bytearray(b'ab')",
    "memoryview": "memoryview(b'ab')",
    "none": "None",
    "ellipsis": "...",
    "not implemented": "NotImplemented",
    "dict": "{'a': 1, 2: [3], (1, 2): None}",
    "dict view": "{'a': 1, 'b': 2}.items()",
    "dict keys": "{'a': 1, 'b': 2}.keys()",
    "mapping proxy": "types.MappingProxyType({'a': 1})",
    "default dict": "collections.defaultdict(list, a=[1])",
    "counter": "collections.Counter('abca')",
    "ordered dict": "collections.OrderedDict(b=1, a=2)",
    "chain map": "collections.ChainMap({'a': 1}, {'b': 2})",
    "frozen set": "frozenset({1, (2, 3)})",
    "bounded deque": "collections.deque([1, 2, 3], maxlen=2)",
    "user list": "collections.UserList([1, 2])",
    "slice": "slice(1, None, 2)",
    "partial": "functools.partial(max, 3)",
    "partial of partial": "functools.partial(functools.partial(int, base=2), '101')",
    "method": "[1, 2].append",
    "method wrapper": "[1, 2].__len__",
    "lambda": "lambda *args: len(args)",
    "class": "int",
    "union": "int | str",
    "alias": "list[int]",
    "exception": "ValueError('a', 1)",
    "exception group": "ExceptionGroup('g', [ValueError(1), KeyError(2)])",
    "weak reference": "weakref.ref(Color)",
    "cell": "(lambda value: (lambda: value))(3).__closure__[0]",
    "module": "operator",
    "property": "property(lambda self: 1)",
    "super": "super(EndlessList, EndlessList([1]))",
    "null context": "contextlib.nullcontext(3)",
    "suppress": "contextlib.suppress(ValueError)",
}

__all__ = [name for name in dir() if not name.startswith("_") and name != "annotations"]
