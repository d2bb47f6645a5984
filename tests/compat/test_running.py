"""``python -m kiln run`` and ``pytest -p kiln.compat.auto``, from fresh processes; torch goes on working under both."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.__main__ import main
from kiln.config import LOG_ARTEFACTS
from tests.compat.torch_goes_on import CHECKS

HERE = Path(__file__).parent

PROGRAM = """
import pickle, sys, torch
class Own: pass
assert type(pickle.loads(pickle.dumps(Own()))) is Own and sys.modules["__main__"].Own is Own
print(__name__, sys.argv[1:], sys.path[0] == {directory!r}, __file__ == {directory!r} + "/program.py")
from torch._dynamo.utils import counters
torch.compile(lambda x: x + 1)(torch.ones(1))
print(counters["stats"]["unique_graphs"])
def fail(): raise ValueError("the program's own")
fail()
"""

SUITE = """
import torch, torch._dynamo.test_case, torch._dynamo.testing
from torch._inductor.compile_fx import compile_fx_inner
from torch._functorch.aot_autograd import aot_module_simplified

class Tests(torch._dynamo.test_case.TestCase):
    def test_counts(self):
        counter = torch._dynamo.testing.CompileCounter()
        torch.compile(lambda x: x + 1, backend=counter)(torch.ones(2))
        self.assertEqual(counter.frame_count, 1)

    def test_missing(self):
        compile_fx_inner(print)

if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests
    run_tests()
"""


def python(*arguments, cwd):
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(directory=os.path.realpath(tmp_path)))
    return path


def test_a_script_in_which_torch_goes_on_working(tmp_path):
    """The checks of that file are each a part of torch that looks at its compiler."""
    found = python("kiln", "run", HERE / "torch_goes_on.py", "a", "--b", cwd=tmp_path)
    lines = [line for line in found.stdout.splitlines() if not line.startswith("USDT")]
    assert lines == [f"passed {check.__name__}" for check in CHECKS] + ["__main__ ['a', '--b'] True"], found.stderr
    assert found.returncode == 3 and "Traceback" not in found.stderr


@pytest.mark.parametrize("way", [["program.py"], ["-m", "program"]], ids=" ".join)
def test_a_program_that_fails(way, program, tmp_path):
    found = python("kiln", "run", *way, "fail", cwd=tmp_path)
    assert found.returncode == 1 and found.stdout.splitlines() == ["__main__ ['fail'] True True", "1"]
    lines = found.stderr.strip().splitlines()
    assert (
        lines[0].startswith("Traceback") and "program.py" in lines[1] and lines[-1] == "ValueError: the program's own"
    )


def test_a_test_file(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    options = ["-q", "-p", "kiln.compat.auto", "-p", "no:cacheprovider"]
    found = python("pytest", *options, "test_suite.py", cwd=tmp_path)
    assert "1 failed, 1 passed" in found.stdout, found.stdout + found.stderr
    assert "Kiln has no torch._inductor.compile_fx.compile_fx_inner" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "no_such_file.py"], "there is no file 'no_such_file.py'"),
        (["run", "-m", "no_such_module"], "no module 'no_such_module'"),
        (["run", "-m", "no.such.module"], "no module 'no.such.module'"),
        (["run"], "a script or -m module is needed"),
        (["run", "-m"], "a script or -m module is needed"),
        ([], "required: command"),
        (["walk"], "invalid choice: 'walk'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_command_lines(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        status = main(arguments)
    except SystemExit as leaving:
        status = leaving.code
    assert status == 2 and said in capsys.readouterr().err


def test_help_names_logs_and_settings(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    logs = text[text.index("KILN_LOG ") : text.index("KILN_DISABLE_KERNELS ")]
    assert set(re.findall(r"[a-z_]+", logs)) >= LOG_ARTEFACTS
    assert "profile=True" in text and "CUDA_LAUNCH_BLOCKING" in text


def test_help(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["run", "--help"])
    text = capsys.readouterr().out
    assert leaving.value.code == 0 and "python -m kiln run train.py" in text and "pytest -p kiln.compat.auto" in text
