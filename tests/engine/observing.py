"""Run a program in eager and with the engine on, and say what differs: values, logs, identities, warnings, errors.

A program is a function that makes everything it needs and returns everything that can be seen. It is run from the same
random state each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import kiln
from kiln.testing.compare import differences
from kiln.testing.observe import CallOutcome, clean_process, observe_call, seed_everything

Program = Callable[..., Any]


def observe(program: Program, *args: Any) -> CallOutcome:
    """What one run of a program returned or raised, and what it warned about and printed."""
    with clean_process():
        seed_everything(0)
        return observe_call(program, args, {}, backward=False)


def as_seen(outcome: CallOutcome) -> dict[str, Any]:
    """The parts of an outcome that two runs are compared by; an error by its type and text.

    Of warnings the first line: anomaly mode goes on with a traceback of the forward, in which lines of tests are.
    """
    error = outcome.raised
    return {
        "raised": None if error is None else (type(error).__name__, str(error)),
        "returned": outcome.returned,
        "warnings": [(category.__name__, text.split("\n")[0]) for category, text in outcome.warnings],
        "printed": outcome.stdout,
        "modes": outcome.modes,
        "random state": outcome.random_states,
    }


def compare(expected: CallOutcome, seen: CallOutcome, *, tolerance: float = 0.0) -> list[str]:
    """What a user would notice, in words; gradients may be sums in another order where a tolerance is given."""
    found: list[str] = differences(
        as_seen(expected), as_seen(seen), identity=True, versions=False, rtol=tolerance, atol=tolerance, name="seen"
    )
    return found


def inner_graph(graph_module: Any, example_inputs: Any) -> Any:
    """A backend that leaves the graph as it was captured."""
    return graph_module.forward


def as_traced(graph_module: Any) -> Any:
    """A compiler function that compiles nothing: the traced backward runs as plain Python."""
    return graph_module


def with_breaks(graph_module: Any) -> Any:
    """A compiler function that captures the traced backward, in several graphs where need be."""
    return kiln.compile(graph_module, backend=inner_graph, dynamic=True)


def whole(graph_module: Any) -> Any:
    """A compiler function that captures the traced backward in one graph or not at all."""
    return kiln.compile(graph_module, backend=inner_graph, dynamic=True, fullgraph=True)


@contextlib.contextmanager
def engine(compiler: Callable[[Any], Any]) -> Iterator[None]:
    """The engine on, with nothing compiled before and nothing left behind."""
    kiln.reset()
    kiln.compiled_autograd.reset()
    with kiln.compiled_autograd.enable(compiler):
        yield
