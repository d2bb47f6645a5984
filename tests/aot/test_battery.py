"""Mutation and aliasing in a sample of all combinations; `battery.py` has the combinations, and runs all of them."""

import pytest

from tests.aot.battery import GRADS, MUTATIONS, RESULTS, USES, Case, Program, Scenario, sample

BACKENDS = ["eager", "aot_eager"]
STATIC = sample(130)
DYNAMIC = sample(50, dynamic=True, seed=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", STATIC + DYNAMIC, ids=lambda case: str(case).split(",")[0])
def test_case(case, backend):
    found = case.failures(backend)
    assert not found, "\n".join([str(case), case.program.source, *found])


def test_the_sample_has_every_value():
    cases = STATIC
    assert {case.program.mutation for case in cases} == set(MUTATIONS)
    assert {case.program.result for case in cases} == set(RESULTS)
    assert {scenario.grads for case in cases for scenario in case.scenarios} == set(GRADS)
    assert {scenario.use for case in cases for scenario in case.scenarios} == set(USES)


def graph_that_forgets(graph_module, example_inputs):
    """A wrong backend: works on copies, so mutations and aliases of inputs are lost."""
    return lambda *inputs: graph_module.forward(*(item * 1 if hasattr(item, "mul") else item for item in inputs))


@pytest.mark.parametrize(
    ("mutation", "result", "grads", "expected"),
    [
        ("x", "fresh", "none", "after the call / x / value"),
        ("nothing", "view of input", "none", "after the call / output 0 / shares memory with: 'x' expected"),
        ("nothing", "view of input", "x", "after the call / output 0 / base: 'x' expected"),
        ("no_grad", "fresh", "x", "after the call / x / version: 1 expected, 0 seen"),
    ],
)
def test_the_battery_notices(mutation, result, grads, expected):
    case = Case(Program(mutation, result), (Scenario(grads, "separate", "all"),))
    assert any(expected in text for text in case.failures(graph_that_forgets))
