"""The programs of the language tests, interpreted under every supported CPython that this machine has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "bytecode"))

import bytecode_interpreters as interpreters  # noqa: E402


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
    assert result["breaks"] == {}
    assert result["same"] > 100
