"""Functions under `functools.lru_cache`, and loggers: done once stays done once, logged is logged as in eager."""

import functools
import logging
import warnings

import pytest
import torch

import kiln
from kiln.testing import check

X = torch.arange(3.0)


def test_cached_results_are_those_of_the_cache():
    def setup():
        calls = []

        @functools.cache
        def table(n):
            calls.append(n)
            return [n]

        def program(x):
            return x + table(2)[0], table(2) is table(2), table(3)

        return program, [(X,), (X,), (X,)], calls

    check(setup=setup, fullgraph=True, graphs=1)


def test_a_cleared_cache_is_noticed():
    seen = iter(range(10))
    cached = functools.lru_cache(lambda: next(seen))
    compiled = kiln.compile(lambda x: x + cached(), fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), X)
    assert torch.equal(compiled(X), X)
    cached.cache_clear()
    assert torch.equal(compiled(X), X + 1)
    assert torch.equal(compiled(X), X + 1)


def test_numbers_that_vary_do_not_recompile_for_ever():
    cached = functools.lru_cache(lambda n: torch.arange(n))
    check(lambda x: x + cached(x.shape[0]), calls=[(torch.ones(n),) for n in (3, 4, 5, 6)], fullgraph=True, graphs=2)


def test_what_a_cached_function_warns_of_is_seen_once():
    def warn_once():
        warnings.warn("careful", UserWarning, stacklevel=1)

    cached = functools.lru_cache(warn_once)

    def program(x):
        cached()
        return x + 1

    compiled = kiln.compile(program, fullgraph=True, backend="eager")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compiled(X)
        compiled(X)
    assert [str(warning.message) for warning in seen] == ["careful"]


class Lines(logging.Handler):
    """Keeps what a formatter could show of each record."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((record.levelname, record.getMessage(), record.lineno, record.funcName, record.name))


LOGGER = logging.getLogger("kiln.tests.logs")


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING, logging.CRITICAL])
def test_loggers_log_what_they_log_in_eager(level):
    def deeper(text):
        LOGGER.info("inner %s", text)
        LOGGER.error("for the caller", stacklevel=2)

    def program(x, name):
        LOGGER.debug("a tensor of shape %s", tuple(x.shape))
        deeper(name)
        if LOGGER.isEnabledFor(logging.INFO):
            LOGGER.log(logging.INFO, f"called with {name}")
        return x + LOGGER.getEffectiveLevel()

    def run(function):
        handler = Lines()
        LOGGER.addHandler(handler)
        LOGGER.setLevel(level)
        try:
            values = [function(X, "one"), function(X, "one")]
            LOGGER.setLevel(logging.INFO)
            return [*values, function(X, "one")], handler.seen
        finally:
            LOGGER.removeHandler(handler)
            LOGGER.setLevel(logging.NOTSET)

    values, lines = run(kiln.compile(program, fullgraph=True, backend="eager"))
    expected, eager_lines = run(program)
    assert lines == eager_lines
    assert all(map(torch.equal, values, expected))


def test_messages_that_are_not_constant_are_logged_between_graphs():
    def setup():
        handler = Lines()
        logger = logging.Logger("kiln.tests.values")
        logger.addHandler(handler)

        def program(x):
            logger.warning("value %s", x + 1)
            return x * 2

        return program, (X,), handler.seen

    report = check(setup=setup)
    assert report.breaks == 1


# -- warnings ---------------------------------------------------------------------------------------------------------


def caught(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [(str(each.message), each.category, each.filename, each.lineno) for each in seen]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_warnings_come_from_the_programs_own_line(level):
    """Of the function that warns, of one that was inlined, or of a caller outside."""

    def inner(x):
        warnings.warn("careful", RuntimeWarning, stacklevel=level)
        return x + 1

    def program(x):
        return inner(x) * 2

    def call(function):
        return function(X)

    expected = caught(lambda: call(program))
    compiled = kiln.compile(program, fullgraph=True, backend="eager")
    assert [caught(lambda: call(compiled)) for _ in range(2)] == [expected, expected]


def test_warnings_that_are_errors_are_raised_where_they_are_given():
    def program(x):
        try:
            warnings.warn("careful", stacklevel=1)
        except UserWarning:
            return x - 1
        return x + 1

    compiled = kiln.compile(program, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(compiled(X), X + 1)
        warnings.simplefilter("error")
        assert torch.equal(compiled(X), X - 1)
