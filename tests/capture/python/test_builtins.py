"""The builtin functions: on constants, on tensors inside containers, on objects whose special methods are Python."""

# ruff: noqa: B009, B010, B905, UP031, UP032 (programs under test are written the way users write them)

import functools

import torch

from kiln.testing import check
from tests.support.program_table import M, ProgramTable, X, Y

TABLE = program = ProgramTable()


class Money:
    """Ordered, summable, hashable, callable, printable: all in Python."""

    def __init__(self, amount):
        self.amount = amount

    def __add__(self, other):
        return Money(self.amount + (other.amount if isinstance(other, Money) else other))

    __radd__ = __add__

    def __lt__(self, other):
        return self.amount < other.amount

    def __eq__(self, other):
        return isinstance(other, Money) and self.amount == other.amount

    def __hash__(self):
        return hash(("money", self.amount))

    def __abs__(self):
        return Money(abs(self.amount))

    def __bool__(self):
        return self.amount != 0

    def __int__(self):
        return self.amount

    def __index__(self):
        return self.amount

    def __float__(self):
        return self.amount + 0.5

    def __len__(self):
        return 3

    def __round__(self, digits=None):
        return ("rounded", digits)

    def __divmod__(self, other):
        return ("divmod", other)

    def __pow__(self, other, modulo=None):
        return ("pow", other, modulo)

    def __repr__(self):
        return f"Money({self.amount})"

    def __str__(self):
        return f"${self.amount}"

    def __format__(self, spec):
        return f"<{self.amount}:{spec}>"

    def __call__(self, x):
        return x * self.amount


class Countdown:
    """An iterator and an iterable in Python."""

    def __init__(self, start):
        self.left = start

    def __iter__(self):
        return self

    def __next__(self):
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.left


class Letters:
    """Iterable by ``__getitem__``, and sized, reversible, with membership."""

    def __getitem__(self, index):
        return "abc"[index]

    def __len__(self):
        return 3

    def __contains__(self, item):
        return item == "special"

    def __reversed__(self):
        return iter("cba")


# -- iterating ------------------------------------------------------------------------------------------------------


@program([X, Y], {"a": 1, "b": 2})
def zips(items, d):
    pairs = list(zip(items, [1, 2]))
    three = [a + b * c for a, b, c in zip(items, (1, 2), range(5))]
    strict = None
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        strict = str(error)
    return (
        pairs,
        three,
        strict,
        list(zip()),
        dict(zip(d, d.values())),
        list(zip(*[(1, 2), (3, 4)])),
        list(zip(d.items())),
    )


@program([X, Y])
def maps(items):
    doubled = list(map(lambda t: t * 2, items))
    both = [*map(lambda a, b: a + b, items, [1, 2])]
    builtin = list(map(abs, [-1, 2])), list(map(str, [1, 2])), list(map(len, ["a", [1, 2], items])), [*map(int, "12")]
    lazy = map(lambda t: t + 1, items)
    return doubled, both, builtin, next(lazy), list(lazy), list(map(torch.neg, items)), list(map(Money, [1, 2]))


@program([1, 0, 3, None, ""], X)
def filters(items, x):
    return (
        list(filter(None, items)),
        [*filter(lambda i: i, items)],
        x + sum(filter(lambda i: isinstance(i, int), items)),
    )


@program([X, Y])
def enumerates(items):
    total = 0
    for index, item in enumerate(items, start=1):
        total = total + index * item
    return total, list(enumerate("ab")), next(enumerate(items))


@program([3, 1, 2], X)
def reverses_and_sorts(items, x):
    ordered = sorted(items), sorted(items, reverse=True), sorted(items, key=lambda i: -i), sorted("bca"), sorted({2, 1})
    nested = sorted([(2, "b"), (1, "z"), (2, "a")], key=lambda p: (p[0], p[1]))
    return x, ordered, list(reversed(items)), nested, sorted({"b": 1, "a": 2}.items()), sorted(items, key=str), items


@program([X, Y], [1, 0], X)
def reductions(tensors, numbers, x):
    numeric = (
        sum(numbers),
        sum(numbers, 10),
        min(numbers),
        max(numbers),
        any(numbers),
        all(numbers),
        min(3, 1),
        max(1, 2.5),
    )
    keyed = min(["bb", "a"], key=len), max([1, -5], key=abs), min([], default="none"), max(numbers, default=None)
    generators = (
        any(n > 0 for n in numbers),
        all(n >= 0 for n in numbers),
        sum(t * 2 for t in tensors),
        max(n for n in numbers),
    )
    iterators = (
        sum(iter(numbers)),
        max(reversed(numbers)),
        sum(map(lambda n: n + 1, numbers)),
        min(n for n in iter(numbers)),
    )
    return sum(tensors), numeric, keyed, generators, iterators, sum(t.shape[0] for t in tensors)


@program.breaking(X)
def reductions_over_tensors(x):
    return (
        max(x.unbind()),
        min([t for t in x]),
        any(x > 1),
        all(x > 0),
        sum(x),
        sorted(x.tolist(), reverse=True),
        max(x, x),
    )


