"""A GuardProgram that has seen a dictionary notices every change to it, by whatever means, and no change that is none.

What is known of a dictionary is known as long as its state is the same (kiln/native/platform/dictionaries.h). Programs
change dictionaries at random; what the GuardProgram says is compared with the entries themselves.
"""

from __future__ import annotations

import gc
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from kiln import _native

KEYS = ("a", "b", "c", "d", 5)
VALUES = tuple([index] for index in range(6))


def same(a: object, b: object) -> bool:
    return a == b


def program_for(dictionary: dict[Any, Any]) -> _native.GuardProgram:
    """A program that holds as long as the dictionary has these keys in this order and these very values."""
    facts: list[tuple[str, Any, Any]] = [("keys", "", tuple(dictionary))]
    facts += [("is", key, value) for key, value in dictionary.items()]
    return _native.GuardProgram(
        registers=1,
        roots=1,
        constants=[],
        steps=[("table", 0, -1, (False, facts))],
        inputs=[],
        distinct=[],
        tensors=[],
        tensor_check=None,
        same_constant=same,
    )


def entries(dictionary: dict[Any, Any]) -> list[tuple[Any, int]]:
    return [(key, id(value)) for key, value in dictionary.items()]


def remove_from(dictionary: dict[Any, Any], key: Any) -> None:
    if key in dictionary:
        del dictionary[key]


CHANGES: dict[str, Callable[[dict[Any, Any], Any, Any], object]] = {
    "set": lambda d, key, value: d.__setitem__(key, value),
    "delete": lambda d, key, value: remove_from(d, key),
    "pop": lambda d, key, value: d.pop(key, None),
    "pop the last": lambda d, key, value: d.popitem() if d else None,
    "set a default": lambda d, key, value: d.setdefault(key, value),
    "update": lambda d, key, value: d.update({key: value}),
    "update by pairs": lambda d, key, value: d.update([(key, value)]),
    "join": lambda d, key, value: d.__ior__({key: value}),
    "clear": lambda d, key, value: d.clear(),
    "clear and fill": lambda d, key, value: (d.clear(), d.update({key: value})),
    "begin anew": lambda d, key, value: d.__init__({key: value}),
    "move to the end": lambda d, key, value: d.__setitem__(key, d.pop(key, value)),
    "look": lambda d, key, value: (d.get(key), list(d), d.copy(), d == {}, key in d),
}


class Derived(dict):  # type: ignore[type-arg]
    pass


def follow(dictionary: dict[Any, Any], changes: list[Callable[[], object]]) -> tuple[int, int]:
    """Make the changes one by one; how often the entries stayed as they were, and how often not."""
    stayed = changed = 0
    for change in changes:
        program, before = program_for(dictionary), entries(dictionary)
        assert program(dictionary) == () and program(dictionary) == ()  # now it knows the dictionary
        change()
        expected = entries(dictionary) == before
        stayed, changed = stayed + expected, changed + (not expected)
        for _ in range(2):
            assert (program(dictionary) == ()) is expected
    return stayed, changed


@pytest.mark.parametrize("kind", [dict, Derived])
def test_changes_of_a_dictionary(kind: type[dict[Any, Any]]) -> None:
    generator = random.Random(7)
    dictionary = kind(a=VALUES[0])
    names = sorted(CHANGES)

    def random_change() -> None:
        name, key, value = generator.choice(names), generator.choice(KEYS), generator.choice(VALUES)
        CHANGES[name](dictionary, key, value)

    stayed, changed = follow(dictionary, [random_change] * 3000)
    assert stayed > 300 and changed > 1000


class Plain:
    def __init__(self) -> None:
        self.a: Any = VALUES[0]
        self.b: Any = VALUES[1]


def set_a(thing: Any, value: object) -> None:
    thing.a = value


def set_c(thing: Any, value: object) -> None:
    thing.c = value


def delete_b(thing: Any, value: object) -> None:
    if "b" in vars(thing):
        del thing.b


ATTRIBUTE_CHANGES: list[Callable[[Any, object], None]] = [set_a, set_c, delete_b]


