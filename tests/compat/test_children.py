"""Processes that a program on Kiln starts are on Kiln as well, and a fork never hangs in Kiln."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

EXPECTED = {
    "here": "kiln",
    "command": "kiln",
    "unaffected": "[False, False] False",
    "fork": "kiln",
    "spawn": "kiln",
    "forkserver": "kiln",
    "data loader, fork": "kiln",
    "data loader, spawn": "kiln",
    "torch.multiprocessing.spawn": "kiln",
    "forked while compiling": "kiln",
    "forked after compiling": True,
}


def run(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=290,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    result = run("-m", "kiln", "run", HERE / "children_script.py", cwd=tmp_path_factory.mktemp("children"))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_all_ways_are_expected(found):
    assert found.keys() == EXPECTED.keys()


@pytest.mark.parametrize("way", EXPECTED)
def test_a_child(found, way):
    assert found[way] == EXPECTED[way]


PRINTING = "import torch, torch.distributed as d\nprint('compiler', torch.compile.__module__)\n"


def test_children_of_torchrun(tmp_path):
    (tmp_path / "worker.py").write_text(PRINTING)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "worker.py")
    result = run("-m", "kiln", "run", *launcher, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "compiler kiln." in result.stdout


def test_workers_of_a_test_run(tmp_path):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    (tmp_path / "test_own.py").write_text(
        "import subprocess, sys, torch\n"
        "def test_here(): assert torch.compile.__module__.startswith('kiln')\n"
        "def test_below():\n"
        "    text = 'import torch; print(torch.compile.__module__)'\n"
        "    found = subprocess.run([sys.executable, '-c', text], capture_output=True, text=True).stdout\n"
        "    assert found.startswith('kiln')\n"
    )
    result = run("-m", "pytest", "-p", "kiln.compat.auto", "-n", "1", "-q", "test_own.py", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_sitecustomize_of_the_user_runs_as_well(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.OWN = 'the own one'\n")
    (tmp_path / "program.py").write_text(
        "import subprocess, sys\n"
        "text = 'import sitecustomize, torch; print(OWN, sitecustomize.__file__, torch.compile.__module__)'\n"
        "print(subprocess.run([sys.executable, '-c', text], capture_output=True, text=True).stdout)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = run("-m", "kiln", "run", "program.py", cwd=tmp_path, PYTHONPATH=path)
    assert result.stdout.split()[:3] == ["the", "own", "one"], result.stderr
    assert str(tmp_path / "sitecustomize.py") in result.stdout
    assert "kiln." in result.stdout
