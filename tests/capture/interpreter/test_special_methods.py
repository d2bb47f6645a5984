"""Special methods: the order in which CPython asks operands, what ``None`` blocks, methods that are no functions."""

import abc
import collections
import dataclasses
import functools
import operator

from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable()

LOG: list = []


def logged(name, answer=NotImplemented):
    def method(self, *others):
        LOG.append(f"{type(self).__name__}.{name}")
        return answer

    return method


COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
ARITHMETIC = ("__add__", "__radd__", "__mul__", "__rmul__", "__or__", "__ror__", "__pow__", "__rpow__")
SIGNS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def silent_class(name, bases=(), methods=(), **answers):
    """A class whose operators tell that they were asked, and give no answer (or the one given)."""
    namespace = {method: logged(method) for method in methods}
    namespace.update({method: logged(method, answer) for method, answer in answers.items()})
    namespace.setdefault("__hash__", object.__hash__)
    return type(name, bases, namespace)


Plain = silent_class("Plain", methods=COMPARISONS + ARITHMETIC)
Other = silent_class("Other", methods=COMPARISONS + ARITHMETIC)
Inherits = silent_class("Inherits", (Plain,))
Overrides = silent_class("Overrides", (Plain,), COMPARISONS + ARITHMETIC)
OnlyReflected = silent_class("OnlyReflected", (Plain,), ("__radd__", "__gt__"))
EqualOnly = silent_class("EqualOnly", methods=("__eq__",))
EqualAnswers = silent_class("EqualAnswers", __eq__=True)
NotEqualOnly = silent_class("NotEqualOnly", methods=("__ne__",))
NotEqualChild = silent_class("NotEqualChild", (EqualOnly,), ("__ne__",))
NoMethods = silent_class("NoMethods")
LikeInt = type(
    "LikeInt", (int,), {name: logged(name) for name in COMPARISONS + ARITHMETIC} | {"__hash__": int.__hash__}
)
LikeList = type("LikeList", (list,), {name: logged(name) for name in ("__eq__", "__ne__", "__radd__", "__lt__")})
Abstract = abc.ABCMeta("Abstract", (), {name: logged(name) for name in COMPARISONS} | {"__hash__": object.__hash__})
Virtual = Abstract.register(silent_class("Virtual", methods=COMPARISONS))  # a subclass by decree only

CLASSES = (Plain, Other, Inherits, Overrides, OnlyReflected, EqualOnly, EqualAnswers, NotEqualOnly, NotEqualChild)
CLASSES += (NoMethods, LikeInt, LikeList)


def attempt(function, *operands):
    """The answer or error of an operation, and who was asked, in order."""
    LOG.clear()
    try:
        answer = function(*operands)
    except TypeError as error:
        answer = str(error)
    return answer, list(LOG)


def reset_log():
    LOG.clear()


def register(left, right):
    @program(X, name=f"comparing_{left.__name__}_and_{right.__name__}")
    def comparing(x):
        LOG.clear()
        found = []
        one, other = left(), right()
        for sign in SIGNS:
            found += [attempt(sign, one, other), attempt(sign, other, one)]
        LOG.clear()
        return x + len(found), found


for _left in CLASSES:
    for _right in (Plain, Overrides, EqualOnly, NotEqualChild, LikeInt):
        register(_left, _right)
register(Abstract, Virtual)


@program(X)
def arithmetic_orders(x):
    found = []
    for left in (Plain, Inherits, Overrides, OnlyReflected, NoMethods, LikeInt):
        for right in (Plain, Other, Inherits, Overrides, OnlyReflected, LikeInt):
            for sign in (operator.add, operator.mul, operator.or_, operator.iadd, operator.pow):
                found.append(attempt(sign, left(), right()))
    LOG.clear()
    return x + len(found), found


@program(X)
def builtins_and_classes(x):
    found = []
    for value in (1, 2.5, "s", None, (1,), [2], {3: 4}, {5}):
        for kind in (Plain, NoMethods, LikeInt, EqualAnswers):
            for sign in (operator.eq, operator.ne, operator.lt, operator.add, operator.mul, operator.iadd):
                found += [attempt(sign, value, kind()), attempt(sign, kind(), value)]
    LOG.clear()
    return x + len(found), found


# -- None blocks ----------------------------------------------------------------------------------------------------

BLOCKING = "add radd iadd sub mul neg eq ne lt gt iter contains hash getitem setitem delitem len bool call reversed"
BLOCKING = tuple(f"__{name}__" for name in f"{BLOCKING} next index int float enter exit abs invert".split())


class Everything:
    """Does it all; a subclass takes one thing away."""

    def __add__(self, other):
        return "add"

    __radd__ = __iadd__ = __sub__ = __mul__ = __add__

    def __neg__(self):
        return "neg"

    __invert__ = __abs__ = __neg__

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return True

    __lt__ = __gt__ = __eq__

    def __iter__(self):
        return iter([1, 2])

    __reversed__ = __iter__

    def __contains__(self, item):
        return True

    def __hash__(self):
        return 7

    def __getitem__(self, key):
        if key > 3:
            raise IndexError(key)
        return key

    def __setitem__(self, key, value):
        pass

    def __delitem__(self, key):
        pass

    def __len__(self):
        return 4

    __index__ = __int__ = __len__

    def __float__(self):
        return 4.0

    def __bool__(self):
        return True

    def __call__(self):
        return "called"

    def __next__(self):
        return 1

    def __enter__(self):
        return "entered"

    def __exit__(self, *details):
        return False


