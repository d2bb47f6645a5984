"""Programs a stranger wrote to find Kiln wrong: identity, finalisers, odd numbers, namespaces, and what they share."""

import contextlib
import functools
import gc
import inspect
import json
import operator
import subprocess
import sys
import warnings
import weakref

import numpy
import pytest
import torch

import kiln
from kiln.testing import check

EVERYWHERE = (None, "line", "instruction")


# -- which object it is ---------------------------------------------------------------------------------------------


def test_one_tuple_reached_two_ways_is_one_object():
    def program(items):
        pair = (items,)
        again = pair
        held = [pair, pair]
        return again is pair, held[0] is held[1], pair[:] is pair

    check(program, [1], breaks_every=EVERYWHERE)


def test_equal_tuples_are_not_the_same_tuple():
    def program(one, other):
        return one is other, one[0] + other[0]

    first, second = (torch.ones(1), [1]), (torch.ones(1), [1])
    check(program, calls=[(first, first), (first, second), (second, first), (second, second)])


def fresh_pairs():
    """Values that are equal, once as one object and once as two."""

    def program(one, other):
        return one is other, one == other

    makers = [lambda: "ab" * int("50"), lambda: int("5001"), lambda: float("1.5"), lambda: (int("7000"),)]
    calls = []
    for make in makers:
        value = make()
        calls += [(value, value), (value, make())]
    return program, calls


def test_equal_constants_are_not_the_same_constant():
    check(setup=fresh_pairs)


# -- when objects die -----------------------------------------------------------------------------------------------


def test_capture_keeps_nothing_that_the_frame_returned():
    class Thing:
        pass

    @kiln.compile
    def program(thing, x):
        kiln.graph_break()
        return (thing, x + 1)

    thing = Thing()
    watch = weakref.ref(thing)
    program(thing, torch.ones(1))
    gc.disable()
    try:
        del thing
        assert watch() is None
    finally:
        gc.enable()


# -- numbers --------------------------------------------------------------------------------------------------------


def test_integers_beyond_floats():
    def program(big, infinite):
        return big > infinite, big < infinite, big * 2

    check(program, 10**400, float("inf"), breaks_every=EVERYWHERE)


def test_method_of_a_number_alive_at_a_break():
    def program(number):
        method = number.bit_length
        return method()

    check(program, calls=[(5,), (10**30,)], breaks_every=EVERYWHERE)


@pytest.mark.parametrize("name", ["hex", "is_integer", "as_integer_ratio", "conjugate", "real", "imag", "node"])
def test_attributes_of_a_float_that_varies(name):
    def program(number, x):
        found = getattr(number, name, None)
        return x * number, found() if callable(found) else found

    check(program, calls=[(1.5, torch.ones(1)), (2.5, torch.ones(1)), (3.25, torch.ones(1))], breaks_every=EVERYWHERE)


# -- namespaces -----------------------------------------------------------------------------------------------------


def a_module():
    """A program whose globals are written as a dictionary."""
    namespace = {"torch": torch, "SCALE": 2, "helper": lambda x: x + 1}
    text = """
def inner(x):
    return helper(x) * SCALE

def program(which, x):
    if which == 1:
        globals()["SCALE"] = 3
    if which == 2:
        inner.__globals__["helper"] = lambda x: x - 1
    return inner(x)
"""
    exec(text, namespace)
    return namespace["program"], [(which, torch.ones(2)) for which in range(4)]


def test_globals_written_as_a_dictionary_are_seen_by_name():
    check(setup=a_module, breaks_every=EVERYWHERE)


# -- torch's own state -----------------------------------------------------------------------------------------------


def autocast_blocks_open():
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth - 1


def raises_inside(x, linear):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear(x)
        raise ValueError("on purpose")


def breaks_inside(x, linear):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kiln.graph_break()
        return linear(x).sum().item()


def graph_raises_inside(x, linear):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.linalg.cholesky(-linear(x).float() @ linear(x).float().t())


@pytest.mark.parametrize("program", [raises_inside, breaks_inside, graph_raises_inside])
def test_autocast_blocks_are_left_whatever_happens_in_them(program):
    """One that stays open makes every later block use casts of old parameters: training would be silently wrong."""
    linear = torch.nn.Linear(2, 2)
    compiled = kiln.compile(program)
    for _ in range(2):
        with contextlib.suppress(ValueError, RuntimeError):
            compiled(torch.ones(2, 2), linear)
        assert autocast_blocks_open() == 0


def with_device(x, device):
    with device:
        y = torch.zeros(2)
    return x + 1, y.device, torch.zeros(1).device


def enter_device(x, device):
    device.__enter__()
    try:
        y = torch.zeros(2)
    finally:
        device.__exit__(None, None, None)
    return x + 1, y.device


@pytest.mark.parametrize("program", [with_device, enter_device])
def test_a_device_as_a_block_is_where_tensors_are_made(program):
    check(program, torch.ones(1), torch.device("meta"), calls=2, breaks_every=EVERYWHERE)