@program(X)
def iter_and_next(x):
    it = iter([1, x, 3])
    first = next(it)
    second = next(it)
    rest = list(it)
    counter = [0]

    def tick():
        counter[0] += 1
        return counter[0]

    return first, second, rest, next(it, "done"), list(iter(tick, 4)), next(iter({"a": 1})), next(iter("q"))


@program(X)
def python_iterators(x):
    ticks = Countdown(3)
    parts = (
        list(Countdown(3)),
        sum(Countdown(4)),
        max(Countdown(3)),
        [*Countdown(2)],
        tuple(Countdown(2)),
        set(Countdown(3)),
    )
    more = (
        dict(zip(Countdown(2), "ab")),
        sorted(Countdown(3)),
        list(enumerate(Countdown(2))),
        list(map(str, Countdown(2))),
    )
    a, b, c = Countdown(3)
    return x + next(ticks), list(ticks), parts, more, a, b, c, 1 in Countdown(3), 7 in Countdown(3), any(Countdown(2))


@program(Countdown(3), X)
def python_iterator_argument(ticks, x):
    for tick in ticks:
        x = x + tick
        if tick == 1:
            break
    return x, ticks.left, list(ticks)


@program(Letters(), X)
def python_sequences(letters, x):
    return (
        x,
        list(letters),
        [*reversed(letters)],
        len(letters),
        "special" in letters,
        "a" in letters,
        letters[1],
        list(zip(letters, letters)),
    )


# -- objects with special methods ------------------------------------------------------------------------------------


@program([Money(3), Money(1), Money(2)], X)
def objects_ordered(wallet, x):
    ordered = sorted(wallet)
    return (
        x,
        ordered,
        min(wallet),
        max(wallet),
        sorted(wallet, key=lambda m: -m.amount),
        sorted(wallet, reverse=True),
        sum(wallet),
    )


@program(Money(3), X)
def objects_converted(money, x):
    numbers = int(money), float(money), bool(money), abs(Money(-2)), len(money), round(money), round(money, 2)
    texts = (
        str(money),
        repr(money),
        f"{money}",
        f"{money!r:>10}",
        f"{money:q}",
        format(money, "z"),
        "%s|%r" % (money, money),
    )
    more = (
        divmod(money, 2),
        pow(money, 2),
        pow(money, 2, 5),
        money**4,
        hex(money),
        [10, 20, 30, 40][money],
        range(money),
    )
    return (
        x,
        numbers,
        texts,
        more,
        "{} {!r} {:w}".format(money, money, money),
        repr([money, {"a": money}]),
        str((money,)),
    )


@program([Money(1), Money(2)], X)
def objects_compared(wallet, x):
    other = [Money(1), Money(2)]
    tests = (
        wallet == other,
        wallet != other,
        Money(2) in wallet,
        wallet.index(Money(2)),
        wallet.count(Money(1)),
        wallet < [Money(5)],
    )
    wallet.remove(Money(1))
    return (
        x,
        tests,
        wallet,
        (Money(1),) == (Money(1),),
        {"k": Money(1)} == {"k": Money(1)},
        Money(1) != Money(1),
        [Money(3)] == [3],
    )


@program([Money(1), Money(2)], X)
def objects_as_keys(wallet, x):
    d = {Money(1): x, Money(7): 2}
    d[Money(1)] = x + 1
    d.setdefault(Money(2), []).append(5)
    s = {Money(1), Money(1), Money(3)}
    s.add(Money(3))
    return (
        d[wallet[0]],
        d.get(wallet[1]),
        Money(9) in d,
        len(d),
        len(s),
        wallet[0] in s,
        hash(Money(1)) == hash(wallet[0]),
        d.pop(Money(7)),
    )


@program({Money(1): X, Money(2): Y}, {Money(4)}, X)
def objects_as_keys_of_arguments(d, s, x):
    d[Money(1)] = d[Money(1)] + x
    s.add(Money(4))
    s.add(Money(5))
    return len(s), Money(2) in d, list(d.values())


@program([Money(2), Money(3)], X)
def objects_called(wallet, x):
    return (
        wallet[0](x),
        [m(x) for m in wallet],
        list(map(lambda m: m(1), wallet)),
        callable(wallet[0]),
        callable(x),
        callable(3),
    )


# -- types, attributes, identity -------------------------------------------------------------------------------------


@program(X, Money(1), 3)
def types_of_things(x, money, number):
    kinds = (
        type(x) is torch.Tensor,
        type(money) is Money,
        type(number),
        type(money).__name__,
        type(None),
        type(type(money)),
    )
    instances = (
        isinstance(x, torch.Tensor),
        isinstance(money, (int, Money)),
        isinstance(number, int | str),
        isinstance(True, int),
        isinstance([], list),
        isinstance(x, (list, tuple)),
    )
    subclasses = issubclass(bool, int), issubclass(Money, (str, object)), issubclass(type(money), Money)
    return x + 1, kinds, instances, subclasses, type(money)(5)


