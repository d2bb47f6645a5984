"""Long computations without tensors are left to Python, which does them many times faster than capture."""

import collections
import itertools

import pytest
import torch

import kiln
from kiln.report import events
from kiln.testing import same

X = torch.arange(3.0)


def by_loop(x):
    table = collections.UserDict()
    for number in range(3000):
        table[str(number)] = number
    while table:
        table.popitem()
    return x + len(table)


def by_calls_of_native_code(x):
    return x + sum(map(lambda number: number % 7, range(20_000)))


def by_generator(x):
    return x + max(number % 11 for number in range(20_000))


def by_recursion(x):
    def count(depth):
        return 1 if depth == 0 else count(depth - 1) + count(depth - 1)

    return x + count(12)


@pytest.mark.parametrize("program", [by_loop, by_calls_of_native_code, by_generator, by_recursion])
def test_it_is_left_to_python(program):
    want = program(X)
    with kiln.config.patch(max_idle_steps=3000), events.listen() as heard:
        assert same(want, kiln.compile(program, backend="eager")(X))
    assert heard.skips[0][1] == "a long computation without tensors"
    assert not heard.breaks


def test_what_comes_before_it_is_a_graph():
    def program(x):
        x = x * 2
        total = 0
        for number in range(20_000):
            total += number % 3
        return x + total

    with kiln.config.patch(max_idle_steps=3000), events.listen() as heard:
        assert same(program(X), kiln.compile(program, backend="eager")(X))
    assert heard.breaks[0].reason == "a long computation without tensors"
    assert not heard.skips


def test_a_long_loop_with_tensors_is_captured():
    def program(x):
        for number in range(2000):
            total = sum(value % 3 for value in range(5))
            x = x + total * number
        return x

    with kiln.config.patch(max_idle_steps=3000):
        assert same(program(X), kiln.compile(program, backend="eager", fullgraph=False)(X))
        with events.listen() as heard:
            kiln.compile(program, backend="eager")(X + 1)
    assert not heard.breaks
    assert not heard.skips


def test_one_graph_where_that_is_asked_for():
    with kiln.config.patch(max_idle_steps=3000):
        assert same(by_generator(X), kiln.compile(by_generator, backend="eager", fullgraph=True)(X))


def by_native_iteration(x):
    forward, backward = itertools.tee(itertools.repeat(None, 300_000))
    found = any(forward)
    del backward
    return x + found


def test_native_iteration_is_left_to_python():
    with kiln.config.patch(max_idle_steps=3000), events.listen() as heard:
        assert same(by_native_iteration(X), kiln.compile(by_native_iteration, backend="eager")(X))
        assert same(by_native_iteration(X), kiln.compile(by_native_iteration, backend="eager", fullgraph=True)(X))
    assert "a long computation without tensors" in heard.skips[0][1]
