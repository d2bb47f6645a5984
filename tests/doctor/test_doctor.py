"""``python -m kiln doctor`` and ``--version``: what they tell, also where Kiln cannot be loaded."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kiln
from kiln.__main__ import main
from kiln.doctor import facts, text
from kiln.doctor.facts import BROKEN, NOTE, Fact, Section
from kiln.platform.support import assumptions, build_record, native_module, startup, switches
from tests.support.kiln_copies import copy_of, newer_torch, record_of, run


def report(capsys: pytest.CaptureFixture[str], status: int = 0) -> dict[str, Any]:
    """The report of this process as JSON."""
    assert main(["doctor", "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_healthy_installation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_SOMETHING", "7")
    with kiln.config.patch(recompile_limit=3, log={"breaks"}):
        told = report(capsys)
    assert told["works"] is True and [one for one in told["problems"] if one["state"] == BROKEN] == []
    versions = told["versions"]
    assert versions["kiln"] == kiln.__version__ and versions["torch"] == torch.__version__
    assert sys.executable in versions["python"] and versions["llvm"].count(".") == 2
    assert told["native module"]["file"] == native_module.find() and told["native module"]["loaded"] == "yes"
    assert told["CPU"]["vectors"].endswith("bits") and str(torch.get_num_threads()) in str(told["CPU"]["threads"])
    assert set(told["cache"]) >= {"directory", "entries", "size", "writable"}
    settings = told["settings"]
    assert settings["KILN_SOMETHING"] == "7" and settings["kiln.config.recompile_limit"] == 3
    assert settings["kiln.config.log"] == ["breaks"] and settings["kiln.install"] == "not active"
    assert {assumption.name for assumption in assumptions.ASSUMPTIONS} <= set(told["self-check"])
    assert told["self-check"]["switched off"] == "nothing"


def test_it_says_whether_kiln_is_installed_under_torchs_names(capsys: pytest.CaptureFixture[str]) -> None:
    with kiln.install():
        told = report(capsys)
    assert told["settings"]["kiln.install"].startswith("active")


def test_what_does_not_hold_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kiln._native, "saved_values", lambda node: None)
    told = report(capsys, status=1)
    (problem,) = [one for one in told["problems"] if one["state"] == BROKEN]
    assert problem["name"] == "saved values of nodes" and "keeps is not known" in problem["value"]
    assert "KILN_SELF_CHECK=1" in problem["fix"] and "pip install" in problem["fix"]


def test_what_is_switched_off_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "_off", {switches.ENGINE: "planted"})
    monkeypatch.setattr(startup, "findings", [assumptions.Finding(assumptions.ASSUMPTIONS[-1], "planted")])
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("x off: engine")]
    assert "planted. Instead, torch's own engine runs" in line
    assert lines[-1].startswith("Something is broken: calls of nodes, off: engine.")


def test_a_missing_package_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    (fact,) = facts.package("kiln-has-no-such-package", "it would be nice")
    assert fact.state == BROKEN and "pip install kiln-has-no-such-package" in fact.fix


def test_caches_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("KILN_CACHE_DIR", str(folder))
    assert {fact.name: fact.value for fact in facts.caches()}["writable"] == "yes"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    last = list(facts.caches())[-1]
    assert (last.name, last.value, last.state) == ("writable", "no", NOTE) and "KILN_CACHE_DIR" in last.fix
    folder.chmod(0o777)
    last = list(facts.caches())[-1]
    assert "others can write to it" in last.value and last.state == NOTE and "chmod" in last.fix
    with kiln.config.patch(cache=False):
        assert list(facts.caches())[-1].value.startswith("no: kiln.config.cache is False")


def test_a_module_that_was_changed_since(tmp_path: Path) -> None:
    module = copy_of(tmp_path)
    assert "changed since" not in [fact.name for fact in facts.record_of(str(module))]
    with module.open("ab") as file:
        file.write(b"more")
    (changed,) = [fact for fact in facts.record_of(str(module)) if fact.name == "changed since"]
    assert changed.state == NOTE and changed.fix.startswith("Build it again:  cd ")
    assert build_record.read(str(module))


def test_a_section_that_fails_does_not_end_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        yield Fact("first", 1)
        raise OSError("planted")

    monkeypatch.setattr(facts, "SECTIONS", {"section": fails})
    ((first, last),) = [section.facts for section in facts.collect()]
    assert first.value == 1 and last.state == BROKEN and "planted" in last.value


# ---- text ------------------------------------------------------------------------------------------------------------

SECTIONS = [
    Section("part", [Fact("one", "good"), Fact("two", "bad\nworse", BROKEN, "mend it"), Fact("it", ["a", "b"], NOTE)])
]
PLAIN = """\
part
  one good
