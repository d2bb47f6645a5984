"""Finds the Python interpreters of a machine: given ones, those on PATH, pyenv's, those that uv knows or can fetch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# What an interpreter tells about itself. Everything is public, and old versions know it, too.
PROBE = """
import json, os, platform, sys, sysconfig
print(json.dumps({
    "path": sys.executable,
    "release": list(sys.version_info[:3]),
    "final": sys.version_info[3] == "final",
    "implementation": platform.python_implementation(),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "in_environment": sys.prefix != sys.base_prefix,
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that runs, and what it says about itself."""

    path: str
    release: tuple[int, int, int]
    final: bool = True
    implementation: str = "CPython"
    free_threaded: bool = False
    headers: bool = True
    in_environment: bool = False

    @property
    def version(self) -> str:
        return f"{self.release[0]}.{self.release[1]}"

    @property
    def problem(self) -> str | None:
        """Why Kiln cannot be built with it."""
        if self.implementation != "CPython":
            return f"is {self.implementation}, not CPython"
        if self.free_threaded:
            return "is a free-threaded build, which Kiln does not support"
        if not self.headers:
            return "has no headers (Python.h)"
        return None


class NoInterpreter(Exception):
    """There is no interpreter for a version; the message says what was tried."""


def probe(path: str) -> Interpreter | None:
    """The interpreter of a path; None if it does not run."""
    try:
        done = subprocess.run([path, "-I", "-c", PROBE], capture_output=True, text=True, timeout=60)
        facts = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if facts is None:
        return None
    # The path of a command of pyenv is not that of the interpreter it starts.
    release = facts.pop("release")
    return Interpreter(**{**facts, "path": facts["path"] or path, "release": tuple(release)})


def on_path(version: str, path: str) -> Iterator[str]:
    """The commands python3.X in the folders of PATH, not only the first."""
    for folder in path.split(os.pathsep):
        command = Path(folder, f"python{version}")
        if folder and command.is_file() and os.access(command, os.X_OK):
            yield str(command)


def of_pyenv(version: str, root: Path) -> Iterator[str]:
    """The interpreters that pyenv has installed. Its commands on PATH work for the chosen versions alone."""
    if os.access(root / "versions", os.R_OK):
        for command in sorted(root.glob(f"versions/{version}.*/bin/python{version}")):
            yield str(command)


def of_uv(version: str, uv: str | None) -> Iterator[str]:
    """The interpreters that uv knows on this machine: its own and those that it finds."""
    if uv is None:
        return
    command = [uv, "python", "list", "--only-installed", "--output-format", "json", version]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        rows = json.loads(done.stdout) if done.returncode == 0 else []
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return
    for row in rows:
        if row.get("path"):
            yield row["path"]


def candidates(version: str, uv: str | None) -> Iterator[str]:
    """Paths at which this machine may have interpreters of a version; some may be broken or listed twice."""
    yield from on_path(version, os.environ.get("PATH", ""))
    yield from of_pyenv(version, Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"))
    yield from of_uv(version, uv)


def choose(version: str, given: Iterable[Interpreter], found: Iterable[Interpreter]) -> Interpreter:
    """The interpreter of a version: the first that was given, else the newest patch that was found.

    Of environments, the interpreter that they were made from is taken: it is on the machine as well.
    """
    matching = [interpreter for interpreter in given if interpreter.version == version]
    usable = [interpreter for interpreter in matching if interpreter.problem is None]
    if not matching:
        matching = [one for one in found if one.version == version and not one.in_environment]
        usable = [interpreter for interpreter in matching if interpreter.problem is None]
        usable.sort(key=lambda interpreter: (interpreter.final, interpreter.release), reverse=True)
    if usable:
        return usable[0]
    problems = [f"{interpreter.path} {interpreter.problem}" for interpreter in matching]
    raise NoInterpreter("; ".join([f"no CPython {version} that Kiln can be built with", *problems]))


def fetch(version: str, uv: str, folder: Path) -> str:
    """Have uv download an interpreter into a folder; its path."""
    command = [uv, "python", "install", "--no-bin", "--install-dir", str(folder), version]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise NoInterpreter(f"uv cannot download it: {lines[-1] if lines else 'no reason given'}")
    found = sorted(folder.glob(f"cpython-{version}*/bin/python{version}"))
    if not found:
        raise NoInterpreter("uv has installed it somewhere else")
    return str(found[-1])


def find(version: str, given: Iterable[Interpreter], uv: str | None, downloads: Path | None) -> Interpreter:
    """The interpreter to use for a version; ``downloads`` is the folder that uv may fetch one into."""
    found = (interpreter for path in dict.fromkeys(candidates(version, uv)) if (interpreter := probe(path)))
    try:
        return choose(version, given, found)
    except NoInterpreter as missing:
        if uv is None or downloads is None:
            raise
        try:
            fetched = probe(fetch(version, uv, downloads))
        except NoInterpreter as reason:
            raise NoInterpreter(f"{missing}; {reason}") from None
        return choose(version, [], [fetched] if fetched else [])


def given_interpreters(paths: Iterable[str]) -> list[Interpreter]:
    """The interpreters of ``--python PATH``. One that does not run is an error: it was asked for."""
    found = []
    for path in paths:
        interpreter = probe(path)
        if interpreter is None:
            sys.exit(f"--python {path}: this is no Python interpreter that runs")
        found.append(interpreter)
    return found
