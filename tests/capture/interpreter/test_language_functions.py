# ruff: noqa: UP008  (the programs are what they are on purpose)
"""Functions in captured code: arguments of every kind, closures, recursion, globals, decorators, imports, locals."""

import functools

import pytest
import torch

from kiln.testing import Call, check
from tests.support import program_helpers as helpers
from tests.support.program_helpers import scale
from tests.support.program_table import ProgramTable, X, Y

TABLE = program = ProgramTable(breaks_every=(None, "line"))
DEEP = {"breaks_every": (None, "line", "instruction")}


# -- arguments ------------------------------------------------------------------------------------------------------


def everything(a, b=2, /, c=3, *args, d, e=5, **kwargs):
    return a, b, c, args, d, e, sorted(kwargs.items())


def positional_only(a, b=10, /):
    return a - b


def keyword_only(*, a=1, b):
    return a - b


def mutable_default(value, items=[]):
    items.append(value)
    return items


@program(X)
def calls_of_every_kind(x):
    values = [everything(1, d=4), everything(1, 2, 3, 4, 5, d=6, z=7), everything(1, c=0, d=1, e=2, b=9)]
    args, kwargs = (1, 2), {"d": 3, "y": 4}
    values += [everything(*args, **kwargs), everything(*args, 8, *[9, 10], d=0, **{"q": 1}, **{"r": 2})]
    values += [everything(*range(4), **dict(d=1)), everything(*"ab", d="c"), everything(*{"k": 1}, d=0)]
    values += [positional_only(1), positional_only(1, 2), keyword_only(b=2), keyword_only(b=1, a=5)]
    return x * len(values), values


@program(X)
def defaults(x):
    def local(a, b=x, *, c=x + 1):
        return a + b + c

    k = 5

    def frozen(value=k):
        return value

    k = 6
    first = mutable_default(1)
    second = mutable_default(2, [0])
    third = mutable_default(3)
    return local(1), local(x, c=2), frozen(), first, second, third, first is third, local.__kwdefaults__ is not None


@program.breaking(X)
def bad_calls(x):
    messages = []
    for attempt in (
        lambda: positional_only(),
        lambda: positional_only(1, 2, 3),
        lambda: positional_only(a=1),
        lambda: keyword_only(),
        lambda: keyword_only(1, b=2),
        lambda: keyword_only(b=1, z=2),
        lambda: everything(1, 2, 3, c=4, d=5),
        lambda: everything(*5, d=1),
        lambda: everything(1, **5),
        lambda: everything(1, d=1, **{"d": 2}),
        lambda: len(),
        lambda: x.shape(),
    ):
        try:
            attempt()
            messages.append("no error")
        except TypeError as error:
            messages.append(str(error))
    return x, messages


@program(X)
def star_unpacking(x):
    a, b = [1, 2], (3,)
    table = {"p": 1}
    return [*a, *b, 4], (*a, *"xy"), {*a, *b}, {**table, "q": 2, **{"p": 3}}, [x, *[x + 1]], {"z": 0, **table}


@program(X)
def lambdas(x):
    add = lambda a, b=1: a + b
    compose = lambda f, g: lambda v: f(g(v))
    return add(x), add(x, 5), compose(add, lambda v: v * 2)(x), (lambda *a, **k: (a, k))(1, z=2), (lambda: x)() is x


# -- closures -------------------------------------------------------------------------------------------------------


@program(X, **DEEP)
def counters(x):
    def make(start):
        count = start

        def up(step=1):
            nonlocal count
            count += step
            return count

        def get():
            return count

        return up, get

    up, get = make(10)
    up2, get2 = make(0)
    values = [up(), up(5), get(), up2(), get2(), get()]
    return x * values[0], values


@program(X, **DEEP)
def shared_cells(x):
    total = x

    def add(value):
        nonlocal total
        total = total + value

    def read():
        return total

    add(1)
    first = read()
    total = total * 2
    add(x)
    return first, read(), total


@program(X, **DEEP)
def parameters_as_cells(x, n=3):
    def inner():
        nonlocal n
        n += 1
        return x * n

    a = inner()
    x = x + 1
    b = inner()
    return a, b, n, x


@program(X, **DEEP)
def loops_making_closures(x):
    late = []
    early = []
    for i in range(3):
        late.append(lambda: x + i)
        early.append(lambda i=i: x + i)
    return [f() for f in late], [f() for f in early]


@program(X, **DEEP)
def three_levels(x):
    def outer(a):
        def middle(b):
            def inner(c):
                nonlocal a
                a = a + 1
                return a + b + c + x

            return inner

        return middle

    f = outer(1)(2)
    return f(3), f(3)


@program.breaking(X)
def deleted_cells(x):
    y = x + 1

    def read():
        return y

    first = read()
    del y
    try:
        read()
    except NameError as error:
        kind = type(error).__name__
    y = 5
    return first, kind, read()


