"""Bound methods of builtin containers that come from outside: they see and change their owner, as in eager."""

import collections
import functools
import operator

import pytest
import torch

import kiln
from kiln.testing import check

X = torch.arange(3.0)


def test_methods_of_a_list_as_closures():
    def setup():
        log = []
        push, size = log.append, log.__len__

        def program(x):
            push(1)
            push(2)
            return x + size()

        return program, [(X,), (X,), (X,)], log

    check(setup=setup, fullgraph=True)


CONTAINERS = {
    "list": lambda: [3, 1, 2],
    "dict": lambda: {"a": 1, "b": 2},
    "ordered": lambda: collections.OrderedDict(a=1, b=2),
    "counter": lambda: collections.Counter("aab"),
    "default": lambda: collections.defaultdict(int, a=1),
    "set": lambda: {"a", 1},
    "deque": lambda: collections.deque([1, 2], 5),
}

# Methods that change and look, called in this order.
METHODS = {
    "list": [
        ("append", 7), ("__len__",), ("__getitem__", 0), ("__setitem__", 0, 5), ("__contains__", 5), ("index", 5),
        ("pop",), ("extend", [1, 2]), ("insert", 0, 9), ("__iadd__", [4]), ("__eq__", [9, 5, 1, 1, 2, 4]), ("count", 1),
        ("sort",), ("reverse",), ("__add__", [1]), ("__mul__", 2), ("__delitem__", 0), ("copy",), ("remove", 1),
    ],
    "dict": [
        ("get", "a"), ("get", "c", 9), ("__setitem__", "c", 3), ("__len__",), ("__contains__", "c"),
        ("setdefault", "d", 4), ("update", {"e": 5}), ("pop", "e"), ("__getitem__", "d"), ("__delitem__", "a"),
        ("__eq__", {"b": 2}), ("__or__", {"z": 1}), ("popitem",), ("copy",), ("__ior__", {"q": 1}),
    ],
    "set": [
        ("add", "c"), ("__len__",), ("__contains__", "c"), ("discard", 1), ("update", ["d"]), ("union", ["e"]),
        ("__eq__", {"a", "c", "d"}), ("remove", "a"), ("issubset", {"c", "d", 1}), ("__or__", {"z"}), ("copy",),
    ],
    "deque": [
        ("append", 7), ("appendleft", 0), ("__len__",), ("__getitem__", 0), ("rotate", 1), ("pop",), ("popleft",),
        ("extend", [4]), ("__contains__", 4), ("index", 4), ("copy",), ("count", 4), ("__iadd__", [1]),
    ],
}  # fmt: skip
METHODS |= {kind: METHODS["dict"] for kind in ("ordered", "default", "counter")}


