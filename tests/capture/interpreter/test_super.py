"""What ``super`` finds, and what it binds it to: the object or class it was made for, not the class it was found on."""

import builtins
import dis
import functools
import sys

import pytest

import kiln
from kiln.testing import same
from tests.support import program_helpers
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable()


class Described:
    """A descriptor that tells what it was asked with."""

    def __get__(self, instance, owner=None):
        return (None if instance is None else type(instance).__name__, owner.__name__)


class CachedDescribed(Described):
    """The same, but a data descriptor."""

    def __set__(self, instance, value):
        raise AttributeError("read only")


class Base:
    described = Described()
    set_too = CachedDescribed()
    label = "base"
    scale = 2

    def name(self):
        return f"Base.name of {type(self).__name__}"

    @classmethod
    def kind(cls, suffix="", *, by=1):
        return f"{cls.__name__}{suffix}{by}"

    @staticmethod
    def twice(value):
        return value * 2

    @property
    def doubled(self):
        return self.scale * 2

    @functools.partialmethod
    def half(self, value):
        return (self.scale, value)

    @classmethod
    def make(cls):
        made = cls.__new__(cls)
        made.made_by = cls.__name__
        return made

    def __len__(self):
        return 3

    def __getitem__(self, key):
        return (type(self).__name__, key)


class Middle(Base):
    label = "middle"


class Leaf(Middle):
    label = "leaf"
    scale = 5

    def name(self):
        return super().name()

    def kinds(self):
        return super().kind(), super().kind("!", by=2), super(Middle, self).kind()

    @classmethod
    def kind(cls, suffix="", *, by=1):
        return "leaf " + super().kind(suffix, by=by)

    @classmethod
    def two_argument_kind(cls):
        return super(Leaf, cls).kind("?"), super(Middle, cls).label, super().scale  # noqa: UP008

    @staticmethod
    def twice(value):
        return super(Leaf, Leaf).twice(value) + 1

    def described_here(self):
        return super().described, super().set_too, super(Leaf, type(self)).described

    @classmethod
    def described_on_class(cls):
        return super().described, super().set_too

    def attributes(self):
        return super().label, super().doubled, super().scale, super(Middle, self).label

    def statics(self):
        return super().twice(4), super(Leaf, self).twice(5)  # noqa: UP008

    def make_one(self):
        made = super().make()
        return type(made).__name__, made.made_by

    def __len__(self):
        return super().__len__() + 1

    def __getitem__(self, key):
        return super().__getitem__(key)

    def missing(self):
        try:
            return super().nothing
        except AttributeError as error:
            return str(error)


class Deeper(Leaf):
    pass


for _cls in (Leaf, Deeper):

    @program(X, _cls, name=f"instance_methods_of_{_cls.__name__}")
    def instance_methods(x, cls):
        leaf = cls()
        found = [leaf.name(), leaf.kinds(), leaf.kind("/"), leaf.described_here(), leaf.attributes(), leaf.statics()]
        return x + len(leaf), found, leaf.make_one(), leaf[7], leaf.missing()

    @program(X, _cls, name=f"class_methods_of_{_cls.__name__}")
    def class_methods(x, cls):
        found = [cls.kind(), cls.two_argument_kind(), cls.described_on_class(), cls.twice(2)]
        return x + len(found), found


@program(X, Deeper())
def object_from_outside(x, leaf):
    return x * len(leaf), leaf.kinds(), leaf.described_here(), leaf.attributes(), leaf.statics(), leaf.make_one()


@program(X)
def outside_of_a_class(x):
    leaf = Deeper()
    bound = super(Leaf, leaf)
    on_class = super(Middle, Deeper)
    method = bound.kind
    seen = [bound.kind(), bound.described, bound.label, bound.twice(3), method("m"), on_class.kind(), on_class.label]
    seen += [bound.__class__ is super, bound.__thisclass__.__name__, bound.__self__ is leaf, on_class.__self__.__name__]
    seen += [bound.__self_class__.__name__, on_class.name(leaf), on_class.described, type(bound) is super]
    return x + len(seen), seen


@program.breaking(X)
def one_argument(x):
    unbound = super(Leaf)
    leaf = Deeper()
    return x + 1, unbound.__get__(leaf, Deeper).kind(), unbound.__self__ is None, unbound.__thisclass__.__name__