@program.breaking(X)
def closures_over_breaks(x):
    count = 0

    def bump(by):
        nonlocal count, x
        count += by
        x = x + by
        return x

    bump(1)
    print(count)
    y = bump(2)
    print(count)
    return x, y, count, bump(3)


@program.breaking(X)
def escaping_functions(x):
    count = 0

    def bump(by=1, *, twice=False):
        """Adds."""
        nonlocal count
        count += by * (2 if twice else 1)
        return x + count

    bump.note = "kept"
    bump()
    return bump, bump.note, bump.__doc__, bump.__name__


def test_escaped_functions_share_their_cells():
    def program(x):
        count = 0

        def up():
            nonlocal count
            count += 1
            return x * count

        def get():
            return count

        up()
        return up, get

    import kiln

    for run in (program, kiln.compile(program)):
        up, get = run(X)
        assert get() == 1
        assert torch.equal(up(), X * 2)
        assert get() == 2


def test_closures_from_outside_are_written():
    def setup():
        total = torch.zeros(3)
        calls = 0

        def program(x):
            nonlocal total, calls
            calls += 1
            total = total + x * calls
            return total

        return program, (X,), lambda: (total, calls)

    def wrapped():
        program, args, state = setup()
        return program, args, None

    check(setup=wrapped, calls=3, breaks_every=(None, "line"))


# -- recursion ------------------------------------------------------------------------------------------------------


def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)


def is_even(n):
    return True if n == 0 else is_odd(n - 1)


def is_odd(n):
    return False if n == 0 else is_even(n - 1)


def fold(x, depth):
    if depth == 0:
        return x
    return fold(x + depth, depth - 1) * 2


@program(X)
def recursion(x):
    def local(n):
        return x if n == 0 else local(n - 1) + n

    return fold(x, 4), factorial(6), is_even(7), local(3)


def nested_sum(value):
    return sum(map(nested_sum, value)) if isinstance(value, list) else value


@program(X)
def recursion_through_builtins(x):
    return x + nested_sum([1, [2, [3, 4]], 5])


@program.breaking(X)
def recursion_with_breaks(x):
    def down(n, t):
        print("depth", n)
        return t if n == 0 else down(n - 1, t + n) * 2

    return down(3, x)


def test_endless_recursion():
    def program(x):
        return program(x + 1)

    import kiln

    with pytest.raises(RecursionError):
        kiln.compile(program)(X)


# -- globals --------------------------------------------------------------------------------------------------------

COUNTER = 0
TENSOR = torch.ones(3)
ITEMS = [1]
UNSET: int


@program(X, calls=3)
def globals_read_and_written(x):
    global COUNTER, TENSOR, CREATED
    COUNTER += 1
    TENSOR = TENSOR + x
    ITEMS.append(COUNTER)
    CREATED = TENSOR * COUNTER
    return TENSOR * COUNTER, len(ITEMS), CREATED is TENSOR


@program(X, calls=2)
def globals_of_another_module(x):
    helpers.set_level(helpers.get_level() + 1)
    helpers.LEVEL += 1
    y = scale(x, helpers.LEVEL)
    return y, helpers.get_level(), helpers.TABLE["k"]


@program.breaking(X)
def deleted_globals(x):
    global TEMPORARY
    TEMPORARY = x + 1
    y = TEMPORARY
    del TEMPORARY
    try:
        TEMPORARY
    except NameError as error:
        return y, str(error)


@program.breaking(X)
def globals_across_breaks(x):
    global COUNTER
    COUNTER += 5
    print(COUNTER)
    COUNTER *= 2
    y = x + COUNTER
    print(COUNTER)
    return y


def test_changed_globals_are_noticed():
    namespace = {"FACTOR": 2}
    exec("def program(x):\n    return x * FACTOR", namespace)
    import kiln

    compiled = kiln.compile(namespace["program"])
    assert torch.equal(compiled(X), X * 2)
    namespace["FACTOR"] = 3
    assert torch.equal(compiled(X), X * 3)
    namespace["FACTOR"] = "a"
    with pytest.raises(TypeError):
        compiled(X)


# -- decorators, imports, locals ------------------------------------------------------------------------------------


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


def times(n):
    def decorate(function):
        def wrapper(*args):
            return function(*args) * n

        return wrapper

    return decorate


@doubled
@times(3)
def decorated(x):
    """Documented."""
    return x + 1


@program(X)
def decorators(x):
    @doubled
    def inner(value, plus=1):
        """Inner."""
        return value + plus

    @times(2)
    @doubled
    def twice(value):
        return value

    return decorated(x), inner(x), inner(x, plus=5), twice(x), inner.__name__, inner.__doc__, inner.__wrapped__(1)


