"""Views of dictionaries from outside: what they show is that of their dictionary, which may change between calls."""

import types
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict

import pytest
import torch

import kiln
from tests.support.program_table import ProgramTable
from tests.support.scenarios import Scenarios, play

X = torch.arange(3.0)


class Settings(dict):
    """A subclass of dict with attributes."""


class Ordered(OrderedDict):
    """A subclass of OrderedDict."""


def made_default(items):
    return defaultdict(int, items)


DICTIONARIES = (dict, OrderedDict, Settings, Ordered, made_default, Counter)
VIEWS = ("keys", "values", "items", "proxy")


def view_of(mapping, name):
    return types.MappingProxyType(mapping) if name == "proxy" else getattr(mapping, name)()


def member(x, view):
    return x + 1 if "c" in view or 3 in view or ("c", 3) in view else x - 1


def iterated(x, view):
    return x, [item for item in view], [*view], tuple(view), list(reversed(view))


def length(x, view):
    return x + len(view), bool(view)


def compared(x, view):
    same = view == {"a", "b", "c"}, view == {"a": 1, "b": 2, "c": 3}, view != {("a", 1), ("b", 2), ("c", 3)}
    return x, same


def sorted_view(x, view):
    return x, sorted(view), max(view), any(item in ("c", 3, ("c", 3)) for item in view), *map(str, view)


LOOKS = (member, iterated, length, compared, sorted_view)


def combined(x, view):
    return x, view & {"a", "c"}, view | {"z"}, view - {"a"}, view ^ {"a"}, view.isdisjoint({"c"}), view >= {"c"}


def in_argument(compiler, look):
    compiled = compiler(lambda x, view: look(x, view))
    return lambda x, view: compiled(x, view)


def in_attribute(compiler, look):
    holder = types.SimpleNamespace()
    compiled = compiler(lambda x, holder: look(x, holder.view))

    def call(x, view):
        holder.view = view
        return compiled(x, holder)

    return call


def in_cell(compiler, look):
    held = None

    def program(x):
        return look(x, held)

    compiled = compiler(program)

    def call(x, view):
        nonlocal held
        held = view
        return compiled(x)

    return call


def in_global(compiler, look):
    namespace = {"look": look}
    exec("def program(x): return look(x, VIEW)", namespace)
    compiled = compiler(namespace["program"])

    def call(x, view):
        namespace["VIEW"] = view
        return compiled(x)

    return call


def in_container(compiler, look):
    compiled = compiler(lambda x, held: look(x, held[0]["view"]))
    return lambda x, view: compiled(x, [{"view": view}])


PLACES = (in_argument, in_attribute, in_cell, in_global, in_container)


def changes(mapping):
    """Changes of a dictionary, one after the other."""
    yield
    mapping["c"] = 3
    yield
    yield  # nothing: an entry must fit again
    mapping["c"] = 4
    yield
    del mapping["a"]
    yield
    mapping["a"] = 1  # the same entries, in another order
    yield


COMBINATIONS = [(dict, place) for place in PLACES] + [(make, in_argument) for make in DICTIONARIES[1:]]


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("make, place", COMBINATIONS)
def test_a_view_shows_changes_of_its_dictionary(make, name, place):
    looks = (*LOOKS, combined) if name in ("keys", "items") else LOOKS
    for look in looks:

        def scenario(compiler, look=look):
            mapping = make({"a": 1, "b": 2})
            view = view_of(mapping, name)
            call = place(compiler, look)
            for _ in changes(mapping):
                yield call(X, view)

        seen = play(scenario, None)
        assert seen[2] == [], f"{look.__name__}: compiled again though nothing changed"


views = Scenarios()


@views()
def dictionary_and_its_keys(compiler):
    d = {"b": 2}
    f = compiler(lambda x, d, keys: x + d["c"] if "c" in keys else x + 1)
    yield f(X, d, d.keys())
    d.update(c=3)
    yield f(X, d, d.keys())
    yield f(X, d, {"b": 2}.keys())


