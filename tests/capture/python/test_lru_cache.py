"""Functions under `functools.lru_cache`: called as often as in eager, with the same counts, in the same order."""

import functools

import pytest
import torch

import kiln
from kiln.testing import check

X = torch.arange(3.0)


def counted(maxsize=128, typed=False, fail_on=()):
    """A cached function that writes down its calls."""
    calls = []

    @functools.lru_cache(maxsize=maxsize, typed=typed)
    def cached(*args, **kwargs):
        calls.append((args, kwargs))
        if args and args[0] in fail_on:
            raise ValueError(args[0])
        return [*args, *kwargs.values()]

    return cached, calls


def compare(make_program, arguments, fullgraph=False, **options):
    """Results, calls of the function, and counts of its cache after each call of the program, in eager and compiled."""
    seen = []
    for compiler in (lambda program: program, functools.partial(kiln.compile, backend="eager", fullgraph=fullgraph)):
        cached, calls = counted(**options)
        log = []
        program = compiler(make_program(cached, log))
        steps = []
        for args in arguments:
            try:
                result = program(X, *args)
            except ValueError as error:
                result = repr(error)
            steps.append((str(result), list(calls), cached.cache_info(), list(log)))
        seen.append(steps)
    assert seen[1] == seen[0]


@pytest.mark.parametrize("maxsize", [None, 128, 1, 0])
@pytest.mark.parametrize("typed", [False, True])
def test_counts_are_those_of_eager(maxsize, typed):
    def make(cached, log):
        def program(x, name):
            return x + len(cached(name)), cached(name, 2), cached(name, key=1.0), cached(name, key=1), cached(name)

        return program

    compare(make, [("a",), ("a",), ("b",), ("a",), ("c",), ("c",)], maxsize=maxsize, typed=typed)


def test_a_break_after_the_call_does_not_call_again():
    def make(cached, log):
        def program(x):
            y = x + len(cached("a"))
            log.append(float(y.sum()))
            return y + len(cached("a")), cached("b")

        return program

    compare(make, [(), (), ()])


def test_a_break_inside_a_function_that_was_inlined():
    def make(cached, log):
        def inner(x):
            n = len(cached("a"))
            print(end="")
            return x + n + len(cached("b"))

        def program(x):
            y = x * len(cached("c"))
            return inner(y) + len(cached("a"))

        return program

    compare(make, [(), (), ()])


def test_capture_that_starts_over():
    def make(cached, log):
        def program(x):
            n = len(cached("a"))
            numbers = (i for i in range(n + 3))
            first = next(numbers)
            print(end="")
            return x + n + first + sum(numbers) + len(cached("b"))

        return program

    compare(make, [(), (), ()])


def test_effects_come_in_the_order_of_the_program():
    def setup():
        log = []

        @functools.lru_cache
        def cached(n):
            log.append(n)
            return n

        def program(x):
            log.append("before")
            x = x + cached(1)
            log.append("after")
            return x, len(log)

        return program, [(X,), (X,), (X,)], log

    check(setup=setup)


def test_what_the_program_changed_is_what_the_function_sees():
    def setup():
        settings = {"scale": 2}

        @functools.lru_cache
        def cached(n):
            return n * settings["scale"]

        def program(x, scale):
            settings["scale"] = scale
            return x + cached(scale)

        return program, [(X, 3), (X, 4), (X, 3)], settings

    check(setup=setup)


def test_a_list_that_capture_has_looked_at_already():
    def setup():
        log = ["start"]

        @functools.lru_cache
        def cached(n):
            log.append(n)
            return n

        def program(x):
            before = len(log)
            return x + cached(1), before, len(log), log[-1]

        return program, [(X,), (X,), (X,)], log

    check(setup=setup)


def test_a_function_that_raises_is_called_each_time():
    def make(cached, log):
        def program(x, name):
            try:
                x = x + len(cached(name))
            except ValueError as error:
                log.append(str(error))
            return x + len(cached("good"))

        return program

    compare(make, [("bad",), ("bad",), ("good",), ("bad",)], fail_on=("bad",))


def test_an_error_that_goes_out():
    cached, _ = counted(fail_on=("bad",))
    compiled = kiln.compile(lambda x, name: x + len(cached(name)), backend="eager")
    for _ in range(3):
        with pytest.raises(ValueError, match="bad"):
            compiled(X, "bad")
    assert torch.equal(compiled(X, "good"), X + 1)


def test_a_function_that_raises_and_is_tried_again():
    def make(cached, log):
        def program(x):
            for _ in range(3):
                try:
                    return x + len(cached("bad"))
                except ValueError:
                    log.append("once more")
            return x

        return program

    compare(make, [(), ()], fail_on=("bad",))


def test_results_that_are_pushed_out_and_come_back():
    def make(cached, log):
        def program(x, name):
            return x + len(cached(name))

        return program

    names = ["a", "b", "c", "a", "a", "b", "c", "c", "a"]
    compare(make, [(name,) for name in names], maxsize=2)


def test_another_entry_does_not_ask_again():
    def make(cached, log):
        def program(x, scale):
            return x * scale + len(cached("a"))

        return program

    compare(make, [(2.0,), (True,), (2.0,), ("b" and 3,), (True,), (2.0,)])


def test_effects_of_a_function_called_with_numbers_that_vary():
    def setup():
        log = []

        @functools.lru_cache
        def cached(n):
            log.append(n)
            return n * 2

        return lambda x, n: x + cached(n), [(X, n) for n in (1, 2, 3, 4, 5, 3, 4, 1)], log

    check(setup=setup)


def test_lists_that_the_cache_holds_stay_the_same():
    def setup():
        cached = functools.cache(lambda n: [n])

        def program(x, n):
            values = cached(n)
            values.append(n)
            return x + len(values)

        return program, [(X, n) for n in (1, 2, 3, 4, 5, 3, 4, 1)], []

    check(setup=setup)


def test_keys_that_are_equal_and_not_the_same():
    cached = functools.lru_cache(lambda n: [n])

    def program(x, n):
        return x + 1, cached(n)

    compiled = kiln.compile(program, backend="eager")
    for n in (True, 1.0, 2, 2.0, 2 + 0j):
        assert compiled(X, n)[1] is cached(n)


def test_clearing_inside_the_program():
    def make(cached, log):
        def program(x):
            n = len(cached("a"))
            cached.cache_clear()
            return x + n + len(cached("a")), cached.cache_info()

        return program

    compare(make, [(), (), ()])
