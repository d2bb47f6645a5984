"""Exceptions that are no ``Exception``s, and chains of contexts, circles among them."""

import asyncio
import contextlib
import sys

import pytest

from kiln.testing import check
from tests.support.program_table import ProgramTable, X

TABLE = program = ProgramTable()


class Stop(BaseException):
    """The program's own, which no ``except Exception`` catches."""


KINDS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Stop, BaseException)


def raising(kind):
    raise kind("told")


class Raising:
    """Raises in every special method."""

    def __init__(self, kind):
        self.kind = kind

    def __getattr__(self, name):
        raise self.kind(name)

    def __eq__(self, other):
        raise self.kind("eq")

    def __hash__(self):
        raise self.kind("hash")

    def __iter__(self):
        raise self.kind("iter")

    def __len__(self):
        raise self.kind("len")

    def __getitem__(self, key):
        raise self.kind("item")

    def __add__(self, other):
        raise self.kind("add")

    def __bool__(self):
        raise self.kind("bool")

    def __call__(self):
        raise self.kind("call")

    def __contains__(self, item):
        raise self.kind("contains")

    def __repr__(self):
        raise self.kind("repr")

    @property
    def shown(self):
        raise self.kind("property")

    def __enter__(self):
        raise self.kind("enter")

    def __exit__(self, *details):
        raise self.kind("exit")


def entered(value):
    with value:
        return "never"


ACTIONS = (
    lambda value: value.missing,
    lambda value: value.shown,
    lambda value: value == 1,
    lambda value: value != 1,
    lambda value: [item for item in value],
    lambda value: len(value),
    lambda value: value[0],
    lambda value: value + 1,
    lambda value: 1 if value else 2,
    lambda value: value(),
    lambda value: 3 in value,
    lambda value: getattr(value, "other", None),
    lambda value: hasattr(value, "other"),
    entered,
)


def caught(action, value, kind):
    try:
        return action(value)
    except Exception:
        return "an ordinary one"
    except kind as error:
        return type(error).__name__, error.args, error.__context__ is None


for _kind in KINDS:

    @program(X, _kind, name=f"caught_{_kind.__name__}")
    def caught_where_raised(x, kind):
        try:
            raise kind("here")
        except Exception:
            seen = "an ordinary one"
        except BaseException as error:
            seen = type(error).__name__
        try:
            raising(kind)
        except kind as error:
            message = error.args
        finally:
            x = x + 1
        return x * 2, seen, message

    @program(X, _kind, name=f"special_methods_raise_{_kind.__name__}")
    def raised_by_special_methods(x, kind):
        found = []
        for action in ACTIONS:
            found.append(caught(action, Raising(kind), kind))
        return x + len(found), found

    @program(X, _kind, name=f"with_blocks_and_{_kind.__name__}")
    def with_blocks(x, kind):
        log = []

        @contextlib.contextmanager
        def noting(swallow):
            try:
                yield log
            except BaseException as error:
                log.append(type(error).__name__)
                if not swallow:
                    raise
            finally:
                log.append("left")

        with noting(swallow=True):
            raising(kind)
        try:
            with noting(swallow=False), noting(swallow=False):
                raising(kind)
        except kind as error:
            log.append(error.args)
        return x + len(log), log

    @program(X, _kind, name=f"generators_and_{_kind.__name__}")
    def generators(x, kind):
        log = []

        def numbers():
            try:
                yield 1
                yield 2
            except BaseException as error:
                log.append(("inside", type(error).__name__))
                raise
            finally:
                log.append("closed")

        def outer():
            try:
                yield from numbers()
            except kind as error:
                log.append(("outer", error.args))
                yield 7

        def failing():
            yield 1
            raise kind("from a generator")

        made = numbers()
        next(made)
        try:
            made.throw(kind("thrown"))
        except kind as error:
            log.append(error.args)
        through = outer()
        next(through)
        log.append(through.throw(kind("deep")))
        through.close()
        try:
            for number in failing():
                log.append(number)
        except kind as error:
            log.append((error.args, error.__context__ is None))
        return x + len(log), log