@program(Money(1), X)
def attributes_by_name(money, x):
    before = (
        getattr(money, "amount"),
        getattr(money, "other", "default"),
        hasattr(money, "amount"),
        hasattr(money, "zzz"),
    )
    setattr(money, "other", x)
    setattr(money, "amount", money.amount + 1)
    after = hasattr(money, "other"), vars(money)["amount"], sorted(vars(money)), money.__dict__ is vars(money)
    delattr(money, "other")
    missing = None
    try:
        money.other
    except AttributeError as error:
        missing = str(error)
    return x + money.amount, before, after, missing, getattr(x, "ndim"), hasattr(x, "nope"), getattr(torch, "add")(x, 1)


@program(X)
def vars_of_an_object(x):
    money = Money(3)
    namespace = vars(money)
    namespace["extra"] = x
    return money.extra + 1, namespace, money


@program(Money(1), [1])
def identity(money, items):
    again = items
    return (
        id(money) == id(money),
        id(items) == id(again),
        id(money) == id(items),
        money is money,
        id(None) == id(None),
        id(int) == id(int),
    )


@program.breaking(X)
def identity_of_new_objects(x):
    a, b = [x], [x]
    return id(a) == id(b), id(a) == id(a), {id(a): 1}[id(a)]


def test_id_is_guarded():
    def program(a, seen, x):
        return x + seen.get(id(a), 0)

    keep = [Money(1), Money(2)]
    seen = {id(keep[0]): 10}
    calls = [(keep[0], seen, X), (keep[1], seen, X), (keep[0], seen, X)]
    check(program, make_args=lambda: calls, calls=calls, breaks_every=(None, "line"))


@program(X)
def hashes(x):
    return (
        hash("a") == hash("a"),
        hash((1, 2.5, None)),
        hash(3),
        hash(1.0) == hash(1),
        hash(frozenset([1])),
        hash(int) == hash(int),
        x + 1,
    )


@program(Money(2), X)
def dirs(money, x):
    money.zzz = 1
    return "amount" in dir(money), "zzz" in dir(money), "__add__" in dir(Money), len(dir(money)) > 10, x + 1


# -- numbers and text ------------------------------------------------------------------------------------------------


@program(X, 7, -2.5)
def numbers(x, i, f):
    integers = (
        abs(-i),
        divmod(i, 3),
        pow(i, 2),
        pow(i, -1, 5),
        round(2.567, 2),
        round(f),
        bin(i),
        hex(255),
        oct(8),
        ord("a"),
        chr(98),
    )
    conversions = (
        int("12"),
        int("ff", 16),
        int(3.9),
        float("1.5"),
        float(i),
        bool(0),
        bool("a"),
        complex(1, 2),
        str(i),
        int(True),
    )
    texts = (
        repr("q"),
        str(f),
        ascii("é"),
        format(i, "04d"),
        format(f, ".1e"),
        repr([1, "a", None]),
        str({"a": (1,)}),
        format("s", ">3"),
    )
    return x * i, integers, conversions, texts, abs(x), pow(x, 2), divmod(f, 2), i.bit_length(), f.is_integer(), f.hex()


@program.breaking(X, M)
def conversions_of_tensors(x, m):
    return (
        int(x[0] * 4),
        float(x[1]),
        bool(x[0] > 0),
        str(x),
        repr(x),
        len(m),
        f"{x[0]:.2f}",
        list(m),
        tuple(x),
        complex(x[0]),
    )


@program(X)
def bytes_and_friends(x):
    data = bytearray(b"abc")
    data.append(100)
    view = bytes([1, 2]) + b"z"
    return (
        x,
        data,
        view,
        b"a,b".split(b","),
        data.decode(),
        "é".encode(),
        int.from_bytes(b"\x01\x00", "big"),
        view[0],
        data[1:],
    )


@program(X)
def callables(x):
    made = slice(1, None), range(3), frozenset([1]), dict(a=1), list("ab"), tuple([x]), set("aa"), object() is None
    return (
        x[made[0]],
        made[1:-1],
        callable(len),
        callable(Money),
        callable(lambda: 0),
        type(slice(1)),
        max("ab", "c"),
        sum([[1], [2]], []),
    )


@program(X)
def user_types_made_by_type_call(x):
    kind = type(Money(2))
    return kind(4).amount + x, isinstance(kind(1), kind), kind.__name__, kind is Money


def test_new_special_method_is_noticed():
    class Plain:
        def __init__(self, value):
            self.value = value

    def setup():
        kind = type("Kind", (Plain,), {})

        def program(step, x):
            return [kind(1)] == [kind(1)], x + 1, bool(kind(1))

        def run(step, x):
            if step == 1:
                kind.__eq__ = lambda self, other: self.value == other.value
            if step == 2:
                kind.__bool__ = lambda self: False
            return compiled(step, x)

        compiled = program
        return program, [(0, X), (0, X)]

    check(setup=setup, breaks_every=(None, "line"))


@program([X, Y], X)
def partials_of_builtins(items, x):
    add = functools.partial(sum, start=1)
    return x, add([1, 2]), functools.partial(max, key=len)(["a", "bb"]), functools.partial(isinstance, x)(torch.Tensor)


@TABLE.rows
def test_builtins(program, args, expect):
    TABLE.run(program, args, expect)
