"""Random tensor programs and their gradients, lowered and scheduled as for a GPU: the reference gives what eager gives.

``python tests/sweep_tensor_programs.py --reference`` runs as many as are wanted.
"""

from __future__ import annotations

import pytest

from tests.sweep_tensor_programs import Program, differs, run_reference


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_programs(first):
    compared = 0
    for seed in range(first, first + 20):
        program = Program(seed, 14)
        if program.results:
            compared += 1
            assert differs(program, None, run_reference) is None, f"seed {seed}\n{program}"
    assert compared > 10
