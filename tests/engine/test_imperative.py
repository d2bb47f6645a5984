"""The table of imperative autograd behaviours (`imperative.py`): no program wrong, none with an error of Kiln's own."""

import os

import pytest

import kiln
from tests.engine.imperative import PAGE, PROGRAMS, WAYS, judge, table

# What one graph cannot hold today, and why. A program that is listed and captured after all must be taken off.
HISTORY = "a backward through what was computed outside the compiled function"
EFFECTS = "a checkpointed function that changes Python objects would do so again in the backward"
VALUE = "a number that is read from a tensor"
FORWARD = {
    "saved_tensor_hook_counts": HISTORY,
    "selective_checkpoint": HISTORY,
    "backward_of_an_argument_inside": HISTORY,
    "post_accumulate_inside": "a backward inside the compiled function, to a leaf that has hooks",
    "train_adam": VALUE,
    "train_adamw": VALUE,
    "checkpoint_without_reentry": EFFECTS,
    "checkpoint_with_reentry": EFFECTS,
    "distributed_data_parallel": "the reducer is a C++ object with a log of its own",
}
BACKWARD = {"custom_function_with_side_effects": VALUE}
SEVERAL_GRAPHS = {"fullgraph": FORWARD, "whole": FORWARD | BACKWARD}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, way):
    verdict, found = judge(name, way)
    expected = "unsupported" if name in SEVERAL_GRAPHS.get(way, ()) else "right"
    assert verdict == expected, "\n".join([f"{name} is {verdict}, {expected} expected", *found])


def test_there_are_enough_of_them():
    assert len(PROGRAMS) >= 45
    assert len({program.__doc__ for program in PROGRAMS.values()}) == len(PROGRAMS)
    assert set(SEVERAL_GRAPHS["whole"]) < set(PROGRAMS)


def test_the_page_is_current():
    with open(PAGE, encoding="utf-8") as file:
        assert file.read() == table(), "run: python tests/engine/imperative.py --write"
    assert os.path.basename(PAGE) == "imperative.md"


def test_what_is_wrong_is_noticed(monkeypatch):
    """A backend that forgets in-place changes, and one that raises: the table would say so."""
    from tests.engine import imperative

    def forgetful(graph_module, example_inputs):
        return lambda *inputs: [item * 2 for item in graph_module.forward(*inputs)]

    def broken(graph_module, example_inputs):
        raise ValueError("no compiling today")

    for backend, verdict in ((forgetful, "wrong"), (broken, "error")):
        compile = lambda f, backend=backend: kiln.compile(f, backend=backend)
        monkeypatch.setitem(imperative.WAYS, verdict, (verdict, imperative.WAYS["default"][1], compile))
        assert judge("gradient_accumulation", verdict)[0] == verdict
