"""Topics: small programs about one behaviour of autograd each, run in eager and with the engine on, and compared.

A file of topics begins with `topic, test_topic = topics()` and decorates its programs. Each is run twice with the
engine on, so that the second run meets what the first one compiled; once with the traced backward run as plain Python,
and once with the backward captured in one graph. A topic marked `breaks=reason` may say `Unsupported` there, and then
must be right in several graphs; one that says it without being marked fails, as does a mark that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from tests.engine.observing import as_traced, compare, engine, observe, whole, with_breaks

MODES = {"traced": as_traced, "whole": whole}


def topics() -> tuple[Callable[..., Any], Callable[..., None]]:
    """A decorator that collects programs, and the test that runs them."""
    found: list[Any] = []

    def topic(program: Any = None, *, breaks: str = "") -> Any:
        if program is None:
            return lambda program: topic(program, breaks=breaks)
        found.append(pytest.param(program, breaks, id=program.__name__))
        return program

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(("program", "breaks"), found)
    def test_topic(program: Any, breaks: str, mode: str) -> None:
        check_topic(program, mode, breaks)

    return topic, test_topic


def check_topic(program: Callable[[], Any], mode: str, breaks: str = "") -> None:
    """Run a program in eager and with the engine on, and fail where they differ."""
    observe(program)  # what torch imports on the way may warn, once
    expected = observe(program)
    before = torch.autograd.Variable._execution_engine
    with engine(MODES[mode]):
        seen = [observe(program), observe(program)]
    unsupported = [one.raised for one in seen if isinstance(one.raised, kiln.exc.Unsupported)]
    if mode == "whole" and breaks:
        assert unsupported, f"{program.__name__} is captured in one graph now: it need not be marked"
        with engine(with_breaks):
            seen = [observe(program), observe(program)]
    elif unsupported:
        raise AssertionError(f"{program.__name__} in one graph: {unsupported[0]}") from unsupported[0]
    for number, one in enumerate(seen):
        found = compare(expected, one)
        assert not found, "\n".join([f"{program.__name__}, run {number}:", *found]) + _cause(one.raised)
    assert torch.autograd.Variable._execution_engine is before


def _cause(error: BaseException | None) -> str:
    if error is None:
        return ""
    import traceback

    return "\n" + "".join(traceback.format_exception(error)[-12:])


def leaf(*values: float, **options: Any) -> torch.Tensor:
    """A leaf that requires grad."""
    return torch.tensor(values, requires_grad=True, **options)


def error_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, str] | str:
    """What a call raises: its type and text; what Kiln cannot capture is for the test to see."""
    try:
        function(*args, **kwargs)
    except kiln.exc.Unsupported:
        raise
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing raised"
