"""Builtins called as CPython takes them: counts of arguments, conversions, warnings, hints of length."""

import functools
import itertools
import operator
import sys
import warnings
import weakref

import pytest
import torch

import kiln
from kiln.testing import check

X = torch.arange(3.0)

MISFITS = [
    (bool, (1, 2), {}),
    (bool, (), {"x": 1}),
    (len, (), {}),
    (len, ([], []), {}),
    (callable, (1, 2), {}),
    (hash, (1, 2), {}),
    (hash, (1,), {"a": 1}),
    (getattr, (1,), {}),
    (getattr, (1, 2), {}),
    (getattr, (1, "real"), {"a": 1}),
    (getattr, (1, "real", 2, 3), {}),
    (hasattr, (1, 2, 3), {}),
    (hasattr, (1, 2), {}),
    (setattr, (1, 2), {}),
    (setattr, ([], 2, 3), {}),
    (delattr, ([], 2), {}),
    (vars, (1, 2), {}),
    (dir, (1, 2), {}),
    (iter, (), {}),
    (iter, (42, 42), {}),
    (iter, ([],), {"a": 1}),
    (next, (), {}),
    (next, (iter([]), 1, 2), {}),
    (isinstance, (1, int), {"a": 1}),
    (issubclass, (int,), {}),
    (id, (), {}),
    (sys.exc_info, (1,), {}),
    (sys.exit, (1, 2), {}),
    (object.__init__, (), {}),
    (int, (1, 2), {}),
    (float, (1, 2), {}),
]


@pytest.mark.parametrize("function, args, kwargs", MISFITS)
def test_arguments_that_do_not_fit(function, args, kwargs):
    def program(x):
        try:
            function(*args, **kwargs)
        except TypeError as error:
            return x + 1, str(error)
        return x, "no error"

    check(program, X)


class Indexed(int):
    """Native code does not ask it for its ``__index__``: it is an int."""

    def __index__(self):
        return 42


class Small(int):
    """An int, but not exactly."""


class Fraction(float):
    """A float, but not exactly."""


def with_method(name, result):
    return type("Made", (), {name: lambda self: result})()


CONVERSIONS = [
    (int, lambda: Indexed(7)),
    (float, lambda: Indexed(7)),
    (operator.index, lambda: Indexed(7)),
    (range, lambda: Indexed(7)),
    (bin, lambda: Indexed(7)),
    (int, lambda: with_method("__int__", Small(3))),
    (int, lambda: with_method("__index__", True)),
    (int, lambda: with_method("__index__", 9)),
    (int, lambda: with_method("__trunc__", 5)),
    (int, lambda: with_method("__int__", "x")),
    (float, lambda: with_method("__float__", 1)),
    (float, lambda: with_method("__float__", Fraction(1.5))),
    (float, lambda: with_method("__index__", 9)),
    (complex, lambda: with_method("__complex__", 1 + 2j)),
    (complex, lambda: with_method("__complex__", 1)),
    (complex, lambda: with_method("__float__", 2.5)),
    (int, lambda: type("Blocked", (int,), {"__int__": None})(3)),
    (int, lambda: type("Text", (str,), {"__int__": lambda self: 3})("5")),
    (int, lambda: type("Text", (str,), {})("5")),
]


@pytest.mark.parametrize("kind, make", CONVERSIONS)
def test_conversions_ask_what_cpython_asks(kind, make):
    value = make()

    def program(x):
        try:
            found = kind(value)
        except TypeError as error:
            return x, str(error)
        return x + 1, found, type(found)

    def seen(function):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(X)
        return str(result), [(str(each.message), each.category) for each in caught]

    assert seen(kiln.compile(program, backend="eager")) == seen(program)


def test_hints_of_length():
    def program(x):
        iterators = [iter([1, 2, 3]), itertools.repeat(None, 5), iter(range(4)), itertools.chain([1]), iter({1: 2})]
        return x + 1, [operator.length_hint(iterator, 7) for iterator in iterators]

    check(program, X, calls=2)


def test_copies_of_tees():
    def program(x):
        first = itertools.tee("abc", 1)[0]
        second = type(first)(first)
        third = type(first)(second)
        return x + 1, list(second), list(third), list(first)

    check(program, X, calls=2)


