"""Dictionaries of all kinds, sets and frozensets in captured code."""

# ruff: noqa: B905 (programs under test are written the way users write them)

import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict
from typing import NamedTuple, TypedDict

import torch

from kiln.testing import check
from tests.support.program_table import ProgramTable, X, Y

TABLE = program = ProgramTable()


# -- dict -----------------------------------------------------------------------------------------------------------


@program(X)
def dict_methods(x):
    d = {"a": x, "b": 1}
    d["c"] = x + 1
    d.update({"d": 2}, e=3)
    d.update([("f", 4)])
    got = d.get("a"), d.get("z"), d.get("z", 5)
    popped = d.pop("b"), d.pop("q", None)
    default = d.setdefault("g", []), d.setdefault("a", 9)
    default[0].append(x)
    last = d.popitem()
    copied = d.copy()
    del copied["a"]
    return d, got, popped, default[1], last, copied, list(d), len(d), "a" in d, "b" not in d


@program(X)
def dict_views(x):
    d = {"a": 1, "b": 2}
    keys, values, items = d.keys(), d.values(), d.items()
    d["c"] = 3
    both = keys & {"a", "c"}, keys | {"z"}, keys - {"a"}, keys ^ {"a", "q"}
    tests = (
        "c" in keys,
        3 in values,
        ("a", 1) in items,
        ("a", 2) in items,
        keys == {"a", "b", "c"},
        keys.isdisjoint({"q"}),
    )
    return x + sum(values), list(keys), list(items), both, tests, list(reversed(keys)), len(items)


@program({"a": X, "b": Y}, X)
def dict_views_of_an_argument(d, x):
    total = x
    for key, value in d.items():
        total = total + value * len(key)
    for value in d.values():
        total = total - value
    return total, list(d.keys()), [*d], sorted(d)


@program({"a": X, "b": Y}, X)
def dict_view_alive(d, x):
    keys, items = d.keys(), iter(d.items())
    first = next(items)
    x = x + 1
    d["a"] = x
    return list(keys), first, next(items), x, keys, d.values(), d.items()


@program(X)
def dict_operators(x):
    a, b = {"a": 1, "b": x}, {"b": 2, "c": 3}
    merged = a | b
    a |= b
    return (
        merged,
        a,
        {**b, "d": x},
        {"q": 1} == {"q": 1},
        {"q": 1} != {"q": 2},
        dict(a=1, b=2),
        dict([(1, x)]),
        dict(b, z=1),
    )


@program(X)
def dict_fromkeys(x):
    return dict.fromkeys("ab", x), dict.fromkeys([1, 2]), {i: x * i for i in range(3)}, dict(zip("ab", [x, 1]))


@program({"a": X, "n": {"b": [1]}}, Y)
def dict_argument_mutated(d, y):
    d["a"] = d["a"] + y
    d["n"]["b"].append(y)
    d["new"] = len(d)
    del d["n"]["b"][0]
    return d["a"]


@program({"a": 1, "b": 2, "c": 3}, X)
def dict_argument_reordered(d, x):
    d["a"] = d.pop("a")
    del d["b"]
    d["b"] = x
    return x + 1


@program({"a": 1}, X)
def dict_argument_cleared(d, x):
    d.clear()
    d["z"] = x
    return d


def test_keys_not_looked_at_may_vary():
    def program(d, x):
        d["out"] = x + d["in"]
        return len("in")

    calls = [({"in": 1}, X), ({"in": 1, "more": 2}, X), ({"other": 0, "in": 1}, X)]
    check(program, calls=calls, fullgraph=True, recompiles=0, breaks_every=(None, "line"))


def test_moved_key_with_other_keys_around():
    def program(d, x):
        value = d.pop("a")
        d["a"] = value
        return x + 1

    calls = [({"a": 1, "b": 2}, X), ({"a": 1, "b": 2, "c": 3}, X), ({"b": 1, "a": 2}, X), ({"a": 5}, X)]
    check(program, calls=calls, fullgraph=True, breaks_every=(None, "line"))


def test_changes_of_an_argument_are_noticed():
    def program(d, x):
        total = x
        for key in d:
            total = total + d[key]
        return total, "q" in d, len(d)

    calls = [({"a": 1}, X), ({"a": 2}, X), ({"b": 1}, X), ({"a": 1, "q": 2}, X), ({}, X), ({"q": 2, "a": 1}, X)]
    check(program, calls=calls, fullgraph=True, breaks_every=(None, "line"))


