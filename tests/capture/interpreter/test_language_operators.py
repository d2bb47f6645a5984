"""Operators of the language in captured code: numbers, strings, tensors, and classes that define their own."""

import operator

import pytest
import torch

from kiln.testing import check
from tests.support.program_table import M, ProgramTable, X, Y

TABLE = program = ProgramTable()


# -- numbers and strings --------------------------------------------------------------------------------------------


@program(X, 7, 3, name="int_arithmetic")
def int_arithmetic(x, a, b):
    values = [a + b, a - b, a * b, a / b, a // b, a % b, a**b, -a, +a, ~a, a << b, a >> b, a & b, a | b, a ^ b]
    values += [divmod(-a, b), -a // b, -a % b, a**-b, abs(-a), pow(a, b, 5), round(a / b, 2), a.bit_length()]
    return x * values[0], values


@program(X, 7.5, -2.0)
def float_arithmetic(x, a, b):
    values = [a + b, a - b, a * b, a / b, a // b, a % b, a**b, -a, +a, divmod(a, b), round(a), a.is_integer()]
    return x * a + b, values, float("inf") > a, float("nan") != float("nan"), -0.0


@program(X, True, 2 + 3j)
def bool_and_complex(x, flag, z):
    return x * flag, flag + flag, flag & False, not flag, z * z, z.real, z.conjugate(), abs(3 + 4j), z == 2 + 3j


@program(X, "ab", "c")
def string_operators(x, a, b):
    c = a + b
    c += "d"
    c *= 2
    return x + len(c), c, a * 3, 2 * b, a < b, a == "ab", a != b, "b" in a, "z" not in a, a[0], a[::-1], c[-3:]


@program(X, b"ab")
def bytes_operators(x, a):
    return x + a[0], a + b"c", a * 2, 97 in a, b"b" in a, a < b"b", a.hex(), bytes([1, 2]), a.decode()


@program(X, 1, 2.5, "s", None)
def comparisons(x, i, f, s, n):
    values = [i < f, i <= 1, f > i, f >= 2.5, i == 1.0, i != f, s == "s", s > "a", n is None, n is not None, i is n]
    return x if all(values[:6]) else -x, values, i == s, n == i, not n, s is not None


@program(X, 5)
def chains(x, a):
    log = []

    def value(v):
        log.append(v)
        return v

    first = value(1) < value(a) < value(10)
    second = value(3) > value(4) < value(100)
    third = value(1) == value(1) != value(2) <= value(2) is not None
    return x + first, second, third, log, 0 < a <= 5 != 6


@program(X, 0, "", [1])
def boolean_logic(x, zero, empty, full):
    log = []

    def say(v):
        log.append(v)
        return v

    a = say(zero) or say(empty) or say(full) or say("never")
    b = say(1) and say(empty) and say("never")
    c = not (say(zero) and say(1)) or say(2)
    d = zero and full or empty and full or "else"
    return x * len(log), a, b, c, d, log, bool(zero), bool(full), x if (zero or full) and not empty else -x


@program(X, [1, 2.0, "three", None])
def membership(x, items):
    pairs = {"a": 1, 2: "b"}
    values = [2 in items, None in items, 3 in items, "a" in pairs, 1 not in pairs, 5 in range(0, 10, 5), (1,) in [(1,)]]
    return x + len(values), values, "thr" in "three", 2 in {1, 2}, 1 in pairs.values(), ("a", 1) in pairs.items()


@program(X, 6)
def augmented_assignment(x, a):
    a += 2
    a -= 1
    a *= 3
    a //= 2
    a **= 2
    a %= 17
    a <<= 3
    a >>= 1
    a |= 9
    a &= 13
    a ^= 5
    b = a
    b /= 4
    items = [1]
    alias = items
    items += [2]
    items *= 2
    pair = (1,)
    other = pair
    pair += (2,)
    words = {"a"}
    same = words
    words |= {"b"}
    words -= {"a"}
    table = {"k": [1]}
    table["k"] += [2]
    table |= {"z": 3}
    return x * a, b, items is alias, items, pair, other, same, table


@program(X)
def identity(x):
    a, b = [1], [1]
    c = a
    return x, a is b, a is c, a is not b, x is x, x is not (x + 0), None is None, (a == b)


# -- tensors --------------------------------------------------------------------------------------------------------


@program(X, Y)
def tensor_arithmetic(x, y):
    return x + y, x - y, x * y, x / y, x // y, x % y, x**2, 2**x, -x, +x, x @ y, abs(x - y), 1 - x, 1 / x, 7 // x, 5 % x


@program(X, Y)
def tensor_comparisons(x, y):
    return (
        x < y,
        x <= 1.0,
        1.0 >= x,
        x == y,
        x != 0.5,
        0.5 == x,
        (x > 0) & (y > 6),
        (x > 0) | (y < 0),
        ~(x > 0.3),
        (x > 0) ^ True,
    )


@program(X, Y)
def tensor_augmented(x, y):
    z = x
    z = z + 1
    alias = z
    z += y
    z *= 2
    z -= 0.5
    z /= 3
    z **= 2
    z //= 1
    z %= 5
    return z, alias, alias is z


@program.breaking(X)
def tensor_equality_with_others(x):
    return x == None, x != None, x == "text", x is None, x in [x], None == x  # noqa: E711


@program(M, 3, 1.5)
def tensor_and_numbers(x, i, f):
    return (x + i) * f * True, i * x, f / (x + 1), x.int() << i, x.int() & i, i - x, f**x, x + (i - f) ** 2


@program(M)
def tensor_items(x):
    y = x.clone()
    y[0] = 1
    y[1, 1:] += 5
    y[..., 0] *= 2
    y[y > 5] = -1
    y[:, [0, 2]] = 0.25
    return x[0], x[1, 2], x[:, 1:], x[..., None], x[-1, ::2], y


# -- classes --------------------------------------------------------------------------------------------------------


class Money:
    def __init__(self, cents):
        self.cents = cents

    def __add__(self, other):
        return Money(self.cents + other.cents) if isinstance(other, Money) else NotImplemented

    def __radd__(self, other):
        return Money(self.cents + other) if isinstance(other, int) else NotImplemented

    def __sub__(self, other):
        return Money(self.cents - getattr(other, "cents", other))

    def __mul__(self, factor):
        return Money(self.cents * factor)

    __rmul__ = __mul__

    def __neg__(self):
        return Money(-self.cents)

    def __pos__(self):
        return self

    def __invert__(self):
        return "inverted"

    def __abs__(self):
        return Money(abs(self.cents))

    def __eq__(self, other):
        return self.cents == other.cents if isinstance(other, Money) else NotImplemented

    def __lt__(self, other):
        return self.cents < other.cents if isinstance(other, Money) else NotImplemented

    def __le__(self, other):
        return self.cents <= other.cents

    def __bool__(self):
        return self.cents != 0

    def __index__(self):
        return self.cents

    def __int__(self):
        return self.cents

    def __float__(self):
        return self.cents / 100

    def __matmul__(self, other):
        return ("matmul", other)

    def __rsub__(self, other):
        return ("rsub", other)

    def __divmod__(self, other):
        return self.cents // other, self.cents % other

    def __round__(self, digits=0):
        return ("rounded", digits)


@program(X)
def user_arithmetic(x):
    a, b = Money(5), Money(7)
    c = a + b
    d = 3 + a
    e = 2 * b * 3
    return x * c.cents, d.cents, e.cents, (a - b).cents, (-a).cents, +a is a, ~a, abs(-a).cents, a @ 4, 9 - a


@program(X)
def user_comparisons(x):
    a, b, c = Money(5), Money(7), Money(5)
    values = [a == c, a == b, a != b, a < b, b > a, a <= c, a < b < Money(9), a == 5, a != 5, not Money(0), bool(a)]
    return x if a < b else -x, values, sorted([b, a], key=lambda m: m.cents)[0] is a


@program(X)
def user_numbers(x):
    a = Money(2)
    return (
        x[Money(1)],
        int(a),
        float(a),
        divmod(Money(7), 2),
        round(a),
        round(a, 3),
        [10, 20, 30][a],
        "abc"[a],
        range(5)[a],
    )


@program(X)
def user_sums_and_sorts(x):
    purse = [Money(3), Money(1), Money(2)]
    return x * sum(purse).cents, [m.cents for m in sorted(purse)], max(purse).cents, min(purse).cents, Money(2) in purse


@program.breaking(X)
def user_unsupported_operand(x):
    messages = []
    try:
        Money(1) + "text"
    except TypeError as error:
        messages.append(str(error))
    try:
        Money(1) < 3
    except TypeError as error:
        messages.append(str(error))
    try:
        1 + "text"
    except TypeError as error:
        messages.append(str(error))
    try:
        -"text"
    except TypeError as error:
        messages.append(str(error))
    try:
        "a" < 1
    except TypeError as error:
        messages.append(str(error))
    try:
        len(5)
    except TypeError as error:
        messages.append(str(error))
    try:
        1 in 5
    except TypeError as error:
        messages.append(str(error))
    try:
        x = Money(1)
        x //= 2
    except TypeError as error:
        messages.append(str(error))
    return messages


class Base:
    def __init__(self, log):
        self.log = log

    def __add__(self, other):
        self.log.append("Base.add")
        return NotImplemented

    def __radd__(self, other):
        self.log.append("Base.radd")
        return "base"

    def __eq__(self, other):
        self.log.append("Base.eq")
        return NotImplemented


class Derived(Base):
    def __radd__(self, other):
        self.log.append("Derived.radd")
        return "derived"

    def __eq__(self, other):
        self.log.append("Derived.eq")
        return NotImplemented


class Stranger:
    def __init__(self, log):
        self.log = log

    def __radd__(self, other):
        self.log.append("Stranger.radd")
        return "stranger"


@program(X)
def reflected_operators(x):
    log = []
    base, derived, stranger = Base(log), Derived(log), Stranger(log)
    results = [base + derived, derived + base, base + stranger, 1 + base]
    results += [base == derived, base == base, base != stranger, derived == base, base == 1]
    try:
        base + base
    except TypeError:
        log.append("TypeError")
    try:
        stranger + stranger
    except TypeError:
        log.append("TypeError")
    return x + len(log), results, log


class Inplace:
    def __init__(self):
        self.items = []

    def __iadd__(self, other):
        self.items.append(other)
        return self

    def __imul__(self, other):
        return NotImplemented

    def __mul__(self, other):
        return ("mul", other)

    def __isub__(self, other):
        return "replaced"


@program(X)
def inplace_methods(x):
    a = b = Inplace()
    a += 1
    a += x
    c = a
    c *= 4
    d = a
    d -= 1
    return a is b, a.items, c, d


class Bag:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __contains__(self, item):
        return item in self.items

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]

    def __iter__(self):
        return iter(self.items)

    def __reversed__(self):
        return reversed(self.items)

    def __call__(self, *args, **kwargs):
        return args, kwargs

    def __hash__(self):
        return 42


@program(X)
def container_protocol(x):
    bag = Bag(1, 2, 3)
    bag[0] = 5
    bag[1:2] = [7, 8]
    del bag[-1]
    found = 7 in bag, 9 in bag, 9 not in bag
    a, *b = bag
    return (
        x * len(bag),
        bag[0],
        bag[1:],
        found,
        list(bag),
        list(reversed(bag)),
        bool(Bag()),
        a,
        b,
        bag(1, k=2),
        hash(bag),
    )


class OldSequence:
    def __getitem__(self, index):
        if index >= 3:
            raise IndexError(index)
        return index * 10


@program(X)
def iteration_by_getitem(x):
    total = 0
    for value in OldSequence():
        total += value
    return x + total, 20 in OldSequence(), 5 in OldSequence(), list(OldSequence())


class WithTensor:
    """An object that holds a tensor and takes part in arithmetic on both sides."""

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return WithTensor(self.value + (other.value if isinstance(other, WithTensor) else other))

    def __radd__(self, other):
        return WithTensor(other + self.value)

    def __rmul__(self, other):
        return WithTensor(self.value * other)

    def __eq__(self, other):
        return "equal?"

    def __gt__(self, other):
        return "greater?"

    def __iadd__(self, other):
        self.value = self.value + other
        return self


@program(X, Y)
def tensors_in_objects(x, y):
    a = WithTensor(x)
    b = a + y
    c = a + a
    d = 2 + a
    b += 1
    return b.value, c.value, d.value, (3 * a).value, a == 1, a > 2, 1 < a, 5 == a


@program.breaking(X, Y)
def tensor_with_reflecting_object(x, y):
    a = WithTensor(x)
    return (y + a).value, (y * a).value, y == a, y < a


class Truthless:
    def __bool__(self):
        return 1


class NegativeLength:
    def __len__(self):
        return -1


@program.breaking(X)
def bad_truth(x):
    messages = []
    try:
        if Truthless():
            x = x + 1
    except TypeError as error:
        messages.append(str(error))
    try:
        len(NegativeLength())
    except ValueError as error:
        messages.append(str(error))
    try:
        if NegativeLength():
            x = x + 1
    except ValueError as error:
        messages.append(str(error))
    return x, messages


@TABLE.rows
def test_operators(program, args, expect):
    TABLE.run(program, args, expect)


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "eq", "ne", "gt", "ge"]
)
def test_operator_module(name):
    function = getattr(operator, name)

    def program(x, a, b):
        return (
            function(a, b),
            function(x, b),
            function(b, x),
            function(Money(3), Money(4)) if name in ("add", "lt") else 0,
        )

    check(program, X, 7, 2, fullgraph=True, breaks_every=(None, "line"))