@pytest.mark.parametrize("dictionary_first", [True, False])
def test_changes_of_attributes(dictionary_first: bool) -> None:
    """CPython keeps attributes in the object itself, has instructions of its own for them once a function is warm, and
    makes the dictionary when it is asked for."""
    generator = random.Random(8)
    for change in ATTRIBUTE_CHANGES:  # warm: specialised for objects with and without a dictionary
        for index in range(60):
            thing = Plain()
            if index % 2:
                vars(thing)
            change(thing, VALUES[2])
    things = [Plain() for _ in range(40)]
    for thing in things:
        if dictionary_first:
            vars(thing)
        changes: list[Callable[[], object]] = []
        for _ in range(30):
            function, value = generator.choice(ATTRIBUTE_CHANGES), generator.choice(VALUES)
            changes.append(lambda thing=thing, function=function, value=value: function(thing, value))
        stayed, changed = follow(vars(thing), changes)
        assert stayed + changed == 30 and changed > 3


def test_attributes_read_through_the_object() -> None:
    """The table of an object's attributes follows the object to another dictionary."""
    thing = Plain()
    facts = [("is", "a", VALUES[0])]
    program = _native.GuardProgram(
        registers=1,
        roots=1,
        constants=[],
        steps=[("table", 0, -1, (True, facts))],
        inputs=[],
        distinct=[],
        tensors=[],
        tensor_check=None,
        same_constant=same,
    )
    assert program(thing) == () and program(thing) == ()
    thing.__dict__ = {"a": VALUES[1]}
    assert program(thing) is False
    thing.__dict__ = {"a": VALUES[0]}
    assert program(thing) == () and program(thing) == ()
    thing.__dict__["a"] = VALUES[1]
    assert program(thing) is False
    set_a(thing, VALUES[0])
    assert program(thing) == ()
    other = Plain()
    set_a(other, VALUES[3])
    assert program(other) is False and program(thing) == ()


def test_changes_of_globals() -> None:
    module = types.ModuleType("a_module")
    exec("def put(value):\n    global a\n    a = value\ndef drop():\n    global a\n    del a\n", module.__dict__)
    module.put(VALUES[0])
    for index in range(60):
        module.put(VALUES[index % 2])  # warm
    put, drop = module.put, module.drop
    generator = random.Random(9)
    changes: list[Callable[[], object]] = []
    for _ in range(200):
        value = generator.choice(VALUES)
        changes.append(lambda value=value: put(value))
    stayed, changed = follow(module.__dict__, [*changes, drop, lambda: setattr(module, "b", 1)])
    assert stayed > 10 and changed > 100


def test_a_dictionary_in_the_place_of_another() -> None:
    """What is known of a dictionary that died is not taken for what is known of one made at the same address."""
    program = None
    addresses: set[int] = set()
    reused = 0
    for index in range(200):
        dictionary = {"a": VALUES[index % 2]}
        program = program or program_for(dictionary)
        expected = index % 2 == 0
        reused += id(dictionary) in addresses
        addresses.add(id(dictionary))
        for _ in range(2):
            assert (program(dictionary) == ()) is expected
        del dictionary
    assert reused > 0


def test_attributes_of_an_object_that_dies() -> None:
    """The dictionary outlives its object, which held the values."""
    for _ in range(20):
        thing = Plain()
        kept = vars(thing)
        program = program_for(kept)
        assert program(kept) == () and program(kept) == ()
        del thing
        gc.collect()
        assert program(kept) == ()
        kept["a"] = None
        assert program(kept) is False


def test_many_programs_see_one_dictionary() -> None:
    dictionary = {"a": VALUES[0]}
    programs = [program_for(dictionary) for _ in range(20)]
    for value in (VALUES[1], VALUES[0], VALUES[2], VALUES[0]):
        assert all(program(dictionary) == () for program in programs)
        dictionary["a"] = value
        assert all((program(dictionary) == ()) is (value is VALUES[0]) for program in programs)
        dictionary["a"] = VALUES[0]
        assert all(program(dictionary) == () for program in programs)


def test_programs_that_die_leave_the_dictionary_alone() -> None:
    dictionary = {"a": VALUES[0]}
    for _ in range(50):
        program = program_for(dictionary)
        assert program(dictionary) == ()
    references = sys.getrefcount(dictionary)
    del program
    assert sys.getrefcount(dictionary) == references
    dictionary["a"] = VALUES[1]
    del dictionary
    gc.collect()