# -- objects of classes written in C ----------------------------------------------------------------------------------


def test_keys_from_comparisons_come_out():
    def program(values, x):
        keys = [functools.cmp_to_key(operator.sub)(value) for value in values]
        return keys[0] < keys[1], x + 1

    check(program, [2, 1], torch.ones(1), breaks_every=EVERYWHERE)


def test_numbers_of_numpy_computed_while_tracing():
    def program(array, x):
        array[0] += 1
        value = array[0] * 2
        return value, x + value, type(value).__name__

    check(program, numpy.zeros(2), torch.ones(1), breaks_every=EVERYWHERE)


# -- the interpreter's own state --------------------------------------------------------------------------------------


def test_filters_of_warnings_are_the_programs_own():
    def program(x):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warnings.warn("one", stacklevel=1)
            y = x + 1
            warnings.warn("two", DeprecationWarning, stacklevel=1)
        return y, [str(warning.message) for warning in seen]

    check(program, torch.ones(1), calls=2, breaks_every=EVERYWHERE)


FILTERS_OF_A_CONTEXT = """
import sys, warnings
import torch
import kiln

def program(x):
    try:
        warnings.warn("one", stacklevel=1)
    except UserWarning:
        return x - 1
    return x + 1

x = torch.ones(1)
compiled = kiln.compile(program, backend="eager")
before = list(warnings.filters)
for action in ("ignore", "error", "ignore"):
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        assert torch.equal(compiled(x), program(x)), action
assert warnings.filters == before
print(getattr(sys.flags, "context_aware_warnings", 0))
"""


@pytest.mark.parametrize("aware", [0, 1])
def test_warnings_that_are_errors_in_a_context(aware):
    """From 3.14 on filters may belong to a context. Before, the option says nothing."""
    command = [sys.executable, "-X", f"context_aware_warnings={aware}", "-c", FILTERS_OF_A_CONTEXT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == str(aware if sys.version_info >= (3, 14) else 0)


def test_a_frame_that_looks_at_itself_has_lines():
    def program(x, lines):
        frame = sys._getframe()
        lines.append(frame.f_lineno - frame.f_code.co_firstlineno)
        kiln.graph_break()
        lines.append(frame.f_lineno - frame.f_code.co_firstlineno)
        return x + 1

    check(program, torch.ones(1), [], breaks_every=EVERYWHERE)


def caller_line():
    frame = sys._getframe(1)
    return frame.f_code.co_name, frame.f_lineno - frame.f_code.co_firstlineno


def stack_names():
    return [entry.function for entry in inspect.stack()][0]


def test_a_callee_that_looks_at_its_caller_finds_it():
    def program(x, lines):
        lines.append(caller_line())
        y = x + 1
        lines.append(caller_line())
        return y, stack_names()

    check(program, torch.ones(1), [], calls=2, breaks_every=EVERYWHERE)


# -- classes kept in lists ------------------------------------------------------------------------------------------


def test_classes_kept_in_a_list_outside():
    def program(error, kinds, x):
        found = [issubclass(type(error), tuple(kinds)), isinstance(error, tuple(kinds))]
        try:
            raise error
        except tuple(kinds):
            found.append("caught")
        except Exception:
            found.append("other")
        return found, x + 1

    calls = [(KeyError("a"), [KeyError], torch.ones(1)), (ValueError("b"), [KeyError, OSError], torch.ones(1))]
    check(program, calls=calls, breaks_every=EVERYWHERE)


def test_super_that_is_not_bound():
    def program(cls, x):
        return super(cls).__thisclass__, x + 1

    check(program, dict, torch.ones(1))


# -- the README -------------------------------------------------------------------------------------------------------


@kiln.compile
def step(x, history):
    y = torch.relu(x) * 2
    history.append(y.sum().item())
    if history[-1] > 3:
        y = y - 1
    return y.sin()


def test_what_is_compiled_already_can_be_checked():
    step(torch.ones(4), [])
    check(step, torch.ones(4), [], graphs=2)


# -- messages -------------------------------------------------------------------------------------------------------


def complaint(program, *args):
    with pytest.raises(kiln.exc.Unsupported) as caught:
        kiln.compile(program, fullgraph=True)(*args)
    return str(caught.value).splitlines()


def test_a_message_begins_with_the_users_own_line():
    def program(x):
        return json.dumps({"a": 1}), x

    lines = complaint(program, torch.ones(1))
    assert "test_stranger.py" in lines[0] and "json.dumps" in lines[0]
    assert lines[1].startswith("  which calls ") and "json" in lines[1]


@pytest.mark.parametrize("builtin", [print, open, eval])
def test_a_message_names_the_builtin(builtin):
    def program(x):
        return builtin("1"), x

    assert f"a call to {builtin.__name__}()" in "\n".join(complaint(program, torch.ones(1)))
