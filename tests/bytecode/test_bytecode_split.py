"""Functions broken anywhere, once or many times over, do what the unbroken ones do."""

import os

import pytest

from tests.support import interpreters


@pytest.mark.parametrize("version", interpreters.SUPPORTED)
def test_single_facts(version):
    result = interpreters.run(version, "tests.bytecode.cases_script")
    assert result["failures"] == {}
    assert result["cases"] >= 20


@pytest.mark.parametrize("version", interpreters.SUPPORTED)
def test_broken_functions_do_the_same(version):
    # Everything with KILN_TEST_ALL=1; else the interpreter under test breaks at every second instruction, others less.
    if os.environ.get("KILN_TEST_ALL"):
        every, seeds = 1, 16
    else:
        every, seeds = (2, 3) if interpreters.is_current(version) else (8, 1)
    result = interpreters.run(version, "tests.bytecode.split_script", every, seeds)
    assert result["failures"] == []
    counts = result["counts"]
    assert counts["single"] > 2500 // every
    assert counts["library functions"] > 200