@program(X)
def dict_errors(x):
    caught = []
    for action in (lambda: {}["a"], lambda: {}.pop("b"), lambda: {}.popitem(), lambda: {[]: 1}, lambda: {1: 2}[3]):
        try:
            action()
        except (KeyError, TypeError) as error:
            caught.append((type(error).__name__, str(error)))
    return x + 1, caught


@program(X)
def dict_changed_while_iterating(x):
    d = {"a": 1}
    try:
        for key in d:
            d[key + "b"] = x
    except RuntimeError as error:
        return x, str(error)


@program(X)
def dict_keys_of_many_kinds(x):
    d = {
        1: "int",
        "1": "str",
        (1, "a"): "tuple",
        None: "none",
        2.5: "float",
        torch.float32: "dtype",
        int: "class",
        len: "f",
    }
    d[True] = "bool"
    d[frozenset([1])] = x
    return d, d[1], d[(1, "a")], d[torch.float32], d[int], d[len], d[frozenset({1})] + 1, d[None]


@program({1: X, (2, 3): Y, torch.float32: 1, None: 2})
def dict_argument_with_odd_keys(d):
    return d[1] + d[(2, 3)] + d[torch.float32], d[None], list(d)


def test_dict_keyed_by_tensors():
    def program(d, k, x):
        d[x] = 3
        return d[k] + x, k in d, x in d

    def arguments():
        k = torch.ones(3)
        return {k: torch.zeros(3)}, k, X.clone()

    check(program, make_args=arguments, breaks_every=(None, "line"))


# -- OrderedDict, defaultdict, Counter, ChainMap ---------------------------------------------------------------------


@program(X)
def ordered_dict(x):
    d = OrderedDict([("a", 1), ("b", x)])
    d["c"] = 3
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    first = d.popitem(last=False)
    return d, first, list(d), list(reversed(d)), d == OrderedDict(d), d == {"b": x} if False else 0, d | {"z": 1}


@program(OrderedDict(a=X, b=1), Y)
def ordered_dict_argument(d, y):
    d.move_to_end("a")
    d["c"] = y + d["a"]
    d["b"] += 1
    for key, value in d.items():
        y = y + value
    return y


@program(X)
def default_dict(x):
    d = defaultdict(list)
    d["a"].append(x)
    d["a"].append(1)
    d["b"]
    counts = defaultdict(int, z=1)
    for letter in "abca":
        counts[letter] += 1
    nested = defaultdict(lambda: defaultdict(int))
    nested[1][2] += 3
    return d, counts, dict(nested[1]), "q" in d, d.get("q"), len(nested)


@program(defaultdict(list, a=[X]), Y)
def default_dict_argument(d, y):
    d["a"].append(y)
    d["b"].append(y + 1)
    return d["c"], d.default_factory is list, len(d)


@program(X)
def counter(x):
    c = Counter("abracadabra")
    c.update("aaa")
    c["z"] += 2
    c.subtract({"a": 1})
    d = Counter(a=1, b=5)
    return x + c["a"], c.most_common(2), c["missing"], c + d, c - d, c & d, c | d, sorted(c.elements()), c.total(), c


@program(Counter(a=2), X)
def counter_argument(c, x):
    c["a"] += 1
    c.update(["b", "b"])
    return x + c["b"], c.most_common(1)


@program(X)
def chain_map(x):
    first, second = {"a": 1}, {"a": 2, "b": x}
    chain = ChainMap(first, second)
    chain["c"] = 3
    child = chain.new_child({"a": 9})
    return (
        chain["a"],
        chain["b"] + 1,
        first,
        dict(chain),
        child["a"],
        len(child),
        "b" in child,
        child.parents["a"],
        list(chain),
    )


@program({"a": 1}, {"b": X})
def chain_map_of_arguments(first, second):
    chain = ChainMap(first, second)
    chain["z"] = chain["b"] + chain["a"]
    return chain.get("q", 1), chain.maps[1] is second


@program(UserDict(a=1), UserList([1, 2]), X)
def user_dict_and_list(d, items, x):
    d["b"] = x + d["a"]
    items.append(x)
    items[0] = 5
    return d["b"], "a" in d, len(items), list(d), items[1:], d.data, UserDict(q=x)


@program(X)
def mapping_proxy(x):
    d = {"a": x}
    view = types.MappingProxyType(d)
    d["b"] = 1
    return view["a"] + 1, len(view), list(view), "b" in view, view.get("c")


