"""Special methods in Python that native code would call by itself, past the interpreter."""

import collections

import pytest
import torch

import kiln
from kiln.capture.interpreter import native_calls
from kiln.testing import check


def logging(log, base, name):
    """A subclass of a builtin container that notes each call of one special method."""
    original = getattr(base, name)

    def method(self, *args):
        log.append(name)
        return original(self, *args)

    return type(f"Logging{base.__name__.title()}", (base,), {name: method})


def index(log, value):
    """An object that only `__index__` makes a number."""

    def method(self):
        log.append("__index__")
        return value

    return type("Index", (), {"__index__": method})()


def check_fresh(make, **options):
    """Check a program that `make(log)` makes, with its arguments: copies of them would run their methods."""

    def setup():
        log = []
        program, *args = make(log)
        return program, tuple(args), log

    check(setup=setup, grads=False, **options)


OBJECTS = {
    "dict.__contains__": lambda log: logging(log, dict, "__contains__")(a=1),
    "dict.__iter__": lambda log: logging(log, dict, "__iter__")(a=1),
    "defaultdict.__contains__": lambda log: logging(log, collections.defaultdict, "__contains__")(int, a=1),
    "OrderedDict.__contains__": lambda log: logging(log, collections.OrderedDict, "__contains__")(a=1),
    "OrderedDict.__iter__": lambda log: logging(log, collections.OrderedDict, "__iter__")(a=1),
    "tuple.__iter__": lambda log: logging(log, tuple, "__iter__")((1, [2])),
    "list.__iter__": lambda log: logging(log, list, "__iter__")((1, [2])),
    "set.__iter__": lambda log: logging(log, set, "__iter__")([1, 2]),
    "frozenset.__iter__": lambda log: logging(log, frozenset, "__iter__")([1, 2]),
    "frozenset.__len__": lambda log: logging(log, frozenset, "__len__")([1, 2]),
    "deque.__iter__": lambda log: logging(log, collections.deque, "__iter__")([1, 2]),
    "nested": lambda log: [{"a": logging(log, tuple, "__iter__")((1, 2))}],
}


@pytest.mark.parametrize("value", OBJECTS.values(), ids=OBJECTS.keys())
def test_looking_at_an_object_runs_none_of_its_methods(value):
    def make(log):
        def program(x, value):
            log.append("called")
            return x + 1, type(value).__name__, [value] == value, isinstance(value, dict), (0, value)[1] is value

        return program, torch.ones(2), value(log)

    check_fresh(make, calls=2)