@views()
def keys_before_the_dictionary(compiler):
    d = {"b": 2}
    f = compiler(lambda x, keys, d: (x + len(keys), d.setdefault("q", 1), len(keys), "q" in keys))
    keys = d.keys()
    yield f(X, keys, d)
    yield dict(d), list(keys)
    yield f(X, keys, {"b": 2})


@views()
def a_view_of_another_dictionary(compiler):
    f = compiler(lambda x, view: x + sum(view))
    yield f(X, {"a": 1, "b": 2}.values())
    yield f(X, {"a": 1, "b": 5}.values())
    yield f(X, OrderedDict(a=1, b=5).values())
    yield f(X, {"a": X, "b": 5}.values())


@views()
def the_view_itself_is_given_back(compiler):
    f = compiler(lambda x, view: (x + len(view), view))
    d = {"a": 1}
    for view in (d.keys(), d.values(), d.items(), types.MappingProxyType(d)):
        yield f(X, view)[1] is view


@views()
def a_proxy_of_a_mapping_in_python(compiler):
    f = compiler(lambda x, view: x + view["c"] if "c" in view else x + len(view))
    for mapping in (UserDict(a=1), ChainMap({"a": 1}, {"b": 2})):
        view = types.MappingProxyType(mapping)
        yield f(X, view)
        mapping["c"] = 3
        yield f(X, view)
        mapping["c"] = 5
        yield f(X, view)


@views()
def a_proxy_of_a_class_namespace(compiler):
    class Plain:
        number = 1

    f = compiler(lambda x, names: x + names["number"] if "number" in names else x)
    yield f(X, vars(Plain))
    Plain.number = 2
    yield f(X, vars(Plain))
    del Plain.number
    yield f(X, vars(Plain))


@views()
def a_proxy_made_inside(compiler):
    def program(x, d):
        view = types.MappingProxyType(d)
        return x + view["c"] if "c" in view else x + len(view), view.get("c", 7), list(view.items()), {**view}

    f = compiler(program)
    d = {"a": 1}
    for _ in changes(d):
        if "a" in d:
            yield f(X, d)


@views()
def a_proxy_made_inside_of_a_subclass(compiler):
    class Loud(dict):
        def __getitem__(self, key):
            return dict.__getitem__(self, key) * 2

        def __contains__(self, key):
            return key == "a"

        def get(self, key, default=None):
            return 17

    def program(x, d):
        view = types.MappingProxyType(d)
        return x + view["a"], "a" in view, "b" in view, view.get("a"), len(view)

    f = compiler(program)
    d = Loud(a=1, b=2)
    yield f(X, d)
    d["a"] = 2
    yield f(X, d)


@views()
def the_mapping_of_a_view(compiler):
    f = compiler(lambda x, d: (x, d.keys().mapping["a"], len(d.items().mapping)))
    d = {"a": 1}
    yield f(X, d)
    d["b"] = 2
    yield f(X, d)
    d["a"] = 2
    yield f(X, d)


@pytest.mark.parametrize("scenario, expected, options", views)
def test_views(scenario, expected, options):
    play(scenario, expected, **options)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_from_outside_is_captured_whole(name):
    view = view_of({"a": 1, "b": 2}, name)
    for look in (member, iterated, length, sorted_view):
        compiled = kiln.compile(look, backend="eager", fullgraph=True)
        assert str(compiled(X, view)) == str(look(X, view))


TABLE = program = ProgramTable()


@program({"a": 1, "b": X}, X)
def views_made_of_an_argument(d, x):
    keys, values, items = d.keys(), d.values(), d.items()
    d["c"] = x
    return len(keys), len(values), len(items), list(keys), values, items, "c" in keys


@TABLE.rows
def test_programs(program, args, expect):
    TABLE.run(program, args, expect)
