"""Objects: attributes, descriptors, methods, classes and their special methods, aliasing, cycles, mutation."""

import abc
import dataclasses
import enum
import types
from dataclasses import dataclass, field

import pytest
import torch

import kiln
from kiln.testing import check
from tests.support.program_table import M, ProgramTable, X, Y

TABLE = program = ProgramTable()


class Point:
    """Plain."""

    count = 0
    tags = ["a"]

    def __init__(self, x, y=0):
        self.x = x
        self.y = y

    def norm(self):
        return self.x * self.x + self.y

    @classmethod
    def origin(cls, y=0):
        return cls(0, y)

    @staticmethod
    def helper(value):
        return value + 1

    @property
    def double(self):
        return self.x * 2

    @double.setter
    def double(self, value):
        self.x = value / 2

    @double.deleter
    def double(self):
        self.x = None


# -- attributes -----------------------------------------------------------------------------------------------------


@program(Point(X, 1), X)
def attributes(point, x):
    point.x = point.x + x
    point.new = [x]
    point.y += 1
    del point.y
    return point.norm if False else point.x, hasattr(point, "y"), point.count, point.tags[0], point.__class__ is Point


@program(Point(X, 1))
def properties(point):
    before = point.double
    point.double = before + 4
    after = point.x
    del point.double
    return before, after, point.x, type(Point.double), isinstance(point, Point)


@program(Point(X, 1), X)
def methods(point, x):
    bound = point.norm
    made = Point.origin(y=3), point.origin(), Point.helper(x), point.helper(1)
    same = bound == point.norm, bound.__self__ is point, bound.__func__ is Point.norm, point.norm is point.norm
    return (
        bound(),
        made,
        Point.norm(point),
        same,
        [m() for m in [bound, point.norm]],
        bound.__name__,
        Point.norm.__name__,
    )


@program(X)
def made_inside(x):
    point = Point(x, 2)
    other = Point(point, [point])
    Point(x + 100)
    return point.norm(), other, point


def test_stored_on_an_argument():
    def program(holder, x):
        made = Point(x + 1)
        holder.child = made
        holder.children = [made, made]
        made.parent = holder
        return made.x

    check(program, make_args=lambda: (Point(0), X.clone()), fullgraph=True, breaks_every=(None, "line"))


def test_instance_attributes_that_change_are_noticed():
    def program(point, x):
        return x + point.y, getattr(point, "extra", "none"), hasattr(point, "z"), sorted(vars(point))

    def arguments():
        points = [Point(1, 2), Point(1, 3), Point(1, 2), Point(1, 2), Point(1, 2)]
        points[2].extra = 5
        points[3].z = None
        del points[4].x
        return [(point, X.clone()) for point in points]

    check(setup=lambda: (program, arguments()), breaks_every=(None, "line"))


@pytest.mark.parametrize("change", ["int", "list", "replaced", "method", "property", "removed", "shadowed", "base"])
def test_class_attributes_that_change_are_noticed(change):
    """Class attributes are read each time, also through instances, whatever they are."""

    def setup():
        class Base:
            inherited = 1

        class Kind(Base):
            number = 1
            items = [1]
            extra = "there"

            def method(self):
                return 1

            @property
            def prop(self):
                return 1

        kind = Kind()

        def program(step, x):
            found = (
                kind.number,
                list(kind.items),
                kind.method(),
                kind.prop,
                getattr(Kind, "extra", None),
                Kind.inherited,
            )
            result = x + Kind.number, found, kind.inherited, len(Kind.items)
            change_it()
            return result

        @kiln.disable
        def change_it():
            if change == "int":
                Kind.number += 1
            elif change == "list":
                Kind.items.append(2)
            elif change == "replaced":
                Kind.items = [5, 6]
            elif change == "method":
                Kind.method = lambda self: 2
            elif change == "property":
                Kind.prop = property(lambda self: 2)
            elif change == "removed":
                if "extra" in vars(Kind):
                    del Kind.extra
            elif change == "shadowed":
                kind.number = 77
            else:
                Base.inherited += 1

        return program, [(0, X), (1, X), (2, X)]

    check(setup=setup, breaks_every=(None, "line"))