class Config(dict):
    """Attribute access on a dictionary."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


class Registry(dict):
    """Overrides the item methods, counts, and has ``__missing__``."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.reads = 0

    def __getitem__(self, key):
        self.reads += 1
        return super().__getitem__(key)

    def __missing__(self, key):
        self[key] = value = len(self)
        return value


@program(Config(a=1, b=X), X)
def dict_subclass_attributes(config, x):
    config.c = config.b + config.a
    made = Config(z=x)
    made.y = 1
    return config.c * 2, hasattr(config, "q"), made, made.z, config.get("a"), {**config}


@program(Registry(a=1), X)
def dict_subclass_item_methods(registry, x):
    total = x + registry["a"] + registry["new"]
    made = Registry({"q": 1}, r=2)
    return total, registry.reads, made["q"], made["zz"], made, len(registry), registry.get("a")


class Movie(TypedDict):
    title: str
    score: torch.Tensor


class Named(NamedTuple):
    left: torch.Tensor
    right: int = 3

    def total(self):
        return self.left + self.right


@program(X)
def typed_dict_and_typed_named_tuple(x):
    movie = Movie(title="t", score=x)
    named = Named(x)
    return (
        movie,
        movie["score"] + 1,
        named,
        named.total(),
        named._replace(right=1).total(),
        Named.__annotations__.keys(),
    )


@program(Named(X, 1), {"title": "t", "score": X})
def typed_arguments(named, movie):
    left, right = named
    return named.total() + movie["score"], left, right, named._asdict(), isinstance(named, Named), Named._field_defaults


# -- sets -----------------------------------------------------------------------------------------------------------


@program(X)
def set_methods(x):
    s = {1, 2}
    s.add(3)
    s.discard(9)
    s.remove(1)
    s.update([4, 5], (6,))
    s.difference_update({5})
    t = {2, 3, 10}
    results = s | t, s & t, s - t, s ^ t, s.union([7]), s.intersection(t), s.difference(t), s.symmetric_difference(t)
    tests = s.issubset(t), s >= {2}, s > s, s.isdisjoint({99}), s == {2, 3, 4, 6}, 3 in s, {2} <= s, s.issuperset({2})
    s.intersection_update(t)
    s.symmetric_difference_update({1})
    copied = s.copy()
    s |= {50}
    s &= {50, 1}
    s -= {1}
    s ^= {2}
    copied.clear()
    return x + len(s), s, results, tests, copied


@program({1, 2, 3}, frozenset({"a"}), X)
def set_arguments(s, f, x):
    s.add(len(s) + 10)
    s.discard(1)
    total = x
    for item in sorted(s):
        total = total * item
    return total, f | {"b"}, "a" in f, s | {0}, f, len(f)


@program(X)
def frozensets(x):
    f = frozenset([1, 2])
    return x + len(f), f | {3}, f & {1}, {f: 1}[frozenset([2, 1])], f == {1, 2}, hash(f) == hash(frozenset([2, 1])), f


@program(X)
def set_errors(x):
    caught = []
    for action in (lambda: set().pop(), lambda: {1}.remove(5), lambda: {[]}, lambda: {1} | [2]):
        try:
            action()
        except (KeyError, TypeError) as error:
            caught.append((type(error).__name__, str(error)))
    return x, caught


@program({"x", "y"}, X)
def set_pop_all(s, x):
    count = 0
    while s:
        s.pop()
        count += 1
    return x + count


class Tags(set):
    """A subclass with a method."""

    def tag(self, name):
        self.add(name)
        return self


@program(Tags({"a"}), X)
def set_subclass(tags, x):
    tags.tag("b")
    made = Tags().tag("q")
    return x + len(tags), made, "q" in made


def test_sets_of_tensors():
    def program(s, k, x):
        s.add(x)
        return k in s, x in s, len(s), x + 1

    def arguments():
        k = torch.ones(3)
        return {k}, k, X.clone()

    check(program, make_args=arguments, breaks_every=(None, "line"))


GLOBAL_DICT = {"count": 0}


@program(X, calls=4)
def global_dict(x):
    GLOBAL_DICT["count"] += 1
    GLOBAL_DICT.setdefault("seen", []).append(GLOBAL_DICT["count"])
    return x * GLOBAL_DICT["count"]


@TABLE.rows
def test_mappings(program, args, expect):
    TABLE.run(program, args, expect)