def test_combinations_pass_elements_on():
    def program(x, y):
        pairs = list(itertools.combinations_with_replacement([x, y], 2))
        return [a + b for a, b in pairs]

    check(program, X, X + 1, fullgraph=True)


def documented(function):
    @functools.wraps(function)
    def wrapper(*args):
        """Its own."""
        return function(*args)

    return wrapper


def test_functions_keep_their_documentation():
    def program(x):
        def inner():
            """Said here."""

        def bare():
            return 1

        def stripped():
            """Taken away."""

        bare.__doc__ = "given"
        stripped.__doc__ = None
        return x + 1, documented(inner), inner, bare, stripped

    _, *functions = kiln.compile(program, backend="eager")(X)
    assert [function.__doc__ for function in functions] == ["Said here.", "Said here.", "given", None]


def test_a_nan_hashes_by_identity():
    def program(x):
        value = float("nan")
        return x + 1, hash(value) == object.__hash__(value), value in [value]

    assert kiln.compile(program, backend="eager")(X)[1:] == (True, True)


class Growing:
    """An index that makes its list longer while native code goes through it."""

    def __init__(self, values):
        self.values = values

    def __index__(self):
        if len(self.values) < 20:
            self.values.append(self)
        return 42


class Ordered(Growing):
    """Comparing it changes its list."""

    def __lt__(self, other):
        if len(self.values) < 20:
            self.values.append(self)
        return True


def test_containers_that_change_while_native_code_reads_them():
    def program(x):
        values = []
        values.append(Growing(values))
        smallest = []
        smallest += [Ordered(smallest), Ordered(smallest), Ordered(smallest)]
        least = min(smallest)
        return x + 1, bytes(values), len(values), smallest.index(least), len(smallest)

    check(program, X)


class Long:
    def __len__(self):
        return sys.maxsize + 1


class OwnNamespace:
    __dict__ = 8


def test_answers_that_are_out_of_the_ordinary():
    def attempt(function, *args):
        try:
            return function(*args)
        except (OverflowError, TypeError, ValueError) as error:
            return str(error)

    def program(x):
        raw = bytearray(b"abc")
        found = [attempt(operator.contains, raw, item) for item in (97, 300, None, b"ab", "a")]
        return x + 1, attempt(len, Long()), attempt(vars, 42), attempt(vars, OwnNamespace()), found, b"ab" in raw

    check(program, X)


def test_the_truth_of_not_implemented_is_warned_of():
    def program(x):
        return x + 1 if NotImplemented else x

    if sys.version_info >= (3, 14):  # there it is an error
        with pytest.raises(TypeError, match="boolean context"):
            kiln.compile(program, backend="eager")(X)
        return
    with pytest.warns(DeprecationWarning, match="boolean context"):
        assert torch.equal(kiln.compile(program, backend="eager")(X), X + 1)


class Pretender:
    @property
    def __class__(self):
        return int


PROXY = weakref.proxy(Long)


def test_the_class_that_an_object_says_it_has():
    def program(x):
        liar = Pretender()
        return x + 1, liar.__class__, type(liar), isinstance(liar, int), PROXY.__class__, type(PROXY), x.shape.__class__

    compiled = kiln.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(X)[1:] == program(X)[1:]


@pytest.mark.parametrize("make", [lambda: itertools.pairwise("abcdef"), lambda: itertools.tee(range(7))[1]])
def test_iterators_that_cannot_be_made_again_across_a_break(make):
    def program(x):
        pairs = make()
        first = next(pairs)
        print(end="")
        return x + 1, first, next(pairs), list(pairs)

    check(program, X, calls=2)


def test_special_methods_see_the_variables_of_the_frame_that_made_their_class():
    def program(x):
        class Counted:
            def __index__(self):
                if len(values) < 5:
                    values.append(self)
                return 42

            def __eq__(self, other):
                seen.append(len(values))
                return True

            __hash__ = None

        values = [0]
        seen = []
        print(end="")
        values = [Counted()]
        raw = bytes(values)
        return x + 1, raw, len(values), values.count(3), seen

    check(program, X)
