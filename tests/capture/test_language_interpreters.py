"""The programs of the language tests, interpreted under every supported CPython that this machine has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "bytecode"))

import bytecode_interpreters as interpreters  # noqa: E402

ALLOWED_BREAKS = {
    "print_is_called_in_loops",
    "handlers_across_breaks",
    "exception_groups",
    "bad_calls",
    "closures_over_breaks",
    "recursion_with_breaks",
    "globals_across_breaks",
    "failing_imports",
    "classes_inside",
    "alive_at_a_break",
    "breaks_inside_a_generator",
    "breaks_inside_blocks",
    "breaks_in_enter_and_exit",
}


@pytest.mark.parametrize("version", interpreters.SUPPORTED)
def test_programs_under(version):
    interpreter = interpreters.find(version)
    if interpreter is None:
        pytest.skip(f"no CPython {version} on this machine")
    command = [interpreter, "-W", "ignore", str(HERE / "interpreter_script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == {}
    assert set(result["breaks"]) <= ALLOWED_BREAKS, result["breaks"]
    assert result["same"] > 100
