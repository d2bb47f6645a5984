"""The standard library that model code uses: functools, itertools, operator, math, collections, copy, inspect …"""

# ruff: noqa: UP045 (programs under test are written the way users write them)

import collections
import collections.abc
import contextlib
import copy
import enum
import functools
import heapq
import inspect
import itertools
import json
import logging
import math
import operator
import os
import random
import re
import string
import time
import typing
import warnings
from dataclasses import dataclass, field

import pytest
import torch

import kiln
from kiln.testing import check
from tests.support.program_table import M, ProgramTable, X, Y

TABLE = program = ProgramTable()


# -- functools ------------------------------------------------------------


def affine(x, scale=1, *, shift=0):
    return x * scale + shift


@program(functools.partial(affine, scale=2), X)
def partials(double, x):
    nested = functools.partial(double, shift=1)
    made = functools.partial(affine, x, 3)
    parts = nested.func is affine, nested.args, nested.keywords, double.keywords
    return double(x), nested(x), made(), made(shift=x), parts, functools.partial(affine, shift=1)(x, scale=5), nested


class Layer:
    def __init__(self, scale):
        self.scale = scale

    def run(self, x, power):
        return (x * self.scale) ** power

    square = functools.partialmethod(run, power=2)

    @functools.cached_property
    def expensive(self):
        return self.scale * 100

    @functools.singledispatchmethod
    def show(self, value):
        return "other"

    @show.register
    def _(self, value: int):
        return "int"


@program(Layer(2), X)
def partial_methods(layer, x):
    bound = functools.partial(layer.run, power=3)
    return layer.square(x), bound(x), Layer(1).square(x)


@program(Layer(2), X, calls=2)
def cached_properties(layer, x):
    made = Layer(3)
    return x + layer.expensive, made.expensive, "expensive" in vars(made), layer.expensive, made


@program([X, Y, 1], X)
def reductions(items, x):
    total = functools.reduce(lambda a, b: a + b, items)
    return total, functools.reduce(operator.mul, [1, 2, 3], 2), functools.reduce(torch.add, items[:2])


def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return ("traced", function(*args, **kwargs))

    return wrapper


@traced
def decorated(x):
    """Documented."""
    return x + 1


@program(X)
def wrapped_functions(x):
    inner = traced(lambda v: v * 2)
    return decorated(x), decorated.__name__, decorated.__wrapped__(x), decorated.__doc__, inner(x), inner.__name__


@functools.lru_cache
def cached(n):
    return n * 2


@functools.cache
def table(n):
    return [n]


@program.breaking(X, calls=3)
def cached_functions(x):
    first = cached(3)
    return x + first, cached(4), table(1) is table(1)


@functools.singledispatch
def dispatch(value):
    return "object"


@dispatch.register
def _(value: int):
    return "int"


@dispatch.register(list)
def _(value):
    return ["list", *[dispatch(v) for v in value]]


@dispatch.register
def _(value: torch.Tensor):
    return value + 1


@program(X)
def single_dispatch(x):
    return dispatch(x), dispatch(1), dispatch([1, "a", x]), dispatch(2.5), dispatch(True)


@functools.total_ordering
class Version:
    def __init__(self, major):
        self.major = major

    def __eq__(self, other):
        return self.major == other.major

    def __lt__(self, other):
        return self.major < other.major


@program(Version(1), X)
def total_ordering(version, x):
    other = Version(2)
    return (
        x,
        version < other,
        version <= other,
        version > other,
        version >= other,
        version == other,
        max(version, other).major,
    )


@program([3, 1, 2], X)
def comparison_keys(items, x):
    return (
        x,
        sorted(items, key=functools.cmp_to_key(lambda a, b: b - a)),
        min(items, key=functools.cmp_to_key(lambda a, b: b - a)),
    )


# -- itertools ------------------------------------------------------------


@program([X, Y], [1, 2, 3])
def itertools_of_everything(tensors, numbers):
    chained = list(itertools.chain(tensors, numbers)), list(itertools.chain.from_iterable([[1], [2, 3]]))
    sliced = list(itertools.islice(numbers, 1, 3)), list(itertools.islice(itertools.count(5, 2), 3))
    cycled = [next(c) for c in [itertools.cycle(numbers)] for _ in range(5)], list(itertools.repeat(7, 2))
    products = list(itertools.product(numbers, "ab")), list(itertools.product([0, 1], repeat=2))
    chosen = list(itertools.combinations(numbers, 2)), list(itertools.permutations(numbers, 2))[:3]
    more = list(itertools.combinations_with_replacement("ab", 2)), list(itertools.pairwise(numbers))
    return chained, sliced, cycled, products, chosen, more


