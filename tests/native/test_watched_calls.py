"""Watched calls of native code: the watcher is told of the Python functions that the call enters, before they run."""

from __future__ import annotations

import functools
import sys
import threading

import pytest

from kiln import _native

LATER = pytest.mark.skipif(sys.version_info < (3, 12), reason="CPython 3.11 has a profile function for this")


class Refused(Exception):
    pass


def watched(function, *args, refuse=lambda code: False, **kwargs):
    """The result, and what the watcher was told."""
    told = []

    def watcher(code, names, given):
        told.append((code.co_name, names["__name__"], given))
        if refuse(code):
            raise Refused(code.co_name)

    return _native.call_watched(watcher, function, args, kwargs), told


def double(x, *more, y=1):
    return 2 * x + y


class Number:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return less(self, other)


def less(a, b):
    return a.value < b.value


@LATER
def test_functions_that_the_call_enters():
    result, told = watched(list, map(double, [1, 2]))
    assert result == [3, 5]
    assert told == [("double", __name__, (1,)), ("double", __name__, (2,))]


@LATER
def test_not_what_these_functions_enter():
    numbers = [Number(2), Number(1)]
    result, told = watched(sorted, numbers)
    assert [number.value for number in result] == [1, 2]
    assert [name for name, _, _ in told] == ["__lt__"]
    assert told[0][2] == (numbers[1], numbers[0])


@LATER
def test_a_refused_function_does_not_run():
    ran = []

    def body(x):
        try:
            ran.append(x)
        finally:
            ran.append("end")

    def generator():
        ran.append("generator")
        yield 1

    for function in (
        lambda: list(map(body, [1])),
        functools.partial(functools.reduce, lambda a, b: ran.append(a), [1, 2]),
    ):
        with pytest.raises(Refused):
            watched(function, refuse=lambda code: code.co_name in ("body", "<lambda>"))
    with pytest.raises(Refused, match="generator"):
        watched(list, generator(), refuse=lambda code: code.co_name == "generator")
    assert ran == []
    assert watched(list, map(body, [1]))[0] == [None] and ran == [1, "end"]  # the watch has ended


@LATER
def test_native_code_may_handle_the_refusal():
    class Meager:
        def __getattr__(self, name):
            raise AssertionError("ran")

    def watcher(code, names, given):
        raise AttributeError(code.co_name)

    assert _native.call_watched(watcher, hasattr, (Meager(), "name"), {}) is False


@LATER
def test_watches_in_watches():
    told = []

    def outer(code, names, given):
        told.append(("outer", code.co_name))

    def inner(code, names, given):
        told.append(("inner", code.co_name))

    def nested(x):
        return _native.call_watched(inner, list, (map(double, [x]),), {})

    assert _native.call_watched(outer, list, (map(nested, [1, 2]),), {}) == [[3], [5]]
    assert told == [("outer", "nested"), ("inner", "double")] * 2


@LATER
def test_other_threads_are_not_watched():
    begun, go_on, seen = threading.Event(), threading.Event(), []

    def elsewhere():
        begun.wait(30)
        seen.append(list(map(double, [1])))
        go_on.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()

    def waiting(x):
        begun.set()
        go_on.wait(30)
        return x

    result, told = watched(list, map(waiting, [1]))
    thread.join()
    assert (result, seen) == ([1], [[3]])
    assert [name for name, _, _ in told] == ["waiting"]


@LATER
def test_arguments_of_all_kinds():
    def many(a, b=2, /, c=3, *rest, d=4, **named):
        return [a, b, c, rest, d, named]

    def with_cell(x):
        return (lambda: x)()

    call = functools.partial(many, 1, d=5, z=6)
    result, told = watched(list, map(lambda *args: call(*args), [7], [8], [9]))
    assert result == [[1, 7, 8, (9,), 5, {"z": 6}]] and told == [("<lambda>", __name__, ())]
    result, told = watched(list, map(call, [7], [8], [9]))
    assert result == [[1, 7, 8, (9,), 5, {"z": 6}]] and told == [("many", __name__, (1, 7, 8))]
    assert watched(list, map(with_cell, [1]))[1] == [("with_cell", __name__, (1,))]