class Registered:
    seen: tuple = ()

    def __init_subclass__(cls, tag="none", **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = (cls.__name__, tag)


@program.breaking(X)
def init_subclass(x):
    class Sub(Registered, tag="sub"):
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(tag="through", **kwargs)
            cls.second = cls.__name__

    class SubSub(Sub):
        pass

    return x + 1, Sub.tag, SubSub.tag, SubSub.second


class Left(Base):
    def name(self):
        return "left " + super().name()

    @classmethod
    def kind(cls, suffix="", *, by=1):
        return "left " + super().kind(suffix, by=by)


class Right(Base):
    def name(self):
        return "right " + super().name()

    @classmethod
    def kind(cls, suffix="", *, by=1):
        return "right " + super().kind(suffix, by=by)


class Diamond(Left, Right):
    def name(self):
        return "diamond " + super().name()

    def both(self):
        return super().kind(), self.kind(), super(Left, self).kind()


@program(X)
def diamond(x):
    made = Diamond()
    return x * 2, made.name(), made.both(), Diamond.kind()


class Meta(type):
    @property
    def shown(cls):
        return f"shown {cls.__name__}"

    def describe(cls):
        return f"meta {cls.__name__}"

    def __getitem__(cls, key):
        return (cls.__name__, key)


class SubMeta(Meta):
    def describe(cls):
        return "sub" + super().describe() + super().shown

    def __getitem__(cls, key):
        return super().__getitem__(key)


class WithMeta(metaclass=SubMeta):
    @classmethod
    def asked(cls):
        return cls.describe(), cls.shown, cls["k"]


@program(X)
def in_a_metaclass(x):
    return x + 1, WithMeta.describe(), WithMeta["item"], WithMeta.asked()


class DictChild(dict):
    @classmethod
    def fromkeys(cls, keys, value=None):
        made = super().fromkeys(keys, value)
        made.tag = cls.__name__
        return made

    def made(self):
        return type(super().fromkeys("ab", 1)).__name__


class DictGrandchild(DictChild):
    pass


@program.breaking(X)
def native_class_methods(x):
    made = DictGrandchild.fromkeys("xy", 2)
    return x + len(made), type(made).__name__, made.tag, dict(made), DictGrandchild().made()


class Wrong(Base):
    @staticmethod
    def no_arguments():
        return super().name()

    def other_object(self):
        return super(Wrong, 3).name()

    def not_a_class(self):
        return super(3, self).name()


@program(X, breaks_every=(None,))  # the messages of a continuation's super() are others
def errors(x):
    told = []
    for wrong in (Wrong.no_arguments, Wrong().other_object, Wrong().not_a_class):
        try:
            told.append(wrong())
        except (RuntimeError, TypeError) as error:
            told.append((type(error).__name__, str(error)))
    return x + 1, told


class Deleted(Base):
    def name(self):
        del self
        return super().name()


@program(X)
def tensor_of_another_class(x):
    try:
        super(Base, x).name()
    except TypeError as error:
        return x + 1, str(error)


@program(X, breaks_every=(None,))
def deleted_argument(x):
    try:
        return x, Deleted().name()
    except RuntimeError as error:
        return x + 1, str(error)


BOUND, ON_CLASS, UNBOUND = super(Leaf, Deeper()), super(Middle, Deeper), super(Leaf)


@program(X)
def super_objects_from_outside(x):
    bound, on_class, unbound = BOUND, ON_CLASS, UNBOUND
    seen = [bound.kind(), bound.described, bound.label, on_class.kind(), on_class.label, unbound.__self__ is None]
    return x + len(seen), seen, unbound.__thisclass__.__name__, bound.__self__ is bound.__self__, bound.make().made_by


class Properties(Base):
    @property
    def doubled(self):
        return super().doubled + 1

    @classmethod
    def reading_the_class(cls):
        return type(super().doubled).__name__, super().half is not None

    def __getattr__(self, name):
        return f"fallback {name}"

    def through_super(self):
        try:
            return super().anything
        except AttributeError:
            return "super asks no __getattr__"


@program(X)
def properties(x):
    made = Properties()
    return x + made.doubled, Properties.reading_the_class(), made.anything, made.through_super()


@TABLE.rows
def test_super(program, args, expect):
    TABLE.run(program, args, expect)


def inherited():
    """Two classes, one of which calls the other by ``super()``, and a program that calls that."""

    class Base:
        def scale(self, x):
            return x + 1

    class Derived(Base):
        def scale(self, x):
            return super().scale(x) * 2

    def program(x):
        return Derived().scale(x)

    return Base, Derived, program


def outcome(function):
    """What a function gives; what it raises, and what was being handled then."""
    try:
        return function(X)
    except RuntimeError as error:
        return str(error), error.__context__


def test_the_forms_of_super():
    """From 3.12 on `super().name` is one instruction, but not in a file that names `super` outside of functions."""
    merged = [
        "LOAD_SUPER_ATTR" in {one.opname for one in dis.get_instructions(made()[1].scale)}
        for made in (inherited, program_helpers.inherited)
    ]
    assert merged == [False, sys.version_info >= (3, 12)]


@pytest.mark.parametrize("made", [inherited, program_helpers.inherited], ids=["called", "merged"])
def test_super_that_a_global_shadows(monkeypatch, made):
    Base, _, program = made()
    compiled = kiln.compile(program, backend="eager")
    assert same(outcome(compiled), outcome(program))
    for other in (lambda *args: builtins.super(*args), lambda *args: Base() if not args else None):
        with monkeypatch.context() as patch:
            patch.setitem(program.__globals__, "super", other)
            assert same(outcome(compiled), outcome(program))
        assert same(outcome(compiled), outcome(program))


def test_deleted_argument_in_a_function_that_runs_in_eager():
    def outcome(function):
        try:
            return function([1])
        except TypeError as error:
            return str(error)

    assert outcome(kiln.compile(deleted_argument, backend="eager")) == outcome(deleted_argument)


def test_cell_of_the_class_emptied():
    _, Derived, program = inherited()
    cell = Derived.scale.__closure__[0]
    compiled = kiln.compile(program, backend="eager")
    assert same(outcome(compiled), outcome(program))
    del cell.cell_contents
    assert outcome(compiled) == outcome(program) == ("super(): empty __class__ cell", None)
    cell.cell_contents = Derived
    assert same(outcome(compiled), outcome(program))