@program([1, 2, 3, 1], [X, Y])
def itertools_with_callbacks(numbers, tensors):
    added = (
        list(itertools.accumulate(numbers)),
        list(itertools.accumulate(tensors)),
        list(itertools.accumulate(numbers, max)),
    )
    initial = list(itertools.accumulate(numbers, lambda a, b: a * b, initial=10))
    taken = list(itertools.takewhile(lambda n: n < 3, numbers)), list(itertools.dropwhile(lambda n: n < 3, numbers))
    mapped = (
        list(itertools.starmap(pow, [(2, 3), (3, 2)])),
        list(itertools.starmap(lambda a, b: a + b, [(tensors[0], 1)])),
    )
    filtered = list(itertools.filterfalse(lambda n: n % 2, numbers)), list(itertools.filterfalse(None, [0, 1, ""]))
    compressed = list(itertools.compress("abcd", [1, 0, 1, 0])), list(itertools.compress(tensors, numbers))
    zipped = list(itertools.zip_longest(numbers, "ab", fillvalue="-"))
    first, second = itertools.tee(numbers)
    return added, initial, taken, mapped, filtered, compressed, zipped, list(first), next(second), list(second)


@program(["apple", "avocado", "bean", "cherry"], X)
def itertools_groups(words, x):
    groups = {key: list(group) for key, group in itertools.groupby(words, key=lambda w: w[0])}
    plain = [(key, len(list(group))) for key, group in itertools.groupby([1, 1, 2])]
    return x + len(groups), groups, plain


@program([1, 2, 3], X)
def itertools_inside(numbers, x):
    counter = itertools.count(10)
    chain = itertools.chain(numbers, [x])
    cycle = itertools.cycle("ab")
    x = x + next(counter)
    first = next(chain), next(cycle)
    x = x + next(counter)
    return x, first, list(chain), next(cycle), next(counter)


# From 3.14 on iterators of itertools tell nobody where they are, so those that outlive the graph are made by Python.
COPIES_ITERTOOLS = "__reduce__" in vars(itertools.count)


@program([1, 2, 3], X, fullgraph=COPIES_ITERTOOLS)
def itertools_alive(numbers, x):
    counter = itertools.count(10)
    chain = itertools.chain(numbers, [x])
    cycle = itertools.cycle("ab")
    x = x + next(counter)
    first = next(chain), next(cycle)
    x = x + next(counter)
    return x, first, list(chain), next(cycle), next(counter), itertools.islice(numbers, 2), itertools.count(3)


def test_what_is_left_in_iterators_that_outlive_the_graph():
    def program(numbers, x):
        counter, cycle, part = itertools.count(10), itertools.cycle("ab"), itertools.islice(numbers, 1, 4)
        chain, pairs = itertools.chain(numbers, [8]), itertools.zip_longest(numbers, "ab")
        for each in (counter, cycle, part, chain, pairs):
            next(each)
        y = x * next(counter)
        return y, [counter, cycle, part, chain, pairs, itertools.repeat(y.ndim, 2), itertools.accumulate(numbers)]

    numbers = [1, 2, 3, 4, 5]
    compiled = kiln.compile(program, backend="eager", fullgraph=COPIES_ITERTOOLS)
    for start in (0.0, 1.0):  # captured, and by the entry that was made then
        x = torch.arange(3.0) + start
        (y, left), (seen, found) = program(numbers, x), compiled(numbers, x)
        assert torch.equal(seen, y)
        assert list(map(type, found)) == list(map(type, left))
        assert [list(itertools.islice(each, 7)) for each in found] == [list(itertools.islice(each, 7)) for each in left]


# -- operator and math ------------------------------------------------------------


class Pair:
    def __init__(self, left, right):
        self.left, self.right = left, right

    def total(self, extra=0):
        return self.left + self.right + extra


GETTER = operator.itemgetter(1)


