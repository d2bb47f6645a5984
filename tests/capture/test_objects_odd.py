"""Odd corners of objects and containers: right in every case, captured where it is common."""

import abc
import collections
import contextlib
import functools
import itertools
import types
import typing

import torch

import kiln
from kiln.testing import check
from tests.support.program_table import ProgramTable, X, Y

TABLE = program = ProgramTable()


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Other(Plain):
    def kind(self):
        return "other"


@program.breaking(Plain(a=1), X)
def class_of_an_instance_changed(plain, x):
    plain.__class__ = Other
    return plain.kind(), x + plain.a


@program.breaking(Plain(a=1), X)
def dictionary_of_an_instance_replaced(plain, x):
    fresh = {"b": 2}
    plain.__dict__ = fresh
    fresh["c"] = x
    return plain.b, hasattr(plain, "a"), plain.c


@program(Plain(a=1), X)
def dictionary_of_an_instance_used(plain, x):
    plain.__dict__["b"] = x
    plain.__dict__.update(c=3)
    del plain.__dict__["a"]
    return plain.b + plain.c, hasattr(plain, "a"), list(plain.__dict__)


class Tensorish:
    """Comparison that gives tensors, truth that asks an attribute."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == (other.value if isinstance(other, Tensorish) else other)

    def __lt__(self, other):
        return self.value < other

    def __bool__(self):
        return self.value.ndim == 1

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value, name)


@program(Tensorish(X), X)
def comparison_gives_tensors(t, x):
    return t == x, t < 1, bool(t), "yes" if t else "no", t.shape, t.sum(), not t


class Meta(type):
    registry: dict = {}

    def __new__(mcls, name, bases, namespace, **kwargs):
        cls = super().__new__(mcls, name, bases, namespace)
        mcls.registry[name] = cls
        return cls

    def __getattr__(cls, name):
        if name.startswith("auto_"):
            return name[5:]
        raise AttributeError(name)

    def __eq__(cls, other):
        return cls is other

    def __hash__(cls):
        return 7

    def __instancecheck__(cls, instance):
        return getattr(instance, "duck", False) or type.__instancecheck__(cls, instance)

    def __getitem__(cls, key):
        return (cls.__name__, key)


class Auto(metaclass=Meta):
    limit = 3


@program(Plain(duck=True), X)
def metaclass_hooks(duck, x):
    return (
        x,
        Auto.auto_hello,
        isinstance(duck, Auto),
        isinstance(3, Auto),
        Auto[1],
        Auto == Auto,
        {Auto: 1}[Auto],
        hasattr(Auto, "nope"),
        Auto.limit,
    )


class Lookup:
    """Attributes that a class body computed, nested classes, class-level lambdas and partials."""

    table = {k: k * 2 for k in range(3)}
    function = staticmethod(lambda x: x + 1)
    method = lambda self, x: x + self.table[1]
    bound = functools.partial(lambda a, b: a * b, 3)

    class Inner:
        value = 5

        def run(self, x):
            return x * self.value


@program(Lookup(), X)
def things_in_class_bodies(lookup, x):
    return (
        lookup.function(x),
        lookup.method(x),
        lookup.bound(x),
        Lookup.Inner().run(x),
        lookup.Inner.value,
        Lookup.table[2],
    )


class Tree:
    def __init__(self, value, *children):
        self.value = value
        self.children = list(children)

    def __iter__(self):
        yield self.value
        for child in self.children:
            yield from child

    def depth(self):
        return 1 + max((child.depth() for child in self.children), default=0)

    def map(self, function):
        return Tree(function(self.value), *(child.map(function) for child in self.children))


@program(Tree(X, Tree(Y, Tree(X)), Tree(Y)))
def recursive_objects(tree):
    doubled = tree.map(lambda t: t * 2)
    return sum(tree), tree.depth(), doubled, [t.ndim for t in doubled]


class Builder:
    def __init__(self):
        self.steps = []

    def add(self, step):
        self.steps.append(step)
        return self

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x


SCALE = 3


@program(Builder().add(torch.relu).add(torch.neg), X)
def callables_in_lists(builder, x):
    builder.add(lambda v: v * SCALE).add(functools.partial(torch.add, other=1)).add(Plain.__new__ and abs)
    return builder(x), len(builder.steps)


@program([lambda x: x + 1, lambda x: x * 2], {"neg": torch.neg, "abs": abs}, X)
def functions_in_arguments(functions, table, x):
    for function in functions:
        x = function(x)
    return table["neg"](x), table["abs"](-3), functions[0](1), [f.__name__ for f in functions]


def test_functions_of_one_code_with_other_closures():
    def make(n):
        return lambda x: x * n

    def program(function, x):
        return function(x), function is function

    check(setup=lambda: (program, [(make(2), X), (make(3), X), (make(2.5), X)]), breaks_every=(None, "line"))


def test_bound_methods_as_arguments():
    class Scaler:
        def __init__(self, scale):
            self.scale = scale

        def run(self, x):
            self.scale = self.scale + 1
            return x * self.scale

    def program(method, x):
        return method(x), method.__self__.scale, method.__name__

    def arguments(scale):
        return (Scaler(scale).run, X.clone())

    check(setup=lambda: (program, [arguments(1), arguments(1), arguments(5)]), breaks_every=(None, "line"))


class Interface(abc.ABC):
    @property
    @abc.abstractmethod
    def size(self): ...

    @classmethod
    def __subclasshook__(cls, other):
        return hasattr(other, "size") or NotImplemented


class Sized(Interface):
    size = 4


@program(Sized(), X)
def abstract_properties(sized, x):
    return (
        x + sized.size,
        isinstance(sized, Interface),
        issubclass(Sized, Interface),
        isinstance(x, Interface),
        isinstance(3, Interface),
    )


class Temporary:
    """A context manager that changes an attribute for a while."""

    def __init__(self, owner, value):
        self.owner, self.value = owner, value

    def __enter__(self):
        self.before = self.owner.a
        self.owner.a = self.value

    def __exit__(self, *error):
        self.owner.a = self.before


@program(Plain(a=1), X)
def temporarily_changed(plain, x):
    with Temporary(plain, 10):
        x = x + plain.a
        with contextlib.suppress(ValueError):
            plain.b = plain.a
            raise ValueError
    return x, plain.a, plain.b


@program(X)
def parameters_made_inside(x):
    parameter = torch.nn.Parameter(torch.ones(3))
    holder = Plain(parameter=parameter)
    return (
        x * parameter,
        isinstance(parameter, torch.nn.Parameter),
        holder.parameter is parameter,
        parameter.requires_grad,
    )


@program([1, 2, 3], X)
def unusual_list_calls(items, x):
    made = list.__new__(list)
    list.append(made, x)
    list.extend(made, items)
    got = (
        list.__getitem__(items, 0),
        items.__len__(),
        items.__contains__(2),
        items.__add__([9]),
        [].__eq__([]),
        items.__class__,
    )
    return made, got, type(items)(items), items.__iter__().__next__(), list.__len__(made)


@program({"a": 1}, X)
def unusual_dict_calls(d, x):
    got = (
        dict.get(d, "a"),
        d.__getitem__("a"),
        d.__contains__("b"),
        dict.keys(d),
        d.__len__(),
        dict(d) is d,
        d.__class__ is dict,
    )
    d.__setitem__("b", x)
    d.__delitem__("a")
    return got[:3], got[4:], list(got[3])


@program([X, 2], X)
def unbound_methods(items, x):
    append = items.append
    append(x)
    add = [].append
    add(1)
    pop = items.pop
    return pop(0), items, add.__self__, append.__name__, "".join, {}.get("q", 5), str.upper("a"), "a-b".split("-")


@program(X)
def star_expressions(x):
    def function(*args, **kwargs):
        return args, kwargs

    class_like = Plain(a=1)
    mapping = collections.OrderedDict(b=x)
    return (
        function(*[1, x], *(2,), **{"a": 1}, **mapping),
        [*range(3), *"ab"],
        {**vars(class_like), **mapping},
        function(*{"k": 1}, *{5}),
    )


class Mapping(collections.abc.Mapping):
    def __init__(self, data):
        self.data = data

    def __getitem__(self, key):
        return self.data[key]

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return len(self.data)


@program(Mapping({"a": X, "b": 2}), X)
def abstract_mappings(mapping, x):
    def function(**kwargs):
        return kwargs

    return (
        x,
        dict(mapping),
        list(mapping.items()),
        mapping.get("z", 1),
        "a" in mapping,
        function(**mapping),
        {**mapping},
        mapping == {"a": 1},
        len(mapping.values()),
    )


class Sequence(collections.abc.MutableSequence):
    def __init__(self, *items):
        self.items = list(items)

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]

    def __len__(self):
        return len(self.items)

    def insert(self, index, value):
        self.items.insert(index, value)


@program(Sequence(1, X), X)
def abstract_sequences(sequence, x):
    sequence.append(x)
    sequence.extend([3, 4])
    popped = sequence.pop()
    sequence.reverse()
    sequence += [7]
    return (
        list(sequence),
        popped,
        len(sequence),
        sequence.index(3),
        list(reversed(sequence)),
        sequence[1:3],
        3 in sequence,
    )


class Chunks(typing.NamedTuple):
    first: int
    rest: typing.Any = ()

    @property
    def count(self):
        return 1 + len(self.rest)

    @classmethod
    def of(cls, *items):
        return cls(items[0], items[1:])

    def __add__(self, other):
        return Chunks(self.first + other.first, self.rest + other.rest)


@program(Chunks(1, (X,)), X)
def named_tuples_with_methods(chunks, x):
    made = Chunks.of(x, 1, 2)
    match made:
        case Chunks(first=first, rest=(1, two)):
            matched = first + two
    return chunks.count, made, chunks + made, matched, made._replace(rest=None), made[0] + 1, isinstance(made, tuple)


@program({"kind": "add", "value": X}, Plain(a=[1, 2]), X)
def structural_matching(d, plain, x):
    match d:
        case {"kind": "add", "value": value, **rest}:
            x = x + value
    match plain:
        case Plain(a=[first, *others]):
            x = x * first
    match [1, (2, x)]:
        case [int(one), (two, tensor)] if one < two:
            x = x + tensor
    return x, rest, others


@program([1, 2, 3, 4, 5, 6], X)
def iterators_shared(items, x):
    iterator = iter(items)
    pairs = list(zip(iterator, iterator, strict=False))
    again = iter(items)
    first = list(itertools.islice(again, 2))
    rest = sum(again)
    return x, pairs, first, rest, list(again), list(map(lambda a, b: a + b, iter(items), items))


@program(X)
def comprehension_scopes(x):
    rows = [[i * j for j in range(3)] for i in range(3)]
    flat = [value for row in rows for value in row if value]
    functions = [lambda: i for i in range(3)]
    index = {k: [x * v for v in vs] for k, vs in {"a": [1], "b": [2, 3]}.items()}
    return (
        rows,
        flat,
        [f() for f in functions],
        index,
        {i % 2 for i in range(5)},
        sum(i for i in range(4) if (lambda n: n > 1)(i)),
    )


@kiln.disable
def rebind(plain):
    plain.items = plain.items + [len(plain.items)]


def test_attributes_rebound_between_calls():
    def program(plain, x):
        total = x
        for item in plain.items:
            total = total + item
        rebind(plain)
        return total, len(plain.items)

    def setup():
        plain = Plain(items=[1])
        return program, [(plain, X), (plain, X), (plain, X)]

    check(setup=setup, breaks_every=(None, "line"))


def test_global_class_replaced():
    def setup():
        namespace = {"Kind": type("Kind", (), {"value": 1})}
        code = "def program(x):\n    made = Kind()\n    return x + made.value, isinstance(made, Kind)\n"
        exec(code, namespace)

        @kiln.disable
        def swap():
            namespace["Kind"] = type("Kind", (), {"value": namespace["Kind"].value + 1})

        def program(x):
            result = namespace["program"](x)
            swap()
            return result

        return program, [(X,), (X,), (X,)]

    check(setup=setup, breaks_every=(None, "line"))


@program(types.SimpleNamespace(model=Plain(layers=[Plain(w=X), Plain(w=Y)])), X)
def deep_paths(space, x):
    for layer in space.model.layers:
        x = x * layer.w
        layer.w = x
    space.model.layers[0], space.model.layers[1] = space.model.layers[1], space.model.layers[0]
    space.model.layers.append(space.model)
    return x


@TABLE.rows
def test_odd(program, args, expect):
    TABLE.run(program, args, expect)


def test_special_methods_keep_to_the_order_of_effects():
    """Their cells are outside: what they change is written back after the graph, in order, and not while tracing."""

    def setup():
        log = ["start"]

        class Meta(type):
            def __call__(cls, *args):
                log.append("call")
                return super().__call__(*args)

            def __getattr__(cls, name):
                log.append(name)
                return len(log)

            def __getitem__(cls, key):
                log.append(key)
                return len(log)

            def __instancecheck__(cls, value):
                log.append("check")
                return True

        class Thing(metaclass=Meta):
            def __getattribute__(self, name):
                log.append(name)
                return len(log)

            def __setattr__(self, name, value):
                log.append((name, value))

            def __delattr__(self, name):
                log.append(("deleted", name))

        def program(x):
            thing = Thing()
            thing.a = 1
            del thing.b
            found = thing.c, Thing.d, Thing["e"], isinstance(3, Thing)
            log.append("end")
            return x + len(log), found

        return program, [(X,), (X,)], log

    check(setup=setup)
