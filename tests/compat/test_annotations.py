"""Annotations for torch's compiler in a library are honoured by ``kiln.compile`` itself, without ``kiln.install``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = {"same": True, "graphs": 2, "operations": 2}  # an addition on each side of what is kept out

EXPECTED = {
    "stance_before_its_module_is_loaded": {"inside": [False, False], "graphs": 1, "loaded": True},
    "stance_of_a_new_function": [0, 1],
    "stance_eager_on_recompile": [True, 1],
    "stance_fail_on_recompile": "raised",
    "stance_as_a_decorator": 0,
    "disabled_function": BROKEN,
    "disabled_function_is_not_captured": [[False], True, True],
    "disabled_not_recursive": BROKEN,
    "disabled_method": BROKEN,
    "disabled_module": BROKEN,
    "disabled_class": BROKEN,
    "disabled_function_compiled": 0,
    "wrapper_around_a_disabled_function": BROKEN,
    "graph_break": BROKEN,
    "disallow_in_graph": BROKEN,
    "allow_in_graph": [True, True, 2],
    "forbid_in_graph": BROKEN,
    "substitute_in_graph": 3.0,
    "assume_constant_result": {"same": True, "graphs": 1, "operations": 1},
    "mark_dynamic": 1,
    "mark_dynamic_from_the_end": 1,
    "maybe_mark_dynamic": 1,
    "mark_unbacked": 1,
    "mark_static": 3,
    "mark_static_is_weaker_than_mark_dynamic": 1,
    "marking_inside": True,
    "questions": [True, True, False, True, True, True],
    "nested_compile_region": {"same": True, "graphs": 1, "operations": 4},
    "steps_of_cuda_graphs": True,
    "function_that_torch_compiles": [True, 1],
    "optimizers_of_torch": True,
}


@pytest.fixture(scope="module")
def found():
    """What the program found, in a process of its own: it loads torch's compiler."""
    script = Path(__file__).with_name("annotations_script.py")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_all_cases_are_expected(found):
    assert found.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_annotation(found, name):
    assert found[name] == EXPECTED[name]
