"""Programs through ``torch.compile(backend="kiln")`` are as in eager."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("programs.py")
NAMES = [
    line.removeprefix("def ").partition("(")[0]
    for before, line in zip(SCRIPT.read_text().splitlines(), SCRIPT.read_text().splitlines()[1:], strict=False)
    if before == "@program"
]

# What runs as torch captured it, and why.
LEFT = {
    "branches_by_data": ["torch's operator cond, which calls graphs"],
    "tensors_of_other_classes": ["an input of torch's graph that is a Tagged"],
}
# How many graphs torch captures, where that is what the program is about: other sizes and numbers need no others.
GRAPHS = {
    "sizes_that_vary": 2,
    "dynamic_training": 3,  # sizes of 1 are special to torch
    "sizes_that_decide": 2,
    "numbers_that_vary": 4,
    "gradients_of_parts": 1,
    "kiln_inside": 2,  # before and after it
    "kiln_module_inside": 2,
    "kiln_around": 0,  # Kiln captures all
}


@pytest.fixture(scope="module")
def found():
    """What the programs gave, in a process of its own: it loads torch's compiler."""
    result = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_program(found, name):
    seen = found[name]
    assert "error" not in seen, seen["error"]
    assert seen["differences"] == []
    assert seen["left"] == LEFT.get(name, [])
    assert seen["more graphs"] == 0  # than with torch's own backend: torch captures none of Kiln's functions
    assert seen["graphs"] == GRAPHS.get(name, seen["graphs"])


def test_all_programs_ran(found):
    assert found.keys() == set(NAMES) and {*LEFT, *GRAPHS} <= set(NAMES)
