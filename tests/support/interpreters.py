"""Finds the interpreters that the bytecode package supports, and runs scripts of tests/bytecode with them."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")


@cache
def find(version: str) -> str | None:
    """The path of an interpreter of the given version: this one, pyenv's, or one on PATH."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    candidates = sorted(Path("/root/.pyenv/versions").glob(f"{version}.*/bin/python")) if _readable() else []
    on_path = shutil.which(f"python{version}")
    for candidate in [*map(str, candidates), *([on_path] if on_path else [])]:
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def _readable() -> bool:
    return os.access("/root/.pyenv/versions", os.R_OK)


def is_current(version: str) -> bool:
    return find(version) == sys.executable


def run(version: str, script: str, *arguments: object) -> dict:
    """What a module of the tests prints as JSON under an interpreter; skips the test where there is none."""
    interpreter = find(version)
    if interpreter is None:
        pytest.skip(f"no CPython {version} on this machine")
    command = [interpreter, "-W", "ignore", "-m", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
