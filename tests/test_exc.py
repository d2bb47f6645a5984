"""Kiln's errors begin with the user's line, say what and why, and end with a way out."""

from __future__ import annotations

import copy
import pickle

import pytest

from kiln import exc


def here():
    return exc.Location.of_code(here.__code__, here.__code__.co_firstlineno + 1)


def test_unsupported_reads_well():
    location = exc.Location("mymodel.py", 12, "forward", "    y = np.sin(x.numpy())\n")
    error = exc.Unsupported(
        "a call to numpy.sin", reason="it is code in a C extension that Kiln knows nothing about", stack=[location]
    )
    assert str(error).splitlines() == [
        "mymodel.py:12, in forward:   y = np.sin(x.numpy())",
        "Kiln cannot capture a call to numpy.sin: it is code in a C extension that Kiln knows nothing about.",
        f"What to do: {exc.DEFAULT_HINT}.",
    ]
    assert error.location is location


def test_source_text_is_read_when_wanted():
    assert "return exc.Location.of_code" in str(here())
    assert str(exc.Location("<gone>", 3, "f")) == "<gone>:3, in f"


def test_callers_come_below():
    error = exc.Unsupported("this", stack=[exc.Location("a.py", 2, "inner", "x")])
    error.add_caller(exc.Location("a.py", 9, "outer", "inner()"))
    assert str(error).splitlines()[:2] == ["a.py:2, in inner:   x", "  called from a.py:9, in outer:   inner()"]


def test_deep_stacks_are_shortened():
    stack = [exc.Location("a.py", line, "f", "f()") for line in range(100)]
    lines = exc.render_stack(stack).splitlines()
    assert len(lines) == 10
    assert "91 more calls" in lines[5]


@pytest.mark.parametrize(
    ("error", "base", "words"),
    [
        (exc.NotCallable(3), TypeError, ["callable", "3 of type int"]),
        (exc.UnknownBackend("eagr", ["print", "eager"]), ValueError, ["'eagr'", "did you mean 'eager'?"]),
        (exc.UnknownBackend("zzz", ["print", "eager"]), ValueError, ["known names: eager, print"]),
        (exc.InvalidBackend("mine", None), TypeError, ["'mine'", "None of type NoneType"]),
        (exc.BackendError("mine", ZeroDivisionError("oh")), RuntimeError, ["'mine'", "ZeroDivisionError: oh"]),
        (exc.RecompileLimitExceeded("f", 8, ["size 4, then 5"]), RuntimeError, ["8 times", "1. size 4, then 5"]),
        (exc.UserError("Bad call", hint="call well"), RuntimeError, ["Bad call.", "What to do: call well."]),
        (exc.InternalError("rewriting f", KeyError("k")), RuntimeError, ["rewriting f: KeyError", "bug in Kiln"]),
        (exc.UnknownSetting("a", ["b"]), AttributeError, ["known names: b"]),
        (exc.Unsupported("it", hint=""), RuntimeError, ["Kiln cannot capture it."]),
    ],
)
def test_errors(error, base, words):
    assert isinstance(error, exc.KilnError) and isinstance(error, base)
    for word in words:
        assert word in str(error)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)


def test_causes_are_chained():
    cause = ZeroDivisionError("oh")
    assert exc.BackendError("mine", cause).__cause__ is cause
    assert exc.InternalError("thinking", cause).__cause__ is cause


def test_recompile_warning():
    warning = exc.RecompileWarning.about("f", 8, ["first", "second"], exc.Location("a.py", 1, "f", "def f(x):"))
    assert isinstance(warning, UserWarning)
    assert str(warning).startswith("a.py:1, in f:   def f(x):")
    assert "2. second" in str(warning) and "plain Python from now on" in str(warning)