@program(X)
def exits(x):
    seen = []
    for code in (None, 3, "message"):
        try:
            sys.exit(code)
        except SystemExit as error:
            seen.append(error.code)
    return x + 1, seen


@program(X)
def native_fields(x):
    made = [OSError(2, "why", "file", None, "other"), ImportError("m", name="n", path="p"), StopIteration(3)]
    made += [
        AttributeError("a", name="n", obj=made),
        NameError("n", name="n"),
        SystemExit(4),
        FileNotFoundError(1, "b"),
    ]
    made += [UnicodeDecodeError("utf8", b"text", 1, 2, "why"), SyntaxError("s", ("file", 1, 2, "text"))]
    x = x + 1
    fields = [(type(error).__name__, error.args, str(error)) for error in made]
    first, second, third, fourth, fifth, sixth, seventh, eighth, ninth = made
    fields += [(first.errno, first.strerror, first.filename, first.filename2), (second.name, second.path, second.msg)]
    fields += [third.value, fourth.name, fourth.obj is made, fifth.name, sixth.code, seventh.filename, eighth.start]
    return x, fields, ninth.filename, ninth.text, ninth.lineno


# -- contexts -------------------------------------------------------------------------------------------------------


def chain_of(error, longest=8):
    """The names along the contexts of an exception, as far as the first one seen twice."""
    names, seen = [], []
    while error is not None and len(names) < longest:
        names.append(str(error))
        if any(error is one for one in seen):
            break
        seen.append(error)
        error = error.__context__
    return names


@program(X)
def circle_below_what_is_handled(x):
    a, b, c, d = ValueError("a"), ValueError("b"), ValueError("c"), KeyError("d")
    a.__context__, b.__context__, c.__context__ = b, c, b
    try:
        try:
            raise a
        except ValueError:
            raise d  # noqa: B904
    except KeyError as error:
        return x + 1, chain_of(error)


@program(X)
def circle_of_one(x):
    a = ValueError("a")
    a.__context__ = a
    try:
        try:
            raise a
        except ValueError:
            raise TypeError("b")  # noqa: B904
    except TypeError as error:
        return x + 1, chain_of(error)


@program(X)
def long_chain(x):
    last = ValueError("first")
    for index in range(6):
        try:
            try:
                raise last
            except Exception:
                raise ValueError(str(index))  # noqa: B904
        except ValueError as error:
            last = error
    try:
        raise last
    except ValueError as error:
        return x + 1, chain_of(error, 12)


@program(X)
def raised_again_inside_its_own_context(x):
    try:
        try:
            raise ValueError("inner")
        except ValueError as inner:
            try:
                raise TypeError("outer")
            except TypeError:
                raise inner  # noqa: B904
    except ValueError as error:
        return x + 1, chain_of(error)


@program(X)
def thrown_through_a_generator_that_delegates(x):
    def inner():
        yield 1

    def outer():
        try:
            raise KeyError("handled outside")
        except KeyError:
            yield from inner()

    generator = outer()
    next(generator)
    try:
        generator.throw(ValueError("thrown"))
    except ValueError as error:
        return x + 1, chain_of(error)


@pytest.mark.parametrize("kind", [ValueError, KeyError, OSError, UnicodeDecodeError, Stop, RuntimeError])
@pytest.mark.parametrize("text", [str, repr, "{}".format, "{!r}".format], ids=["str", "repr", "format", "format_repr"])
def test_text_of_an_exception_from_outside(kind, text):
    def told(x, error):
        return x + 1, text(error), f"{error}!", [str(error)], error.args == error.args

    def made(*args):
        return kind("utf8", b"bytes", *args) if kind is UnicodeDecodeError else kind(*args)

    last = (
        ((1, 2, "why"), (2, 3, "why")) if kind is UnicodeDecodeError else (("one",), ("two",), ("two", 3), (), (None,))
    )
    calls = [(X, made(*args)) for args in last]
    check(told, calls=calls, fullgraph=False)


@TABLE.rows
def test_exception_chains(program, args, expect):
    TABLE.run(program, args, expect)
