"""The GPT of the benchmarks, BERT and GPT-2 train through ``torch.compile(backend="kiln")`` as in eager."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = ["gpt", "bert", "gpt2, dynamic sizes"]


@pytest.fixture(scope="module")
def found():
    script = Path(__file__).with_name("models.py")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MODELS)
def test_model(found, name):
    seen = found[name]
    assert "error" not in seen, seen["error"]
    assert seen["differences"] == []
    assert seen["left"] == []
    assert seen["more graphs"] == 0  # than with torch's own backend