# -- descriptors and attribute hooks ----------------------------------------------------------------------------------


class Typed:
    """A data descriptor that stores in the instance."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return getattr(instance, self.name, None)

    def __set__(self, instance, value):
        setattr(instance, self.name, ("typed", value))

    def __delete__(self, instance):
        delattr(instance, self.name)


class Computed:
    """A descriptor that is not a data descriptor: instance attributes win."""

    def __get__(self, instance, owner):
        return ("computed", owner.__name__, instance is None)


class Described:
    typed = Typed()
    computed = Computed()


@program(Described(), X)
def descriptors(owner, x):
    before = owner.typed, owner.computed, Described.computed, isinstance(Described.typed, Typed)
    owner.typed = x
    owner.computed = "instance wins"
    middle = owner.typed, owner.computed, vars(owner)["computed"]
    del owner.typed
    return x + 1, before, middle, owner.typed


class Hooked:
    """All four attribute hooks."""

    def __init__(self):
        object.__setattr__(self, "log", [])
        object.__setattr__(self, "store", {})

    def __getattr__(self, name):
        if name.startswith(("missing", "__")):
            raise AttributeError(f"no {name}")
        self.log.append("get " + name)
        return self.store.get(name, name)

    def __setattr__(self, name, value):
        self.log.append("set " + name)
        self.store[name] = value

    def __delattr__(self, name):
        self.log.append("del " + name)
        del self.store[name]


class Watched:
    def __init__(self, value):
        self.value = value

    def __getattribute__(self, name):
        if name == "secret":
            return 42
        if name.startswith("no_"):
            raise AttributeError(name)
        return super().__getattribute__(name)


@program(Hooked(), X)
def attribute_hooks(hooked, x):
    hooked.a = x
    hooked.b = 2
    found = hooked.a + hooked.b, hooked.unknown, hasattr(hooked, "missing_one"), getattr(hooked, "missing", "default")
    del hooked.b
    made = Hooked()
    made.q = x
    return found, hooked.log, made.store


@program(Watched(X), X)
def getattribute(watched, x):
    return watched.value + x, watched.secret, hasattr(watched, "no_x"), getattr(watched, "no_y", 1), Watched(x).secret


class Slotted:
    __slots__ = ("a", "b", "__weakref__")

    def __init__(self, a):
        self.a = a


class SlottedChild(Slotted):
    __slots__ = ("c",)


def slotted_child():
    made = SlottedChild(X.clone())
    made.c = [1]
    return made


@program(Slotted(X), slotted_child(), X)
def slots(slotted, child, x):
    slotted.b = slotted.a + x
    slotted.a = None
    child.c.append(2)
    child.b = x
    del child.a
    missing = hasattr(child, "a"), hasattr(slotted, "nope")
    made = SlottedChild(x)
    caught = None
    try:
        made.other = 1
    except AttributeError as error:
        caught = str(error)
    return slotted.b, missing, made, caught


def told(action, *args):
    try:
        action(*args)
    except AttributeError as error:
        return str(error)
    return None


@program(Slotted(1), X)
def missing_attributes_of_slotted_objects(slotted, x):
    found = []
    for value in (slotted, Slotted(2)):
        found += [told(delattr, value, "b"), told(getattr, value, "b")]
        found += [told(delattr, value, "c"), told(setattr, value, "c", 1), told(getattr, value, "c")]
    return x + 1, found


@program(Slotted(None), X)
def slot_that_was_none_deleted(slotted, x):
    del slotted.a
    return x + 1


# -- inheritance ------------------------------------------------------------------------------------------------------


class A:
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.trail = [*getattr(self, "trail", []), "A"]

    def who(self):
        return ["A"]

    @classmethod
    def make(cls):
        return [cls.__name__, "A"]

    @property
    def value(self):
        return 1


class B(A):
    def who(self):
        return ["B", *super().who()]

    @classmethod
    def make(cls):
        return ["B", *super().make()]

    @property
    def value(self):
        return super().value + 10


class C(A):
    def __init__(self, extra=None, **kwargs):
        self.extra = extra
        super().__init__(**kwargs)

    def who(self):
        return ["C", *super().who()]

    @property
    def value(self):
        return super().value + 100


class D(B, C):
    def who(self):
        return ["D", *super().who()]


@program(D(extra=1), X)
def multiple_inheritance(d, x):
    made = D(extra=x)
    checks = (
        isinstance(d, A),
        issubclass(D, C),
        D.__mro__[1] is B,
        [k.__name__ for k in D.__mro__],
        D.__bases__,
        super(B, d).who(),
    )
    return x + d.value, d.who(), D.make(), made, made.trail, checks, super(D, D).make(), made.extra + 1


class Shape(abc.ABC):
    registry: dict = {}

    def __init_subclass__(cls, sides=0, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.sides = sides
        Shape.registry[cls.__name__] = cls

    @abc.abstractmethod
    def area(self, x): ...

    def __class_getitem__(cls, item):
        return (cls.__name__, item)


class Square(Shape, sides=4):
    def area(self, x):
        return x * x


class Meta(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.by_meta = True
        return made

    @property
    def shout(cls):
        return cls.__name__.upper()

    def greet(cls):
        return "hello " + cls.__name__

    def __len__(cls):
        return 5

    def __contains__(cls, item):
        return item == 1

    def __iter__(cls):
        return iter([1, 2])


class WithMeta(metaclass=Meta):
    def __init__(self, value):
        self.value = value


class Singleton:
    instance = None

    def __new__(cls, *args):
        made = super().__new__(cls)
        made.via_new = args
        return made

    def __init__(self, *args):
        self.via_init = len(args)


@program(Square(), X)
def abstract_classes(square, x):
    caught = None
    try:
        Shape()
    except TypeError as error:
        caught = type(error).__name__
    return (
        square.area(x),
        Square.sides,
        Shape[int],
        Shape.registry["Square"] is Square,
        caught,
        Square().area(2),
        isinstance(square, Shape),
    )


@program(X)
def metaclasses(x):
    made = WithMeta(x)
    return (
        made.value + 1,
        made.by_meta,
        WithMeta.shout,
        WithMeta.greet(),
        len(WithMeta),
        1 in WithMeta,
        list(WithMeta),
        made,
    )


@program(X)
def python_new(x):
    made = Singleton(x, 1)
    return made.via_new[0] + 1, made.via_init, made


# -- special methods --------------------------------------------------------------------------------------------------


class Vector:
    """Operators, items, iteration, context, truth."""

    def __init__(self, *items):
        self.items = list(items)
        self.log = []

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        yield from self.items

    def __contains__(self, item):
        return any(item is i for i in self.items)

    def __add__(self, other):
        return Vector(*[a + b for a, b in zip(self, other, strict=False)])

    def __iadd__(self, other):
        self.items = [i + other for i in self.items]
        return self

    def __neg__(self):
        return Vector(*[-i for i in self])

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self, other, strict=False))

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(kind.__name__ if kind else None)
        return kind is KeyError

    def __call__(self, x, *, scale=1):
        return x * scale + len(self)

    def __eq__(self, other):
        return isinstance(other, Vector) and self.items == other.items


@program(Vector(1, X, 3), X)
def special_methods(v, x):
    v[0] = 5
    w = v + [1, 2, 3]
    v += 1
    del v[2]
    with v as entered:
        entered.items.append(x)
    with v:
        raise KeyError("swallowed")
    return (
        len(v),
        v[1],
        [*w],
        x in v,
        -w,
        w @ [1, 1, 1],
        v(x, scale=2),
        v.log,
        bool(Vector()),
        Vector(1) == Vector(1),
        entered is v,
    )


@program(Vector(1, 2), X)
def unpacking_objects(v, x):
    a, b = v
    first, *rest = v
    return x + a, b, first, rest, list(reversed(v)), max(v), sorted(v, reverse=True), dict(enumerate(v)), [*v, *v], {*v}


# -- dataclasses ------------------------------------------------------------------------------------------------------


@dataclass
class Item:
    x: torch.Tensor
    name: str = "n"
    tags: list = field(default_factory=list)
    computed: int = field(init=False, default=0, repr=False)

    def __post_init__(self):
        self.computed = len(self.name)


@dataclass(frozen=True)
class Frozen:
    a: int
    b: str = "b"


@dataclass(slots=True, order=True)
class Ordered:
    a: int
    b: int = 2


@dataclass
class Child(Item):
    more: int = 5


@program(Item(X, "name"), X)
def dataclasses_used(item, x):
    made = Item(x, tags=[1])
    made.tags.append(x)
    item.name = "changed"
    child = Child(x, more=7)
    other = dataclasses.replace(made, name="other")
    names = [f.name for f in dataclasses.fields(item)], dataclasses.is_dataclass(item), dataclasses.is_dataclass(Item)
    return made.x + item.x, made, child, other, names, item.computed, child.computed, Item(1, "q") == Item(1, "q")


@program(Frozen(1), X)
def frozen_dataclasses(frozen, x):
    caught = None
    try:
        frozen.a = 2
    except dataclasses.FrozenInstanceError as error:
        caught = str(error)
    d = {frozen: x, Frozen(2): 2}
    return (
        d[Frozen(1)] + 1,
        caught,
        frozen == Frozen(1),
        hash(frozen) == hash(Frozen(1)),
        {Frozen(1), Frozen(1)},
        repr(frozen),
        Frozen(3, "z"),
    )


@program(Ordered(1), X)
def slotted_dataclasses(item, x):
    item.b = x
    made = Ordered(3, 4)
    return made < Ordered(3, 5), sorted([Ordered(2), Ordered(1)]), made, max(Ordered(1), Ordered(2)).a + x, repr(made)


@program(Item(1, "name", [1, {"k": 2}]), X)
def dataclasses_as_dicts(item, x):
    return x, dataclasses.asdict(item), dataclasses.astuple(item), dataclasses.asdict(Item(1, tags=[Frozen(3)]))


# -- enums ---------------------------------------------------


class Color(enum.Enum):
    RED = 1
    GREEN = "g"
    CRIMSON = 1

    @property
    def nice(self):
        return self.name.lower()

    @classmethod
    def default(cls):
        return cls.RED


class Level(enum.IntEnum):
    LOW = 1
    HIGH = enum.auto()


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    AB = A | B


class Mode(enum.StrEnum):
    FAST = enum.auto()
    SLOW = "slooow"


@program(Color.RED, X)
def enums(color, x):
    looked_up = (
        Color(1),
        Color["GREEN"],
        Color("g").value,
        color.name,
        color.value,
        Color.CRIMSON is Color.RED,
        color.nice,
    )
    compared = color == Color.RED, color is Color.RED, color != Color.GREEN, color in Color, isinstance(color, Color)
    listed = (
        list(Color),
        [c.name for c in Color],
        len(Color),
        Color.default(),
        list(Color.__members__),
        {Color.RED: x}[color],
    )
    caught = None
    try:
        Color("nope")
    except ValueError as error:
        caught = str(error)
    return x + color.value, looked_up, compared, listed, caught, str(color), repr(color), f"{color}", type(color)


@program(Level.LOW, Mode.FAST, Flags.A, X)
def other_enums(level, mode, flags, x):
    integers = (
        level + 1,
        level < Level.HIGH,
        Level(2),
        sorted(Level),
        max(Level),
        int(level),
        level == 1,
        f"{level:03d}",
    )
    strings = mode + "!", mode == "fast", Mode("slooow"), mode.upper(), f"{mode}", str(mode), mode.value
    bits = (
        flags | Flags.B,
        Flags.AB & flags,
        flags in Flags.AB,
        ~flags,
        bool(flags & Flags.B),
        (flags | Flags.B) == Flags.AB,
        list(Flags.AB),
    )
    return x * level, integers, strings, bits, {level: 1, mode: 2}, level.name


@program({Color.RED: X, Level.LOW: 2}, [Color.GREEN])
def enums_in_containers(d, items):
    d[Color.GREEN] = d[Color.RED] + d[Level.LOW]
    return Color.GREEN in items, items.index(Color.GREEN), d[items[0]], d[1]


def test_enum_values_are_guarded():
    def program(color, x):
        if color is Color.RED:
            return x + 1
        return x * 2

    check(
        program, calls=[(Color.RED, X), (Color.GREEN, X), (Color.RED, X)], fullgraph=True, breaks_every=(None, "line")
    )


# -- aliasing and cycles ----------------------------------------------------------------------------------------------


def shared_points():
    shared = Point(X.clone())
    return [shared, shared], {"p": shared}, shared


def test_shared_objects_stay_shared():
    def program(items, d, point):
        items[0].x = items[1].x + 1
        d["p"].y = point.x * 2
        d["q"] = items[0]
        return point.y, items[0] is point, d["p"] is items[1]

    check(program, make_args=shared_points, fullgraph=True, breaks_every=(None, "line"))


def cyclic_object():
    parent, child = Point(X.clone()), Point(Y.clone())
    parent.child, child.parent, parent.me = child, parent, parent
    return (parent,)


def test_cyclic_objects():
    def program(parent):
        parent.me.me.x = parent.child.parent.child.x + parent.x
        made = Point(1)
        made.me = made
        made.parent = parent
        return made, parent.child.parent is parent

    check(program, make_args=cyclic_object, fullgraph=True, breaks_every=(None, "line"))


def test_objects_that_were_different_become_the_same():
    def program(a, b, x):
        a.x = x
        return b.x + 1, a is b

    def arguments(shared):
        point = Point(Y.clone())
        return (point, point if shared else Point(M.clone()[0]), X.clone())

    check(setup=lambda: (program, [arguments(False), arguments(True), arguments(False)]), breaks_every=(None, "line"))
    check(setup=lambda: (program, [arguments(True), arguments(False)]), breaks_every=(None, "line"))


# -- subclasses of immutable builtins ---------------------------------------------------


class Meters(float):
    unit = "m"

    def doubled(self):
        return Meters(self * 2)


class Name(str):
    def __new__(cls, text, kind="x"):
        made = super().__new__(cls, text.title())
        made.kind = kind
        return made

    def __getnewargs__(self):
        return (str(self), self.kind)


class Index(int):
    def __repr__(self):
        return f"Index({int(self)})"


@program(Meters(1.5), Name("ann", "k"), Index(2), X)
def constant_subclasses(meters, name, index, x):
    made = Name("bob", "z")
    lengths = meters + 1, meters.doubled(), meters.unit, type(meters.doubled()), meters > 1, Meters(3.0)
    texts = (
        name.kind,
        name + "!",
        len(name),
        name.upper(),
        made,
        made.kind,
        name == "Ann",
        {name: 1}["Ann"],
        isinstance(name, str),
    )
    return x * meters, x[index], lengths, texts, repr(index), index + 1, [10, 20, 30][index], name, index


def test_attributes_of_constant_subclasses_are_guarded():
    def program(name, x):
        return x + len(name.kind), name

    calls = [(Name("a", "k"), X), (Name("a", "long"), X), (Name("b", "k"), X)]
    check(setup=lambda: (program, list(calls)), breaks_every=(None, "line"))


# -- namespaces, nn.Parameter, exceptions, weak references ---------------------------------------------------


@program(types.SimpleNamespace(a=X, b=[1]), X)
def simple_namespaces(space, x):
    space.c = space.a + x
    space.b.append(2)
    made = types.SimpleNamespace(q=x, r=1)
    made.s = made.q + made.r
    del space.a
    return space.c, made, hasattr(space, "a"), vars(made)["r"], types.SimpleNamespace(a=1) == types.SimpleNamespace(a=1)


def test_namespace_changes_are_noticed():
    def program(space, x):
        return x + space.a, hasattr(space, "b")

    spaces = [types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), types.SimpleNamespace(a=1, b=3)]
    check(setup=lambda: (program, [(s, X) for s in spaces]), fullgraph=True, breaks_every=(None, "line"))


class Problem(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


@program(X)
def exceptions_made_inside(x):
    made = Problem("bad", x)
    try:
        raise made
    except Problem as problem:
        seen = problem.code + 1, problem.args, str(problem), problem is made
    return seen, isinstance(made, Exception), ValueError("a", 1).args, made.code


@program.breaking(X)
def weak_references(x):
    import weakref

    point = Point(x)
    reference = weakref.ref(point)
    return reference() is point, x + 1


@TABLE.rows
def test_objects(program, args, expect):
    TABLE.run(program, args, expect)