@program(X)
def imports(x):
    import math
    import os.path as path
    from collections import OrderedDict as Ordered
    from math import floor, pi

    import torch.nn.functional as F

    return F.relu(x - 0.5), math.sqrt(4), path.join("a", "b"), Ordered(a=1), floor(pi)


@program.breaking(X)
def failing_imports(x):
    messages = []
    try:
        import no_such_module_at_all  # noqa: F401
    except ImportError as error:
        messages.append(str(error))
    try:
        from math import no_such_name  # noqa: F401
    except ImportError as error:
        messages.append(str(error).split("(")[0])
    return x + 1, messages


@program(X)
def local_names(x):
    a = 1

    def inner():
        b = a
        return sorted(locals())

    names = sorted(locals())
    c = locals()["a"]
    return x + c, names, inner()


@program.breaking(X)
def looking_at_locals_across_breaks(x):
    a = 1
    unused = 2

    def inner():
        return a

    print(sorted(locals()))
    y = eval("a + unused") + x
    print(sorted(dir()), vars()["a"])
    return y, inner()


@program(X)
def function_attributes(x):
    def f(a: int, b: "str" = "x", *, c=1) -> float:
        """Doc."""
        return a

    f.extra = [1]
    f.extra.append(2)
    return (
        x,
        f.__name__,
        f.__qualname__,
        f.__doc__,
        f.__defaults__,
        f.__kwdefaults__,
        f.extra,
        f.__annotations__,
        f.__module__,
    )


@program(X)
def nested_functions_with_annotations(x):
    def f(value: torch.Tensor, *rest: int) -> torch.Tensor:
        total: int = sum(rest)
        return value + total

    return f(x, 1, 2)


@program.breaking(X)
def classes_inside(x):
    class Local:
        factor = 2

        def __init__(self, value):
            self.value = value

        def scaled(self):
            return self.value * self.factor

    class Derived(Local):
        def scaled(self):
            return super().scaled() + 1

    return Derived(x).scaled(), Local(x).scaled()


class Parent:
    kind = "parent"

    def __init__(self, value):
        self.value = value

    def scaled(self, by=1):
        return self.value * by

    @classmethod
    def make(cls, value):
        return cls(value)

    @property
    def doubled(self):
        return self.value * 2


class Child(Parent):
    kind = "child"

    def __init__(self, value):
        super().__init__(value)
        self.parent_kind = super().kind

    def scaled(self, by=1):
        method = super().scaled
        return method(by) + super(Child, self).scaled(by=2) + super().doubled

    @classmethod
    def make(cls, value):
        made = super().make(value)
        made.made = True
        return made

    def in_closure(self):
        def inner():
            return super(Child, self).scaled() + __class__.kind.count("c")

        return inner()


@program(X)
def super_calls(x):
    child = Child.make(x)
    return child.scaled(3), child.parent_kind, child.made, child.in_closure(), Child(x).doubled


DROPPED = []


class Finalized:
    def __init__(self, value):
        self.value = value

    def __del__(self):
        DROPPED.append(self.value)


@program.breaking(X)
def finalizers(x):
    first = Finalized(1)
    first = None
    DROPPED.append("after the first")
    second = Finalized(2)
    y = x + second.value
    print("break")
    del second
    return y, list(DROPPED), first


@program.breaking(X, Finalized(3))
def finalizers_of_arguments(x, kept):
    return x + kept.value, len(DROPPED)


@TABLE.rows
def test_functions(program, args, expect):
    TABLE.run(program, args, expect)


def test_arguments_of_the_compiled_function():
    def program(a, b=2, /, c=3, *args, d, e=5, **kwargs):
        return a * b + c, args, d, e, kwargs

    calls = [
        Call((X,), {"d": 1}),
        Call((X, 3, 4, 5, 6), {"d": 1, "e": 2, "z": 3}),
        Call((X,), {"d": Y, "b": 1, "a": 7}),
    ]
    check(program, calls=calls, breaks_every=(None, "line"))


@pytest.mark.parametrize(
    "call", [Call(), Call((X, X, X)), Call((X,), {"z": 1}), Call((X,), {"a": X}), Call((), {"b": 1})], ids=repr
)
def test_wrong_arguments_raise_as_in_eager(call):
    def program(a, b=1):
        return a + b

    check(program, calls=[call])


def test_methods_and_callables():
    class Layer:
        def __init__(self, weight):
            self.weight = weight

        def __call__(self, x, *, bias=0):
            return x * self.weight + bias

        def method(self, x):
            return self(x) + self(x, bias=1)

        @classmethod
        def build(cls, weight):
            return cls(weight)

        @staticmethod
        def plain(x):
            return x + 1

    def program(x, layer):
        other = layer.build(2)
        bound = layer.method
        return layer(x), bound(x), other(x, bias=3), Layer.plain(x), layer.plain(x), Layer.method(other, x)

    check(program, X, Layer(3), fullgraph=True, breaks_every=(None, "line"))