def entered(value):
    with value as inside:
        return inside


def unpacked(value):
    first, second = value
    return first, second


def stored(value):
    value[1] = 2
    del value[1]
    return "stored"


def added(value):
    value += 1
    return value


ACTIONS = (
    lambda value: value + 1,
    lambda value: 1 + value,
    lambda value: value - 1,
    lambda value: value * 2,
    lambda value: -value,
    lambda value: ~value,
    lambda value: abs(value),
    lambda value: value == 1,
    lambda value: value != 1,
    lambda value: 1 == value,
    lambda value: value < 1,
    lambda value: 1 < value,
    lambda value: [item for item in value],
    lambda value: list(value),
    lambda value: iter(value) is not None,
    lambda value: 1 in value,
    lambda value: hash(value),
    lambda value: {value: 1}[value],
    lambda value: value[1],
    lambda value: len(value),
    lambda value: bool(value),
    lambda value: not value,
    lambda value: "yes" if value else "no",
    lambda value: value(),
    lambda value: list(reversed(value)),
    lambda value: next(value),
    lambda value: [10, 20, 30, 40, 50][value],
    lambda value: int(value),
    lambda value: float(value),
    entered,
    unpacked,
    stored,
    added,
)


def outcome(action, value):
    try:
        return action(value)
    except TypeError as error:
        return type(error).__name__, str(error)


def register_blocked(name):
    blocked = type(
        "Blocked", (Everything,), {name: None, **({"__hash__": Everything.__hash__} if "eq" in name else {})}
    )

    @program(X, name=f"none_for{name}", fullgraph=name not in ("__iter__", "__reversed__", "__abs__"))
    def none_blocks(x):
        found = []
        for action in ACTIONS:
            found.append(outcome(action, blocked()))
        return x + 1, found


for _name in BLOCKING:
    register_blocked(_name)


class NoReflected:
    """``__radd__ = None`` means that nothing is to be tried."""

    __radd__ = __rmul__ = __rsub__ = None


class Adds:
    def __add__(self, other):
        return NotImplemented

    __mul__ = __sub__ = __add__


@program(X)
def none_blocks_the_reflected_method(x):
    found = []
    for sign in (operator.add, operator.mul, operator.sub):
        for value in (1, "s", [1], Adds(), object()):
            found.append(outcome(lambda value, sign=sign: sign(value, NoReflected()), value))
    return x + 1, found


# -- methods that are no functions ----------------------------------------------------------------------------------


class Adder:
    def __init__(self, by):
        self.by = by

    def __call__(self, *args):
        return ("called", self.by, len(args))


class Bound:
    def __get__(self, instance, owner):
        return lambda *args: ("bound", type(instance).__name__, owner.__name__, len(args))


def grouped(first, self, *rest):
    return (first, type(self).__name__, len(rest))


class Strange:
    __add__ = Adder(3)
    __sub__ = Bound()
    __mul__ = staticmethod(lambda other: ("static", other))
    __truediv__ = classmethod(lambda cls, other: ("class", cls.__name__, other))
    __pow__ = functools.partialmethod(lambda self, tag, other: (tag, other), "tag")
    __matmul__ = property(lambda self: lambda other: ("property", other))
    __lt__ = functools.partial(lambda tag, other: (tag, other), "partial")
    __or__ = dict
    __getitem__ = Adder(1)
    __len__ = staticmethod(lambda: 3)
    __bool__ = staticmethod(lambda: False)
    __iter__ = staticmethod(lambda: iter([1, 2]))
    __contains__ = staticmethod(lambda item: item == 5)
    __neg__ = Adder(9)
    __call__ = Adder(4)
    __repr__ = staticmethod(lambda: "strange")


@program(X)
def methods_of_other_kinds(x):
    value = Strange()
    found = [value + 1, value - 1, value * 2, value / 3, value**2, value @ 4, value < 5, value | {"a": 1}, -value]
    found += [value[1], len(value), bool(value), [item for item in value], 5 in value, 6 in value, value(1, 2)]
    found += [repr(value), list(value), not value]
    return x + len(value), found


class WithPartials:
    scaled = functools.partial(lambda *values, by: (len(values), by), by=2)
    kept = staticmethod(functools.partial(lambda value: value + 1))


class MorePartials(WithPartials):
    def parent(self):
        return super().scaled(1)


@program(X)
def partials_of_a_class(x):
    value = MorePartials()
    found = [value.kept(2), WithPartials.scaled(3), MorePartials.kept(4), WithPartials.scaled is MorePartials.scaled]
    found.append(value.scaled(5))
    found.append(value.parent())
    return x * 2, found