CALLS = {
    "list.extend": (lambda v: [0].extend(v), lambda log: logging(log, list, "__len__")([1, 2])),
    "list": (lambda v: list(v), lambda log: logging(log, list, "__len__")([1, 2])),
    "list of a tuple": (lambda v: list(v), lambda log: logging(log, tuple, "__len__")([1, 2])),
    "tuple": (lambda v: tuple(v), lambda log: logging(log, list, "__iter__")([1, 2])),
    "set": (lambda v: sorted(set(v)), lambda log: logging(log, list, "__iter__")([1, 2])),
    "set.update": (lambda v: {0}.update(v), lambda log: logging(log, list, "__iter__")([1, 2])),
    "dict.update": (lambda v: {}.update(v), lambda log: logging(log, collections.OrderedDict, "__getitem__")(a=1)),
    "dict.update of keys": (lambda v: {}.update(v), lambda log: logging(log, collections.OrderedDict, "keys")(a=1)),
    "dict": (lambda v: dict(v), lambda log: logging(log, dict, "__iter__")(a=1)),
    "dict |": (lambda v: {"b": 2} | v, lambda log: logging(log, collections.defaultdict, "__getitem__")(int, a=1)),
    "dict !=": (lambda v: {"a": v} != {"a": [1]}, lambda log: logging(log, list, "__eq__")([1])),
    "deque": (lambda v: collections.deque(v), lambda log: logging(log, set, "__iter__")([1])),
    "list.pop": (lambda v: [1, 2, 3].pop(v), lambda log: index(log, 1)),
    "list.insert": (lambda v: [1, 2, 3].insert(v, 0), lambda log: index(log, 1)),
    "deque.rotate": (lambda v: collections.deque([1, 2, 3]).rotate(v), lambda log: index(log, 1)),
    "list.__mul__": (lambda v: [1].__mul__(v), lambda log: index(log, 2)),
    "enumerate": (lambda v: list(enumerate("ab", v)), lambda log: index(log, 2)),
    "str.ljust": (lambda v: "a".ljust(v), lambda log: index(log, 3)),
    "str.find": (lambda v: "abc".find("c", v), lambda log: index(log, 1)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(("call", "value"), CALLS.values(), ids=CALLS.keys())
def test_what_native_code_asks_an_argument_is_asked_in_every_call(call, value, dynamic):
    def make(log):
        return lambda x, value: (x + 1, call(value), len(log)), torch.ones(2), value(log)

    check_fresh(make, calls=3, dynamic=dynamic)


@pytest.mark.parametrize(
    ("base", "name"),
    [(collections.OrderedDict, "__setitem__"), (collections.OrderedDict, "__iter__"), (dict, "__setitem__")],
)
def test_constructors_set_items_once(base, name):
    def make(log):
        cls = logging(log, base, name)

        def program(x):
            made = cls([("a", 1), ("b", 2)])
            return x + 1, list(dict.items(made)), len(log)

        return program, torch.ones(2)

    check_fresh(make, calls=2)


class Clearing:
    """Equal to nothing, but what it is compared in becomes empty."""

    def __init__(self, container, log):
        self.container = container
        self.log = log

    def __eq__(self, other):
        self.log.append("__eq__")
        self.container.clear()
        return False


@pytest.mark.parametrize("kind", [list, collections.deque])
@pytest.mark.parametrize("method", ["count", "index", "remove"])
def test_a_container_that_comparisons_change(kind, method):
    def make(log):
        def program(x):
            made = kind()
            made.extend([Clearing(made, log), Clearing(made, log), 3])
            try:
                found = getattr(made, method)(3)
            except (ValueError, IndexError, RuntimeError) as error:
                found = type(error)
            return x + 1, found, len(made), len(log)

        return program, torch.ones(2)

    check_fresh(make, calls=2)


@pytest.mark.parametrize("bounds", [(), (1,), (-2,), (0, 2), (0, -1), (5,), (-9, 9)])
def test_places_of_objects_in_lists(bounds):
    class Same:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return isinstance(other, Same) and self.value == other.value

        def __repr__(self):
            return f"Same({self.value})"

    def program(x):
        made = [Same(1), Same(2), Same(3), Same(2)]
        try:
            place = made.index(Same(2), *bounds)
        except ValueError as error:
            place = str(error)
        return x + 1, place, made.count(Same(2)), made.count(2)

    check(program, torch.ones(2), fullgraph=True)


class Frozen(frozenset):
    pass


class Plain:
    pass


@pytest.mark.parametrize("element", [1, Plain()])
def test_attributes_of_a_subclass_of_frozenset_are_looked_at_each_time(element):
    def program(x, value):
        return x + value.scale, type(value), len(value)

    def made(scale):
        value = Frozen([element])
        value.scale = scale
        return value

    check(program, calls=[(torch.ones(2), made(1)), (torch.ones(2), made(2))])
    check(lambda x: (x, Frozen([2, 3])), torch.ones(2), calls=2)
    check(lambda x: (x, Frozen([x])), torch.ones(2), calls=2, grads=False)


def test_an_exception_that_holds_itself():
    def program(x):
        error = KeyError()
        error.args = (error,)
        return x + 1, error

    made = kiln.compile(program, backend="eager")(torch.ones(2))[1]
    assert type(made) is KeyError
    assert made.args[0] is made


@pytest.mark.parametrize("call", [lambda: bool(1, 2), lambda: bool(x=1)])
def test_truth_of_too_much(call):
    def program(x):
        try:
            call()
        except TypeError as error:
            return x + 1, str(error)

    check(program, torch.ones(2), fullgraph=True)


@pytest.mark.parametrize("call", [list, tuple, sum, enumerate, lambda cls: [*cls], lambda cls: dict.fromkeys(cls)])
def test_classes_that_are_iterables(call):
    def make(log):
        class Listing(type):
            def __iter__(cls):
                log.append("__iter__")
                return iter([1, 2])

        cls = Listing("Listed", (), {})
        return lambda x: (x + 1, str(call(cls))[:8], len(log)), torch.ones(2)

    check_fresh(make, calls=2)


@pytest.mark.parametrize("view", [dict.values, dict.keys, dict.items, iter], ids=lambda view: view.__name__)
@pytest.mark.parametrize("dynamic", [None, True])
def test_slices_keep_what_they_are_given(view, dynamic):
    def make(log):
        class Number(float):
            def __radd__(self, other):
                log.append("__radd__")
                return 1.0

        def program(x, number):
            made = slice(view(dict(a={3})), number, [number])
            return made.start, type(made.start).__name__, made.stop is number, made.step[0] is number, x + 1

        return program, torch.ones(2), Number(0.5)

    check_fresh(make, calls=2, dynamic=dynamic, fullgraph=True)


@pytest.mark.parametrize("call", ["setdefault", "pop", "copy"])
def test_methods_that_the_tables_do_not_know(call, monkeypatch):
    """The watch on native calls breaks the graph before they run on what stands for objects."""
    monkeypatch.setattr(native_calls, "runs_overrides", lambda function, args: None)

    def make(log):
        class Logging(collections.OrderedDict):
            def __setitem__(self, key, value):
                log.append(("set", key))
                super().__setitem__(key, value)

            def __getitem__(self, key):
                log.append(("get", key))
                return super().__getitem__(key)

        def program(x):
            table = Logging()
            if call == "setdefault":
                found = table.setdefault("a", 1)
            else:
                table["a"] = 2
                found = table.pop("a") if call == "pop" else len(table.copy())
            return x + 1, found, len(log)

        return program, torch.ones(2)

    check_fresh(make, calls=3)
