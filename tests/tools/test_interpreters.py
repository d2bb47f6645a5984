"""How the matrix finds interpreters and installs, without a network."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tools import environments, interpreters
from tools.environments import Environment, build_requirements, uv_options
from tools.interpreters import Interpreter, NoInterpreter, choose, find, given_interpreters, of_pyenv, of_uv, on_path

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def command(path: Path, text: str = "#!/bin/sh\nexit 1\n") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_this_interpreter_tells_about_itself() -> None:
    interpreter = interpreters.probe(sys.executable)
    assert interpreter is not None
    assert interpreter.release == sys.version_info[:3] and interpreter.version == VERSION
    assert interpreter.implementation == "CPython"
    assert interpreter.in_environment == (sys.prefix != sys.base_prefix)
    assert Path(interpreter.path).samefile(sys.executable)


def test_what_does_not_run_is_no_interpreter(tmp_path: Path) -> None:
    assert interpreters.probe(str(tmp_path / "missing")) is None
    assert interpreters.probe(command(tmp_path / "broken")) is None
    assert interpreters.probe(command(tmp_path / "silent", "#!/bin/sh\nexit 0\n")) is None
    with pytest.raises(SystemExit, match="missing: this is no Python interpreter that runs"):
        given_interpreters([str(tmp_path / "missing")])


def test_all_folders_of_path_are_searched(tmp_path: Path) -> None:
    first, second = command(tmp_path / "a" / "python3.12"), command(tmp_path / "b" / "python3.12")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "python3.12").write_text("not executable")
    path = os.pathsep.join(str(tmp_path / name) for name in ("a", "", "b", "c", "missing"))
    assert list(on_path("3.12", path)) == [first, second]
    assert list(on_path("3.13", path)) == []


def test_interpreters_of_pyenv_are_those_it_has_installed(tmp_path: Path) -> None:
    wanted = [command(tmp_path / "versions" / name / "bin" / "python3.12") for name in ("3.12.1", "3.12.7")]
    command(tmp_path / "versions" / "3.13.0" / "bin" / "python3.13")
    assert list(of_pyenv("3.12", tmp_path)) == wanted
    assert list(of_pyenv("3.12", tmp_path / "missing")) == []


def test_interpreters_that_uv_knows(tmp_path: Path) -> None:
    rows = json.dumps([{"path": "/somewhere/python3.14"}, {"path": None}])
    uv = command(tmp_path / "uv", f"#!/bin/sh\necho \"$@\" > {tmp_path}/asked\necho '{rows}'\n")
    assert list(of_uv("3.14", uv)) == ["/somewhere/python3.14"]
    assert (tmp_path / "asked").read_text().split() == "python list --only-installed --output-format json 3.14".split()
    assert list(of_uv("3.14", None)) == []
    assert list(of_uv("3.14", command(tmp_path / "broken"))) == []


def test_the_newest_patch_is_chosen_and_a_given_interpreter_goes_first() -> None:
    old, new = Interpreter("/old", (3, 12, 1)), Interpreter("/new", (3, 12, 10))
    candidate = Interpreter("/candidate", (3, 12, 11), final=False)
    assert choose("3.12", [], [old, candidate, new, Interpreter("/other", (3, 13, 0))]) == new
    assert choose("3.12", [old], [new]) == old
    assert choose("3.12", [Interpreter("/given", (3, 13, 0))], [new]) == new
    assert choose("3.12", [], [Interpreter("/environment", (3, 12, 12), in_environment=True), old]) == old


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"free_threaded": True}, "is a free-threaded build, which Kiln does not support"),
        ({"headers": False}, "has no headers (Python.h)"),
        ({"implementation": "PyPy"}, "is PyPy, not CPython"),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_reported(facts: dict, problem: str) -> None:
    unusable = Interpreter("/some/python", (3, 14, 0), **facts)
    usable = Interpreter("/usable", (3, 14, 0))
    assert choose("3.14", [], [unusable, usable]) == usable
    with pytest.raises(NoInterpreter) as raised:
        choose("3.14", [], [unusable])
    assert str(raised.value) == f"no CPython 3.14 that Kiln can be built with; /some/python {problem}"
    with pytest.raises(NoInterpreter):  # it was asked for: no other takes its place
        choose("3.14", [unusable], [usable])


def test_uv_fetches_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "candidates", lambda version, uv: iter(()))
    uv = command(tmp_path / "uv", "#!/bin/sh\necho 'error: no network' >&2\nexit 2\n")
    with pytest.raises(NoInterpreter, match=r"no CPython 3\.14 .*; uv cannot download it: error: no network"):
        find("3.14", [], uv, tmp_path / "downloads")
    with pytest.raises(NoInterpreter, match="built with$"):
        find("3.14", [], uv, None)
    here = tmp_path / "downloads" / f"cpython-{VERSION}.9-linux" / "bin"
    here.mkdir(parents=True)
    (here / f"python{VERSION}").symlink_to(sys.executable)
    fetched = find(VERSION, [], command(tmp_path / "uv2", "#!/bin/sh\nexit 0\n"), tmp_path / "downloads")
    assert fetched.version == VERSION


def test_settings_of_pip_are_handed_on_to_uv() -> None:
    assert uv_options({}) == []
    assert uv_options({"PIP_FIND_LINKS": "/a /b"}) == ["--find-links", "/a", "--find-links", "/b"]
    assert uv_options({"PIP_FIND_LINKS": "/a", "UV_FIND_LINKS": "/c"}) == []
    assert uv_options({"PIP_INDEX_URL": "https://here"}) == ["--default-index", "https://here"]
    extra = uv_options({"PIP_EXTRA_INDEX_URL": "https://more"})
    assert extra == ["--index", "https://more", "--index-strategy", "unsafe-best-match"]


def test_an_environment_is_made_without_uv_and_without_pip(tmp_path: Path) -> None:
    here = interpreters.probe(sys.executable)
    assert here is not None
    # Stands in for a distribution's interpreter: `-m venv` fails unless it is asked to do without pip.
    text = f'#!/bin/sh\ncase "$*" in "-m venv --without-pip "*) exec {sys.executable} "$@";; *) exit 1;; esac\n'
    odd = Interpreter(command(tmp_path / "python-odd", text), here.release)
    failing = command(tmp_path / "uv")
    environment = Environment(tmp_path / "environment", tmp_path / "logs", failing)
    environment.create(odd)
    assert environment.works()
    # There is no pip in it, and uv refuses it: the pip of this interpreter installs.
    assert environment.installer() == [sys.executable, "-m", "pip", "--python", environment.python, "install"]


def test_ccache_is_used_by_the_names_of_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ccache = command(tmp_path / "bin" / "ccache")
    monkeypatch.setattr(environments, "MATRIX", tmp_path / "matrix")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    (folder,) = environments.ccache_links()
    assert os.readlink(folder / "c++") == ccache
    monkeypatch.setenv("CXX", "clang++")
    assert environments.ccache_links() == []
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environments.ccache_links() == []


def test_packages_come_from_the_project(tmp_path: Path) -> None:
    text = '[build-system]\nrequires = ["setuptools>=77", "ninja"]\n'
    text += '[project.optional-dependencies]\ndev = ["pytest", "ninja"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert build_requirements(tmp_path) == ["setuptools>=77", "ninja", "pytest"]