x two bad
      worse
      -> mend it
! it  a, b

Something is broken: two. Lines with x say what, and how to mend it.
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_text() -> None:
    file = io.StringIO()
    text.show(SECTIONS, file)
    assert file.getvalue() == PLAIN


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = Terminal()
    text.show(SECTIONS, file)
    assert "\x1b[" in file.getvalue() and "mend it" in file.getvalue()
    monkeypatch.setitem(sys.modules, "rich.console", None)
    without = Terminal()
    text.show(SECTIONS, without)
    assert without.getvalue() == PLAIN


# ---- where Kiln cannot be loaded -------------------------------------------------------------------------------------


def test_without_a_module_that_fits(tmp_path: Path) -> None:
    copy_of(tmp_path, torch="2.10.0")
    done = run(tmp_path, "-m", "kiln", "doctor", "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    (problem,) = [one for one in told["problems"] if one["state"] == BROKEN]
    assert told["works"] is False and problem["name"] == "loaded"
    assert problem["value"].startswith("no: Kiln's native module was built for torch 2.10.0, and torch ")
    assert '"torch==2.10.*"' in problem["fix"]
    assert told["versions"]["torch"] == torch.__version__ and told["self-check"] == {"not made": "Kiln is not loaded"}
    other = run(tmp_path, "-m", "kiln", "run", "nothing.py")
    assert other.returncode == 1 and "Traceback" not in other.stderr
    assert other.stderr.startswith("Kiln's native module was built for torch 2.10.0")
    assert other.stderr.endswith("More: python -m kiln doctor\n")


def test_where_the_loader_fails(tmp_path: Path) -> None:
    module = copy_of(tmp_path)
    head = bytearray(module.read_bytes())
    head[18] ^= 1  # the machine in the header of the file
    module.write_bytes(head)
    done = run(tmp_path, "-m", "kiln", "doctor")
    assert done.returncode == 1 and "cannot be loaded" in done.stdout and "-> Install Kiln for" in done.stdout


def test_without_torch(tmp_path: Path) -> None:
    copy_of(tmp_path)
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    done = run(tmp_path, "-m", "kiln", "doctor")
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("x torch ")]
    assert "not installed" in line and "x loaded" in done.stdout and "torch>=2.11,<2.16" in done.stdout
    version = run(tmp_path, "-m", "kiln", "--version")
    assert (version.returncode, version.stdout) == (0, f"kiln {kiln.__version__}\n")
    imported = run(tmp_path, "-c", "import kiln")
    assert imported.returncode == 1 and "ImportError: Kiln needs torch" in imported.stderr


def test_a_torch_that_is_damaged(tmp_path: Path) -> None:
    copy_of(tmp_path)
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')\n")
    done = run(tmp_path, "-m", "kiln", "doctor")
    assert done.returncode == 1, done.stderr
    assert "cannot be imported: OSError: libtorch_cpu.so" in done.stdout


def test_a_program_called_kiln_gets_the_error_when_it_uses_kiln(tmp_path: Path) -> None:
    record_of(copy_of(tmp_path)).unlink()
    (tmp_path / "kiln.script").mkdir()
    script = tmp_path / "kiln.script" / "kiln"
    script.write_text("import kiln\nprint('here')\nkiln.compile\n")
    done = run(tmp_path, str(script))
    assert done.returncode == 1 and done.stdout == "here\n"
    assert "is not known, so it is not loaded" in done.stderr


def test_a_newer_torch(tmp_path: Path) -> None:
    newer_torch(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import torch; torch.__version__ = '2.16.0'\n")
    done = run(tmp_path, "-W", "ignore", "-m", "kiln", "doctor", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["versions"]["torch"] == "2.16.0: newer than Kiln knows (2.11 to 2.15)"
    assert told["self-check"]["switched off"] == "nothing"


# ---- the version -----------------------------------------------------------------------------------------------------


def test_the_version() -> None:
    for command in ([sys.executable, "-m", "kiln"], [str(Path(sys.executable).with_name("kiln"))]):
        if not Path(command[0]).exists():
            continue  # Kiln is not installed in this environment, only on the path
        names = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(native_module.PACKAGE).parent)])}
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, env=names)
        assert (done.returncode, done.stdout) == (0, f"kiln {kiln.__version__}\n"), done.stderr