@program(X, 3)
def wrappers_made_inside(x, number):
    def function(value):
        """Text."""
        return value * number

    static = staticmethod(function)
    attribute = property(function, None, function, "another text")
    plain = property(function)
    of_class = classmethod(function)
    y = x + static(2)
    same = static.__func__ is function, attribute.fget is attribute.fdel, of_class.__func__ is function
    return y, same, attribute.fget(5), attribute.__doc__, plain.__doc__, static.__name__, static.__wrapped__ is function


# -- constructors ---------------------------------------------------------------------------------------------------


class NothingOwn:
    pass


class OwnNew:
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)


class OwnInit:
    def __init__(self, *args, **kwargs):
        super().__init__()


class PassesOnNew:
    def __new__(cls, *args):
        return object.__new__(cls, *args)


class PassesOnInit:
    def __init__(self, *args, **kwargs):
        object.__init__(self, *args, **kwargs)


@program(X)
def arguments_that_object_does_not_take(x):
    found = []
    for cls in (NothingOwn, OwnNew, OwnInit, PassesOnNew, PassesOnInit):
        found.append(outcome(lambda cls: type(cls(1)).__name__, cls))
        found.append(outcome(lambda cls: type(object.__new__(cls, 1)).__name__, cls))
        found.append(outcome(lambda cls: object.__init__(cls(), 1), cls))
        found.append(outcome(lambda cls: cls().__init__(1), cls))
        found.append(outcome(lambda cls: cls.__new__(cls, 1).__init__(1), cls))
        found.append(outcome(lambda cls: type(cls(named=1)).__name__, cls))
    found.append(outcome(lambda cls: object.__new__(cls), 5))
    return x + len(found), found


# -- what objects and classes have ----------------------------------------------------------------------------------


class Given:
    length = len
    made = object.__new__
    text = str.upper
    static = staticmethod(len)


NAMES = ("__new__", "__init__", "__call__", "__class__", "__init_subclass__", "__doc__", "__name__", "nothing")


def has(value):
    return [hasattr(value, name) for name in NAMES]


@program(X, Given(), functools.partial(max, 1))
def what_objects_have(x, outside, partial):
    inside = Given()
    values = (1, "s", [1], (2,), {3: 4}, None, Given, inside, outside, partial, functools.partial(min, 2), len, has)
    found = []
    for value in values:
        found.append(has(value))
    found += [outside.length([1, 2]), inside.length("abc"), outside.static([1]), Given.length((1,)), partial.func(1, 5)]
    return (
        x + len(found),
        found,
        inside.__new__ is object.__new__,
        type(inside.made(Given)).__name__,
        [1].__new__ is list.__new__,
    )


@dataclasses.dataclass
class Unhashable:
    """Equal by its fields, so it has no hash; and it stands where functions do."""

    by: int

    def __call__(self, *args):
        return self.by + len(args)


class Decorated:
    attribute = Unhashable(3)
    listed = [Unhashable(4)]
    __add__ = Unhashable(5)
    __mul__ = Unhashable(6)
    __getitem__ = Unhashable(7)


@program(X, [Unhashable(1)], {"k": (Unhashable(2),)})
def unhashable_objects_anywhere(x, items, mapping):
    made = Decorated()
    found = [items[0](1), mapping["k"][0](), made + 1, made * 2, made[0], made.attribute(), made.listed[0](1, 2)]
    found += [Unhashable(1) in items, items.index(Unhashable(1)), items == [Unhashable(1)], made.attribute.by]
    found += [sorted([2, 1], key=Unhashable(0)), list(map(items[0], [1, 2])), functools.partial(items[0], 1)(2)]
    found += [outcome(lambda value: {value: 1}, items[0]), outcome(hash, items[0])]
    items.append(Unhashable(9))
    return x + items[0].by, found, mapping


# -- iterators ------------------------------------------------------------------------------------------------------


class OnlyNext:
    def __next__(self):
        return 1


class BadIterator:
    def __iter__(self):
        return 5


class ItemsOnly:
    def __getitem__(self, index):
        if index == 3:
            raise IndexError
        return index * 10


def looped(value):
    return [item for item in value]


@program(X)
def what_is_iterable(x):
    found = [outcome(looped, kind()) for kind in (OnlyNext, BadIterator, ItemsOnly, NoMethods)]
    found += [outcome(unpacked, kind()) for kind in (OnlyNext, BadIterator, NoMethods)]
    found += [outcome(lambda value: 3 in value, kind()) for kind in (OnlyNext, BadIterator, NoMethods)]
    return x + len(found), found, 20 in ItemsOnly(), 25 in ItemsOnly(), next(OnlyNext())


class Sequence(collections.UserList):
    def __radd__(self, other):
        return ("radd", len(other))


@program(X)
def lists_ask_the_other_first(x):
    items = [1, 2]
    kept = items
    items += Sequence([3])
    more = [1]
    more += ItemsOnly()
    return x + 1, items, kept, [1] + Sequence([3]), more, (1,) + Sequence([1])


@TABLE.rows
def test_special_methods(program, args, expect):
    TABLE.run(program, args, expect)