@program([X, Y], Pair(X, 2), {"a": 1, "b": X})
def operator_getters(items, pair, d):
    got = (
        operator.itemgetter(0)(items),
        operator.itemgetter(1, 0)("ab"),
        GETTER(items),
        operator.itemgetter("a", "b")(d),
    )
    attributes = (
        operator.attrgetter("left")(pair),
        operator.attrgetter("left", "right")(pair),
        operator.attrgetter("left.shape")(pair),
    )
    called = (
        operator.methodcaller("total", extra=1)(pair),
        operator.methodcaller("upper")("a"),
        operator.methodcaller("sum", 0)(items[0]),
    )
    return (
        got,
        attributes,
        called,
        sorted([(1, "b"), (0, "c")], key=operator.itemgetter(1)),
        list(map(GETTER, ["ab", "cd"])),
    )


@program(X, Y)
def operator_functions(x, y):
    tensors = (
        operator.add(x, y),
        operator.mul(x, 2),
        operator.neg(x),
        operator.truediv(x, y),
        operator.getitem(x, 0),
        operator.matmul(x, y),
    )
    numbers = (
        operator.floordiv(7, 2),
        operator.mod(7, 3),
        operator.lshift(1, 3),
        operator.xor(5, 1),
        operator.inv(3),
        operator.pow(2, 5),
    )
    tests = (
        operator.lt(1, 2),
        operator.eq("a", "a"),
        operator.is_(x, x),
        operator.not_(0),
        operator.truth([1]),
        operator.contains([1], 1),
    )
    items = [3, 1]
    operator.setitem(items, 0, x)
    operator.delitem(items, 1)
    grown = operator.iadd(items, [4])
    return (
        tensors,
        numbers,
        tests,
        items,
        grown is items,
        operator.concat([1], [2]),
        operator.countOf([1, 1], 1),
        operator.index(3),
        operator.length_hint([1]),
    )


@program(X, 7)
def math_functions(x, n):
    whole = (
        math.floor(2.7),
        math.ceil(2.1),
        math.trunc(-2.5),
        math.gcd(12, 18),
        math.factorial(5),
        math.comb(5, 2),
        math.isqrt(17),
        math.prod([1, 2, 3]),
    )
    real = (
        math.sqrt(16),
        math.exp(0),
        math.log(8, 2),
        math.log2(8),
        math.sin(0.5),
        math.hypot(3, 4),
        math.pow(2, 3),
        math.fsum([0.1] * 3),
        math.atan2(1, 2),
    )
    tests = (
        math.isnan(math.nan),
        math.isinf(math.inf),
        math.isclose(1.0, 1.0 + 1e-12),
        math.isfinite(1.0),
        math.copysign(1, -0.0),
    )
    return (
        x * math.sqrt(n) + math.pi,
        whole,
        real,
        tests,
        math.modf(2.5),
        math.frexp(8.0),
        math.degrees(math.pi),
        math.inf,
        math.e,
    )


@program(M)
def math_of_sizes(m):
    rows, columns = m.shape
    return m / math.sqrt(columns), math.prod(m.shape), math.ceil(rows / 4), math.log(columns)


# -- collections and typing ------------------------------------------------------------


@program([X], {"a": 1}, X)
def abstract_base_classes(items, d, x):
    abc = collections.abc
    kinds = (
        isinstance(items, abc.Sequence),
        isinstance(d, abc.Mapping),
        isinstance(x, abc.Iterable),
        isinstance("a", abc.Hashable),
    )
    more = (
        isinstance(items, abc.MutableSequence),
        isinstance((1,), abc.Collection),
        isinstance(len, abc.Callable),
        isinstance(iter([]), abc.Iterator),
    )
    return (
        x,
        kinds,
        more,
        issubclass(dict, abc.Mapping),
        isinstance({1}, abc.Set),
        isinstance(d.keys(), abc.KeysView),
        isinstance(3, abc.Sized),
    )


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, content: T):
        self.content = content

    def get(self) -> T:
        return self.content


@typing.runtime_checkable
class HasTotal(typing.Protocol):
    def total(self): ...


@program(Box(X), Pair(1, 2), X)
def typing_constructs(box, pair, x):
    made = Box[int](x)
    value: int = typing.cast(int, x)
    checks = isinstance(pair, HasTotal), isinstance(x, HasTotal), isinstance(box, Box), typing.TYPE_CHECKING
    return (
        box.get() + made.get(),
        value,
        checks,
        typing.get_origin(list[int]) is list,
        typing.get_args(dict[str, int]),
        typing.Optional[int],
    )


@typing.runtime_checkable
class HasSize(typing.Protocol):
    size: int

    def total(self): ...


