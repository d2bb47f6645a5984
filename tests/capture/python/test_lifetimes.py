"""Programs that ask whether objects are alive, who holds them and how large they are: as in eager, whatever breaks."""

import gc
import sys
import weakref
from weakref import proxy
from weakref import ref as weak

import pytest
import torch

import kiln
from kiln import exc
from kiln.testing import check

X = torch.ones(3)


class Plain:
    pass


def dead_after_del(x):
    made = Plain()
    seen = weakref.ref(made)
    alive = seen() is made
    print("a break", end="")
    del made
    return x + 1, alive, seen() is None


def dead_after_a_break_before(x):
    print("a break", end="")
    made = Plain()
    held = [made]
    seen = weak(made)
    del made
    first = seen() is held[0]
    held.clear()
    return x * 2, first, seen() is None


def proxy_raises(x):
    made = Plain()
    made.value = x
    seen = proxy(made)
    total = seen.value + 1
    made = None
    try:
        seen.value
    except ReferenceError:
        return total, "dead"
    return total, "alive"


def asked_in_a_function_made_inside(x):
    def is_alive(item):
        return weakref.ref(item)

    made = Plain()
    seen = is_alive(made)
    print("a break", end="")
    del made
    return x + 1, seen() is None


def cycle_is_collected(x):
    made = Plain()
    made.own = made
    seen = weakref.ref(made)
    print("a break", end="")
    del made
    gc.collect()
    return x + 1, seen() is None


def finalizer_runs_at_del(x):
    log = []

    class Logging:
        def __del__(self):
            log.append("gone")

    made = Logging()
    log.append("before")
    print("a break", end="")
    del made
    log.append("after")
    return x + 1, log


def weak_dictionary(x):
    table = weakref.WeakValueDictionary()
    made = Plain()
    table["key"] = made
    before = len(table)
    del made
    return x + 1, before, len(table)


def reference_counts(x):
    item = object()
    before = sys.getrefcount(item)
    several = [item] * 5
    return x + 1, sys.getrefcount(item) - before, len(several)


def exception_lets_go(x):
    class Own(Exception):
        pass

    def raising(item):
        raise Own(item)

    made = Plain()
    seen = weakref.ref(made)
    try:
        raising(made)
    except Own:
        pass
    print("a break", end="")
    del made
    return x + 1, seen() is None


PROGRAMS = [
    dead_after_del,
    dead_after_a_break_before,
    proxy_raises,
    asked_in_a_function_made_inside,
    cycle_is_collected,
    finalizer_runs_at_del,
    weak_dictionary,
    reference_counts,
    exception_lets_go,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_objects_die_as_in_eager(program):
    check(program, X)


def test_what_it_calls_is_compiled():
    captured = []

    def backend(graph, inputs):
        captured.append(graph)
        return graph.forward

    def work(x):
        return torch.relu(x) * 2

    def program(x):
        made = Plain()
        seen = weakref.ref(made)
        y = work(x)
        del made
        return y, seen() is None

    y, dead = kiln.compile(program, backend=backend)(X)
    assert torch.equal(y, X * 2) and dead
    assert len(captured) == 1


def test_a_question_that_is_not_asked_breaks_nothing():
    def program(x, ask=False):
        if ask:
            return weakref.ref(x)
        return torch.relu(x) + 1

    assert torch.equal(kiln.compile(program, fullgraph=True, backend="eager")(X), X + 1)
    with pytest.raises(exc.Unsupported, match="weakref"):
        kiln.compile(program, fullgraph=True, backend="eager")(X, True)


def test_functions_that_ask_nothing_are_split():
    captured = []

    def backend(graph, inputs):
        captured.append(graph)
        return graph.forward

    def program(x):
        y = torch.relu(x) + sys.maxsize % 2
        print(end="")
        return y * 2

    assert torch.equal(kiln.compile(program, backend=backend)(X), (X + 1) * 2)
    assert len(captured) == 2
