"""Dataclasses that are cheap to define behave as the standard library's do."""

import dataclasses
import inspect
from dataclasses import field

import pytest

from kiln.platform.light_dataclass import dataclass

OPTIONS = [
    {"eq": False},
    {},
    {"frozen": True},
    {"unsafe_hash": True},
    {"eq": False, "slots": True},
    {"slots": True},
    {"slots": True, "unsafe_hash": True},
]


def classes(make):
    @make
    class Base:
        """A base."""

        first: int
        items: list[int] = field(default_factory=list)
        shown: str = field(default="x", repr=False)

    @make
    class Derived(Base):
        """With a default of its own for a field of the base."""

        shown: str = "y"
        last: object = None

        def describe(self):
            return (self.first, self.items, self.shown, self.last)

    return Base, Derived


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_the_standard_library(options):
    ours, theirs = classes(dataclass(**options)), classes(dataclasses.dataclass(**options))
    for own, their in zip(ours, theirs, strict=True):
        assert list(inspect.signature(own).parameters) == list(inspect.signature(their).parameters)
        assert [item.name for item in dataclasses.fields(own)] == [item.name for item in dataclasses.fields(their)]
        one, other = own(1), their(1)
        assert repr(one) == repr(other)
        assert (one == own(1)) == (other == their(1))
        assert one.items == [] and one.items is not own(1).items
        assert dataclasses.replace(one, first=2, items=[3]).items == [3]
        assert vars(type(one)).get("shown") == vars(type(other)).get("shown") or "slots" in options
        with pytest.raises(TypeError):
            own()
    assert ours[1](1, [2], last=4).describe() == theirs[1](1, [2], last=4).describe() == (1, [2], "y", 4)


def answers(make):
    """What dataclasses say about equality, hashes and attributes that are no fields."""

    @make
    class Base:
        first: int
        unseen: int = field(default=0, compare=False)
        unhashed: int = field(default=0, hash=False)

    @make
    class Derived(Base):
        last: int = 0

    @make
    class Own:
        first: int

        def __eq__(self, other):
            return "own"

        def __hash__(self):
            return 7

    pairs = [(Base(1), Base(1)), (Base(1), Base(1, 2)), (Base(1), Base(1, 0, 3)), (Base(1), Base(2))]
    pairs += [(Base(1), Derived(1)), (Derived(1, last=2), Derived(1, last=2)), (Base(1), 1), (Own(1), Own(2))]
    yield [one == other for one, other in pairs]
    for one, other in pairs[:-2]:
        try:
            yield hash(one) == hash(other)
        except TypeError:
            yield "unhashable"
    yield hash(Own(1)) == 7
    for cls in (Base, Derived):
        yield cls.__dict__.get("__slots__")
        yield hasattr(cls(1), "__dict__")
        yield cls.__qualname__.endswith(cls.__name__), cls.__init__.__qualname__.endswith(f"{cls.__name__}.__init__")


@pytest.mark.parametrize("options", [option for option in OPTIONS if "frozen" not in option], ids=str)
def test_equality_hashes_and_slots(options):
    options_of_own = {name: value for name, value in options.items() if name != "unsafe_hash"}  # refused with __hash__

    def make_with(maker):
        return lambda cls: maker(**(options_of_own if cls.__name__ == "Own" else options))(cls)

    assert list(answers(make_with(dataclass))) == list(answers(make_with(dataclasses.dataclass)))


def test_fields_that_are_not_parameters():
    @dataclass(eq=False)
    class Made:
        size: int
        count: int = field(default=7, init=False)
        names: list[str] = field(default_factory=list, init=False)
        twice: int = field(init=False)

        def __post_init__(self):
            self.twice = 2 * self.size

    made = Made(3)
    assert (made.count, made.names, made.twice) == (7, [], 6)
    with pytest.raises(TypeError):
        Made(3, count=1)
    assert repr(made).endswith("Made(size=3, count=7, names=[], twice=6)")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_object_that_contains_itself(options):
    def describe(make):
        @make
        class Node:
            items: list[object] = field(default_factory=list)

        made = Node()
        made.items.append(made)
        return repr(made)

    assert describe(dataclass(**options)) == describe(dataclasses.dataclass(**options))


def test_a_repr_of_the_class_or_its_base_is_kept():
    class Base:
        def __repr__(self):
            return "base"

    @dataclass(eq=False)
    class Derived(Base):
        value: int

    assert repr(Derived(1)) == "base"