@pytest.mark.parametrize("form", ["closure", "argument", "attribute", "item", "partial"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_each_method_sees_what_the_others_did(kind, form):
    def setup():
        owner = CONTAINERS[kind]()
        methods = [getattr(owner, name) for name, *_ in METHODS[kind]]
        arguments = [rest for _, *rest in METHODS[kind]]
        if form == "partial":
            methods = [functools.partial(method, *rest) for method, rest in zip(methods, arguments, strict=True)]
            arguments = [[] for _ in arguments]
        holder = type("Holder", (), {})()
        holder.methods = tuple(methods)

        def from_argument(x, methods):
            seen = []
            for method, rest in zip(methods, arguments, strict=True):
                seen.append(method(*rest))
            return x + len(seen), [value for value in seen if value is not owner]

        def from_attribute(x):
            return from_argument(x, holder.methods)

        def from_closure(x):
            return from_argument(x, methods)

        if form in ("argument", "partial"):
            return from_argument, [(X, methods), (X, methods)], owner
        if form == "item":
            return from_argument, [(X, dict(enumerate(methods)).values()), (X, tuple(methods))], owner
        return from_attribute if form == "attribute" else from_closure, [(X,), (X,)], owner

    check(setup=setup)


class Loud(list):
    """Its overrides are Python code that native methods, taken from ``super()``, do not run."""

    def append(self, value):
        super().append(("loud", value))

    def __len__(self):
        return 100

    def plain(self):
        return super().append, super().__len__


def test_methods_of_the_base_class_stay_those_of_the_base_class():
    def setup():
        owner = Loud()
        push, size = owner.plain()
        loud = owner.append

        def program(x):
            push(1)
            loud(2)
            return x + size(), len(owner), owner.__len__()

        return program, [(X,), (X,)], owner

    check(setup=setup)


def test_methods_of_dict_on_an_ordered_dictionary():
    def setup():
        owner = collections.OrderedDict(a=1, b=2)
        plain, ordered = super(collections.OrderedDict, owner).__iter__, owner.__iter__
        owner.move_to_end("a")

        def program(x):
            return x + 1, list(plain()), list(ordered())

        return program, [(X,), (X,)], owner

    check(setup=setup)


def test_another_owner_is_another_result():
    compiled = kiln.compile(lambda x, size: x + size(), backend="eager")
    for length in (0, 1, 2, 5):
        values = list(range(length))
        assert torch.equal(compiled(X, values.__len__), X + length)
        values.append(1)
        assert torch.equal(compiled(X, values.__len__), X + length + 1)


def test_another_method_of_the_same_owner():
    owner = Loud([1, 2])
    compiled = kiln.compile(lambda x, size: x + size(), backend="eager")
    assert torch.equal(compiled(X, owner.plain()[1]), X + 2)
    assert torch.equal(compiled(X, owner.__len__), X + 100)
    values = {"a": 1}
    answers = [kiln.compile(lambda x, method: (x + 1, method("a")), backend="eager") for _ in "a"][0]
    assert answers(X, values.get)[1] == 1
    assert answers(X, values.__contains__)[1] is True
    assert answers(X, values.__getitem__)[1] == 1


def test_iterators_move_on():
    def setup():
        step = iter([1, 2, 3, 4, 5, 6]).__next__
        again = iter({"a": 1, "b": 2}.items()).__next__
        numbers = iter(range(10)).__next__

        def program(x):
            return x + step() + step(), numbers(), again()

        return program, [(X,), (X,)], [step, numbers]

    check(setup=setup)


def test_methods_of_numbers_text_and_functions():
    def twice(x):
        return x * 2

    add, has, join, call = (5).__add__, "abc".__contains__, "-".join, twice.__call__
    less, negated, bits, hexed = (2.5).__lt__, (-3).__neg__, (7).bit_length, (0.5).hex

    def program(x):
        return call(x) + add(2), has("b"), join(["a", "b"]), less(3), negated(), bits(), hexed()

    check(program, X, calls=2)


def test_methods_of_numbers_that_vary():
    compiled = kiln.compile(lambda x, add: x + add(2), backend="eager")
    for number in (1, 2, 3, 4, 5):
        assert torch.equal(compiled(X, number.__add__), X + number + 2)


class Thing:
    """Compared and shown by methods of ``object``."""

    def __init__(self, n):
        self.n = n


def test_methods_of_object_on_instances():
    def setup():
        thing = Thing(1)
        same, put, get = thing.__eq__, thing.__setattr__, thing.__getattribute__

        def program(x):
            put("n", get("n") + 1)
            return x + thing.n, same(thing)

        return program, [(X,), (X,)], thing

    check(setup=setup)


class Named(dict):
    """A dictionary whose class methods are bound builtins."""


def test_class_methods_that_are_builtins():
    make, named, numbers = dict.fromkeys, Named.fromkeys, int.from_bytes

    def program(x):
        one, other = make("ab", 1), named("ab", 2)
        return x + one["a"] + numbers(b"\x01\x02", "big"), other, type(other)

    check(program, X, calls=2)


def test_what_is_returned_is_the_same_method():
    log = []
    push, size = log.append, log.__len__

    def program(x):
        push(3)
        return x + 1, push, size, size is size

    _, pushed, sized, same = kiln.compile(program, backend="eager")(X)
    assert pushed is push and sized is size and same
    assert sized() == 1


def test_bound_methods_made_inside_are_made_again():
    def program(x, values):
        push = values.append
        size = values.__len__
        plain = super(Loud, values).append
        plain(4)
        return x + 1, push, size, plain

    values = Loud()
    _, push, size, plain = kiln.compile(program, backend="eager")(X, values)
    push(1)
    plain(2)
    assert size() == 100
    assert list(values) == [4, ("loud", 1), 2]


def test_operators_over_bound_methods():
    def setup():
        counts = collections.Counter()
        bump, look = functools.partial(operator.setitem, counts), counts.__getitem__

        def program(x):
            for key in map(str, range(3)):
                bump(key, look(key) + 1)
            return x + sum(map(look, "012")), list(map(counts.get, "03")), list(filter(counts.__contains__, "0x1"))

        return program, [(X,), (X,)], counts

    check(setup=setup)