class Sized(Pair):
    size = 3


@program(Box(X), Pair(1, 2), X)
def protocol_with_an_attribute(box, pair, x):
    before = isinstance(pair, HasSize), isinstance(box, (int, HasSize)), isinstance(Sized(1, 2), HasSize)
    pair.size = 2
    return x + 1, before, isinstance(pair, HasSize), isinstance(pair, (HasSize, HasTotal)), isinstance(3, HasSize)


@program.breaking(X)
def protocol_asked_of_a_tensor(x):
    return x + 1, isinstance(x, HasSize), isinstance(x, (HasTotal, HasSize))


@program([3, 1, 2], X)
def heaps(items, x):
    heapq.heapify(items)
    heapq.heappush(items, 0)
    return (
        x + heapq.heappop(items),
        heapq.nsmallest(2, items),
        heapq.nlargest(1, items),
        items,
        heapq.heappushpop(items, 9),
    )


# -- contextlib ------------------------------------------------------------


LOG: list = []


@contextlib.contextmanager
def logged(name):
    LOG.append("enter " + name)
    try:
        yield name.upper()
    finally:
        LOG.append("exit " + name)


@program(X)
def context_managers(x):
    with logged("a") as a, logged("b"):
        x = x + len(a)
    with contextlib.suppress(KeyError):
        {}["missing"]
    with contextlib.nullcontext(5) as five:
        x = x * five
    return x, list(LOG)


@program(X)
def exit_stacks(x):
    seen = []
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(logged("s"))
        stack.callback(seen.append, 1)
        x = x + len(name)
    with contextlib.closing(Closing()) as closing:
        x = x + 1
    return x, seen, closing.closed


class Closing:
    closed = False

    def close(self):
        self.closed = True


# -- copy ------------------------------------------------------------


@dataclass
class Node:
    value: int
    children: list = field(default_factory=list)


class Slim:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class Custom:
    def __init__(self, n):
        self.n = n

    def __copy__(self):
        return Custom(self.n + 1)

    def __deepcopy__(self, memo):
        made = Custom(self.n + 10)
        memo[id(self)] = made
        return made


@program({"a": [1, {"b": 2}], "t": (1, [2])}, Node(1, [Node(2)]), X)
def copies(d, node, x):
    shallow, deep = copy.copy(d), copy.deepcopy(d)
    deep["a"][1]["b"] = 99
    shallow["new"] = 1
    tree, twin = copy.deepcopy(node), copy.copy(node)
    tree.children[0].value = 50
    twin.children.append(3)
    same = (
        shallow["a"] is d["a"],
        deep["a"] is d["a"],
        copy.copy((1, 2)) == (1, 2),
        copy.deepcopy("s"),
        copy.copy([x])[0] is x,
    )
    return x, shallow, deep, tree, twin, same


@program(Slim([1], 2), Custom(1), X)
def copies_of_objects(slim, custom, x):
    a, b = copy.copy(slim), copy.deepcopy(slim)
    b.a.append(5)
    shared = [1]
    pair = copy.deepcopy([shared, shared])
    loop: list = [1]
    loop.append(loop)
    loop_copy = copy.deepcopy(loop)
    customs = copy.copy(custom).n, copy.deepcopy(custom).n, [c.n for c in copy.deepcopy([custom, custom])]
    counters = (
        copy.copy(collections.Counter("aab")),
        copy.deepcopy(collections.OrderedDict(a=[1])),
        copy.copy(collections.deque([1])),
    )
    return (
        x,
        a,
        b,
        pair[0] is pair[1],
        loop_copy[1] is loop_copy,
        customs,
        counters,
        copy.copy({1, 2}),
        copy.deepcopy(frozenset([1])),
    )


@program.breaking(X, [Y], versions=False)  # those of copies
def copies_of_tensors(x, items):
    made = copy.copy(items), copy.deepcopy(items)
    return x + 1, made, copy.deepcopy(x), copy.copy(x)


# -- inspect, re, string, json, random, time, os, warnings, logging ------------------------------


@program(X)
def inspection(x):
    signature = inspect.signature(affine)
    kinds = (
        inspect.isfunction(affine),
        inspect.isclass(Pair),
        inspect.ismethod(Pair(1, 2).total),
        inspect.isbuiltin(len),
        inspect.isfunction(3),
    )
    return (
        x,
        list(signature.parameters),
        signature.parameters["scale"].default,
        kinds,
        "shift" in signature.parameters,
        len(signature.parameters),
    )


