"""Exceptions that are no ``Exception``, raised by Python code that native code has called: the program catches them."""

import functools
import itertools

import pytest

from kiln.testing import check
from tests.support.program_table import X


class Stop(BaseException):
    """One of the program's own."""


KINDS = (KeyboardInterrupt, SystemExit, GeneratorExit, Stop)


class Raising:
    """Raises the same thing from every special method."""

    def __init__(self, error):
        object.__setattr__(self, "error", error)

    def _raise(self, *args):
        raise object.__getattribute__(self, "error")

    __iter__ = __len__ = __eq__ = __hash__ = __repr__ = __bool__ = __lt__ = __gt__ = __add__ = __radd__ = _raise
    __index__ = __call__ = __contains__ = __getitem__ = __setitem__ = __int__ = __float__ = __abs__ = _raise
    __getattr__ = __format__ = __divmod__ = __round__ = _raise


class Ending:
    """An iterator that raises."""

    def __init__(self, error):
        self.error = error

    def __iter__(self):
        return self

    def __next__(self):
        raise self.error


class Sized:
    """An iterable whose length raises."""

    def __init__(self, error):
        self.error = error

    def __iter__(self):
        return iter([1])

    def __len__(self):
        raise self.error


def yielding(error):
    yield 1
    raise error


def raising(error):
    def function(*args):
        raise error

    return function


PROGRAMS = {
    "list of a generator": lambda e: list(yielding(e)),
    "list of an iterable": lambda e: list(Raising(e)),
    "list of an iterator": lambda e: list(Ending(e)),
    "list of something sized": lambda e: list(Sized(e)),
    "tuple": lambda e: tuple(Ending(e)),
    "set": lambda e: set(Ending(e)),
    "set update": lambda e: {1}.update(Ending(e)),
    "set union": lambda e: {1}.union(yielding(e)),
    "dict": lambda e: dict(Ending(e)),
    "dict update": lambda e: {}.update(Ending(e)),
    "dict key": lambda e: {Raising(e): 1},
    "set element": lambda e: {Raising(e)},
    "sorted": lambda e: sorted([Raising(e), Raising(e)]),
    "sort key": lambda e: sorted([1, 2], key=raising(e)),
    "map": lambda e: list(map(raising(e), [1])),
    "filter": lambda e: list(filter(raising(e), [1])),
    "accumulate": lambda e: list(itertools.accumulate([1, 2], raising(e))),
    "reduce": lambda e: functools.reduce(raising(e), [1, 2]),
    "zip": lambda e: list(zip([1], Ending(e), strict=False)),
    "sum": lambda e: sum([Raising(e)]),
    "max": lambda e: max([Raising(e), Raising(e)]),
    "any": lambda e: any([Raising(e)]),
    "repr": lambda e: repr([Raising(e)]),
    "text": lambda e: f"{Raising(e)}",
    "join": lambda e: ",".join(Ending(e)),
    "hash": lambda e: hash(Raising(e)),
    "equality": lambda e: [Raising(e)] == [Raising(e)],
    "membership": lambda e: 1 in Raising(e),
    "index": lambda e: [Raising(e)].index(1),
    "range": lambda e: range(Raising(e)),
    "truth": lambda e: not Raising(e),
    "attribute": lambda e: Raising(e).anything,
    "hasattr": lambda e: hasattr(Raising(e), "anything"),
    "unpacked": lambda e: [*Ending(e)],
    "number": lambda e: int(Raising(e)),
    "call": lambda e: Raising(e)(),
    "partial": lambda e: functools.partial(raising(e))(),
    "extend": lambda e: [].extend(yielding(e)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_catches_what_it_raises(name):
    run = PROGRAMS[name]

    def program(x, kind):
        try:
            run(kind("from inside"))
        except BaseException as error:
            return x + 1, type(error).__name__, str(error)
        return x

    for kind in KINDS:
        check(program, X, kind)


def test_finally_runs_and_a_later_clause_catches():
    def program(x):
        log = []
        try:
            try:
                list(yielding(KeyboardInterrupt("now")))
            except Exception:
                log.append("wrong")
            finally:
                log.append("finally")
        except KeyboardInterrupt as error:
            log.append(str(error))
        return x + 1, log

    check(program, X)


def test_elements_that_came_before_stay():
    def program(x, log):
        made = []
        for target in (log, made):
            try:
                target.extend(yielding(ValueError("late")))
            except ValueError as error:
                target.append(str(error))
        return x + 1, made

    check(program, X, [0], calls=2, breaks_every=(None, "line"))


def test_it_leaves_the_function():
    def program(x):
        list(map(raising(SystemExit(3)), [x]))
        return x

    check(program, X)
