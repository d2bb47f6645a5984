"""Containers and objects kept elsewhere (classes, modules, globals, closures, objects), shared, and written back."""

import collections
import types

import torch

import kiln
from kiln.testing import check
from tests.support.program_table import ProgramTable, X, Y

TABLE = program = ProgramTable()


class Holder:
    shared: list = [1]
    table: dict = {"n": 0}

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Queue(collections.deque):
    """A deque with an attribute."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pushed = 0

    def push(self, item):
        self.append(item)
        self.pushed += 1


class Ordered(collections.OrderedDict):
    def first(self):
        return next(iter(self))


class Defaults(collections.defaultdict):
    def total(self):
        return sum(self.values())


class Tally(collections.Counter):
    pass


class Frozen(frozenset):
    def biggest(self):
        return max(self)


class Key:
    """Hashes and compares by its name."""

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return isinstance(other, Key) and self.name == other.name


# -- order ------------------------------------------------------------


def test_order_of_attributes():
    def program(holder, x):
        value = holder.a
        del holder.a
        holder.c = x + 1
        holder.a = value
        return list(vars(holder))

    check(program, make_args=lambda: (Holder(a=1, b=2), X.clone()), fullgraph=True, breaks_every=(None, "line"))

    compiled = kiln.compile(program)
    holder = Holder(a=1, b=2)
    compiled(holder, X)
    assert list(vars(holder)) == ["b", "c", "a"]


def test_order_of_keys_with_unknown_keys_around():
    def program(d, x):
        d["a"] = d.pop("a")
        d["new"] = x
        return x + 1

    calls = [
        ({"a": 1, "b": 2}, X),
        ({"z": 0, "a": 1, "b": 2, "c": 3}, X),
        ({"a": 1}, X),
        ({"b": 1, "new": 5, "a": 2}, X),
    ]
    check(program, calls=calls, fullgraph=True, breaks_every=(None, "line"))


@program(collections.OrderedDict(a=1, b=2, c=3), X)
def ordered_dict_moved_to_the_front(d, x):
    d.move_to_end("c", last=False)
    d.move_to_end("a")
    return x + 1


def test_order_of_keys_that_stay_last():
    def program(d, x):
        value = d.pop("b")
        d["new"] = x
        d["b"] = value
        return x + 1

    check(program, calls=[({"a": 1, "b": 2}, X), ({"b": 2, "c": 3}, X)], fullgraph=True, breaks_every=(None, "line"))


# -- kept in classes, modules and globals -----------------------------------------------------------------------------


def test_containers_in_classes():
    def setup():
        kind = type("Kind", (Holder,), {"shared": [1], "table": {"n": 0}, "tensors": [X.clone()]})
        shared = kind.shared

        def program(holder, x):
            holder.shared.append(len(kind.shared))
            kind.table["n"] += 1
            kind.tensors[0] = kind.tensors[0] + x
            return x + kind.table["n"], holder.shared is shared, kind.tensors[0]

        return program, [(kind(), X), (kind(), X), (kind(), X)], (shared, kind.table, kind.tensors)

    check(setup=setup, fullgraph=True, breaks_every=(None, "line"))


MODULE = types.ModuleType("made_up")
REGISTRY: dict = {"functions": [], "holder": Holder(a=1)}


@program(X, calls=2)
def containers_in_globals(x):
    REGISTRY["holder"].a += 1
    REGISTRY["functions"].append(REGISTRY["holder"].a)
    REGISTRY[len(REGISTRY)] = x
    return x + REGISTRY["holder"].a, len(REGISTRY)


def test_containers_in_modules():
    def program(x):
        MODULE.items.append(MODULE.number)
        MODULE.number += 1
        MODULE.fresh = x
        return x + MODULE.number, hasattr(MODULE, "nothing"), list(MODULE.items), MODULE.fresh

    def setup():
        MODULE.items, MODULE.number = [1], 3
        return program, [(X,), (X,)]

    check(setup=setup, fullgraph=True, breaks_every=(None, "line"))
    assert MODULE.number == 5 and MODULE.items == [1, 3, 4]


def test_containers_in_closures():
    def setup():
        log, state = [], {"count": 0}

        def program(x):
            def note(value):
                log.append(value)
                state["count"] += 1
                return state["count"]

            return x + note("a") + note("b"), len(log)

        return program, [(X,), (X,)], (log, state)

    check(setup=setup, fullgraph=True, breaks_every=(None, "line"))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.calls = []
        self.cache = {}

    def forward(self, x):
        self.calls.append(len(self.calls))
        self.cache["last"] = x
        self.cache.setdefault("n", 0)
        self.cache["n"] += 1
        return self.linear(x) + self.cache["n"]


def test_containers_in_modules_of_networks():
    def setup():
        torch.manual_seed(0)
        net = Net()
        return net, [(X,), (Y,), (X,)]

    check(setup=setup, breaks_every=(None, "line"))


# -- subclasses ------------------------------------------------------------


def queue():
    made = Queue([1, X.clone()], 3)
    made.pushed = 2
    return made


@program(X)
def subclasses_made_inside(x):
    q, o, d = Queue([1], maxlen=2), Ordered(b=1, a=x), Defaults(int, a=1)
    q.push(x)
    q.push(2)
    d["b"] += 2
    t = Tally("aab")
    return q, o, o.first(), d, d.total(), t, t.most_common(1), Frozen([1, 3]).biggest(), Frozen([2])


@program(Ordered(b=X, a=1), Defaults(int, a=1), Tally("aab"), Frozen([1, 3]), X)
def subclasses_as_arguments(o, d, t, f, x):
    o["c"] = o["b"] + x
    d["z"] += 5
    t["b"] += t["q"]
    return o.first(), d.total(), t, f.biggest(), 3 in f, f | {9}


def test_subclass_of_deque_as_argument():
    def program(q, x):
        q.push(x)
        q.appendleft(q[0])
        return q.pushed, len(q), q.maxlen, q[-1] + 1

    check(program, make_args=lambda: (queue(), X.clone()), breaks_every=(None, "line"))


class Numbering(dict):
    """``__missing__`` reached by ``super().__getitem__``: it must not run past the interpreter."""

    def __getitem__(self, key):
        return super().__getitem__(key)

    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


class Shouting(collections.OrderedDict):
    """Native methods of an OrderedDict call this one."""

    def __setitem__(self, key, value):
        super().__setitem__(key.upper(), value)


def test_missing_keys_of_subclasses():
    def program(numbers, x):
        return x + numbers["a"] + numbers["new"], len(numbers)

    calls = [(Numbering(a=1), X), (Numbering(a=1, b=2), X), (Numbering(a=1), X)]
    check(program, calls=calls, breaks_every=(None, "line"))


def test_guards_do_not_fill_default_dictionaries():
    def program(d, x):
        d["z"] += 5
        return x + sum(d.values())

    def calls():
        first, second = Defaults(int, a=1), collections.defaultdict(int, a=1, b=2)
        return [(first, X), (Defaults(int, a=1, b=2), X), (first, X), (second, X), (second, X)]

    check(setup=lambda: (program, calls()), breaks_every=(None, "line"))


@program.breaking(Shouting(a=1), X)
def native_methods_that_call_overrides(d, x):
    d.update(b=x)
    d.setdefault("c", 3)
    made = Shouting(q=1)
    return d, made, d.copy(), d.pop("C"), Shouting.fromkeys("xy")


# -- keys that are objects ------------------------------------------------------------


def test_dictionaries_keyed_by_objects():
    def program(d, key, x):
        d[key] = d.get(key, 0) + x
        d[Key("new")] = 1
        return d[Key("a")] + 1, len(d), [k.name for k in d], Key("zzz") in d

    def arguments(name):
        return ({Key("a"): X.clone(), Key("b"): 2}, Key(name), Y.clone())

    check(program, make_args=lambda: arguments("a"), fullgraph=True, breaks_every=(None, "line"))
    check(
        setup=lambda: (program, [arguments("a"), arguments("b"), arguments("c"), arguments("a")]),
        breaks_every=(None, "line"),
    )


def test_dictionaries_keyed_by_plain_objects():
    def program(d, key, x):
        d[key] = d[key] + x
        made = Holder()
        d[made] = 5
        return d[made], len(d)

    def arguments():
        key = Holder()
        return {key: X.clone(), Holder(): 1}, key, Y.clone()

    check(setup=lambda: (program, [arguments(), arguments()]), breaks_every=(None, "line"))


def test_equality_with_effects_is_still_right():
    class Counting(Key):
        calls = []

        def __eq__(self, other):
            self.calls.append("eq")
            return super().__eq__(other)

        __hash__ = Key.__hash__

    def setup():
        Counting.calls = []

        def program(x):
            d = {Counting("a"): 1}
            return x + d[Counting("a")], len(Counting.calls)

        return program, [(X,), (X,)]

    check(setup=setup, breaks_every=(None, "line"))


# -- the same object in two places ------------------------------------------------------------


def test_results_share_what_arguments_share():
    def program(a, b, x):
        made = [x + 1]
        a.append(made)
        b["made"] = made
        made.append(a)
        return made, {"a": a, "again": made}

    check(program, make_args=lambda: ([0], {}, X.clone()), fullgraph=True, breaks_every=(None, "line"))


def test_moved_between_arguments():
    def program(a, b, x):
        a[0], b[0] = b[0], a[0]
        a[0].append(x)
        return a[0], b[0]

    check(program, make_args=lambda: ([[1]], [[2]], X.clone()), fullgraph=True, breaks_every=(None, "line"))


def test_argument_that_is_a_global():
    def setup():
        shared = [1]

        def program(items, x):
            items.append(x)
            shared.append(2)
            return len(items), len(shared)

        return program, [(shared, X), ([5], X), (shared, X)], shared

    check(setup=setup, breaks_every=(None, "line"))


@program([1, 2, 3, 4], X)
def iterators_of_arguments_feed_native_code(items, x):
    first = sum(iter(items)), max(reversed(items)), set(iter(items)), dict(zip(iter(items), items, strict=True))
    more = sorted(iter(items), reverse=True), "".join(map(str, iter(items))), list(filter(None, iter(items)))
    return x, first, more, any(iter(items)), {*iter(items)}, tuple(reversed(items)), list(map(float, iter(items)))


@program({"a": 1, "b": 2}, X)
def views_of_arguments_feed_native_code(d, x):
    numbers = sum(d.values()), max(d.values()), sorted(d.items()), set(d.values()), {v: k for k, v in d.items()}
    return x, numbers, dict(d.items()), list(d.values()), 2 in d.values(), d.items() == {"a": 1, "b": 2}.items(), min(d)


@program([[1, 2], [3]], [X], X)
def nested_arguments_compared(nested, tensors, x):
    return (
        nested == [[1, 2], [3]],
        nested < [[2]],
        [1, 2] in nested,
        nested.index([3]),
        nested.count([3]),
        str(nested),
        x,
    )


@program(types.SimpleNamespace(a=1, b=[2]), X)
def namespaces_compared(space, x):
    return space == types.SimpleNamespace(a=1, b=[2]), space != types.SimpleNamespace(a=2), x


@TABLE.rows
def test_kept(program, args, expect):
    TABLE.run(program, args, expect)