@pytest.mark.parametrize("value", [3, -2, 2.5, True])
@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "//", "%", "**", "<", "<=", "==", "!=", ">", ">="])
def test_tensor_with_number(sign, value):
    namespace = {}
    exec(f"def program(x, n):\n    return x {sign} n, n {sign} x, x {sign} x", namespace)
    tensor = X.clone() if sign == "**" else X.clone().requires_grad_(sign in "+-*/")
    check(namespace["program"], tensor, value, fullgraph=True, ops=3)


def test_operands_are_evaluated_left_to_right():
    def program(x):
        log = []

        def value(name, result):
            log.append(name)
            return result

        table = {}
        table[value("key", "k")] = value("value", 1)
        total = value("a", 1) + value("b", 2) * value("c", 3)
        value("owner", log)[value("index", slice(0, 0))] = value("items", [])
        return x + total, log, table

    check(program, X, fullgraph=True, breaks_every=(None, "line", "instruction"))


def test_symbolic_numbers_in_operators():
    def program(x, n):
        size = x.shape[0]
        return x * (size + n), size // 2, size % 3, -size, size == 4, n < size, size * n - 1, size / 2, [0] * size

    check(program, calls=[(torch.ones(4), 2), (torch.ones(5), 3), (torch.ones(7), 4)], fullgraph=True)