@program(X, "layer12.weight")
def regular_expressions(x, name):
    match = re.match(r"layer(\d+)\.(\w+)", name)
    pattern = re.compile("[a-z]+")
    found = (
        match.group(1),
        match.groups(),
        match.start(2),
        bool(re.search("q", name)),
        re.sub(r"\d", "#", name),
        pattern.findall(name),
    )
    return (
        x + int(match.group(1)),
        found,
        re.split(r"\.", name),
        pattern.match("abc1").end(),
        re.escape("a.b"),
        re.fullmatch("a", "b") is None,
    )


@program(X)
def strings(x):
    template = string.Template("$a and ${b}")
    return x, string.ascii_lowercase[:3], string.capwords("ab cd"), template.substitute(a=1, b="two"), string.digits


@program.breaking(X)
def json_of_constants(x):
    return x + 1, json.dumps({"a": [1, None, True]}), json.loads('{"b": 2.5}')


@program.breaking(X)
def random_numbers(x):
    return x * random.random(), random.randint(1, 5), random.choice([1, 2, 3]), random.sample(range(10), 3)


@program.breaking(X)
def clocks(x):
    start = time.perf_counter()
    y = x + 1
    return y, time.perf_counter() >= start, time.time() > 0


@program.breaking(X)
def environment(x):
    os.environ["KILN_TEST_VARIABLE"] = "5"
    value = int(os.environ.get("KILN_TEST_VARIABLE", "1"))
    os.environ.pop("KILN_TEST_VARIABLE")
    return x + value, "KILN_TEST_VARIABLE" in os.environ, os.path.join("a", "b"), os.getenv("KILN_NO_SUCH", "none")


def test_environment_is_read_each_time():
    @kiln.disable
    def change(step):
        os.environ["KILN_TEST_STEP"] = str(step)

    def program(step, x):
        result = x + int(os.environ.get("KILN_TEST_STEP", "0"))
        change(step)
        return result

    def setup():
        os.environ.pop("KILN_TEST_STEP", None)
        return program, [(1, X), (2, X), (3, X)]

    check(setup=setup, breaks_every=(None, "line"))


@program.breaking(X, calls=2)
def warned(x):
    warnings.warn("careful", UserWarning, stacklevel=1)
    return x + 1


@program.breaking(X)
def logged_and_printed(x):
    logging.getLogger("kiln.test").info("hello %s", 1)
    print("printed", x.shape)
    return x + 1


@TABLE.rows
def test_stdlib(program, args, expect):
    TABLE.run(program, args, expect)


def test_enums_that_make_up_members_do_so_once():
    def setup():
        log = []

        class Kind(enum.Enum):
            PLAIN = 1

            @classmethod
            def _missing_(cls, value):
                log.append(value)
                return cls.PLAIN if value < 10 else None

        def program(x):
            log.append("start")
            found = Kind(5), Kind(1)
            try:
                Kind(50)
            except ValueError as error:
                log.append(str(error))
            print(end="")
            return x + 1, [kind.name for kind in (*found, Kind(7))]

        return program, [(X,), (X,), (X,)], log

    check(setup=setup)


def test_patterns_that_warn_or_print_do_so():
    def program(x):
        return x + 1, re.compile("[[a-z]0123").groups, re.sub("[[b]", "c", "[ab")

    def seen(function):
        re.purge()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(X)[1:]
        return result, [str(each.message) for each in caught]

    assert seen(kiln.compile(program, backend="eager")) == seen(program)


def test_the_memo_of_a_copy_has_ids_of_real_objects():
    def program(x):
        memo, items = {}, [1, [2]]
        made = copy.deepcopy(items, memo)
        kept = memo[id(memo)]
        return x + 1, memo[id(items)] is made, kept[0] is items[1], len(memo), made

    check(program, X)


def test_a_singledispatch_function_that_cannot_dispatch():
    @functools.singledispatch
    def double(value):
        return value * 2

    def program(x):
        return double(x)

    compiled = kiln.compile(program, backend="eager")
    x = torch.ones(3)
    assert torch.equal(compiled(x), program(x))
    del double._clear_cache.__self__.data
    for shape in ((3,), (3, 1)):
        with pytest.raises(AttributeError, match="no attribute 'data'"):
            compiled(torch.ones(shape))
