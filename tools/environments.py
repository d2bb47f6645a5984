"""Environments of pairs: made with uv where it is found, otherwise with venv and pip; and checkouts of a commit."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .interpreters import Interpreter
from .pairs import Pair
from .processes import Failed, must, run

ROOT = Path(__file__).resolve().parents[1]
MATRIX = ROOT / ".matrix"

# Settings of pip, and the options of uv with the same meaning. uv reads none of pip's settings by itself.
PIP_SETTINGS = {"PIP_FIND_LINKS": "--find-links", "PIP_INDEX_URL": "--default-index", "PIP_EXTRA_INDEX_URL": "--index"}
# uv's own settings for the same; where one is set, pip's is not handed on.
UV_SETTINGS = {
    "PIP_FIND_LINKS": ("UV_FIND_LINKS",),
    "PIP_INDEX_URL": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "PIP_EXTRA_INDEX_URL": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
}
INSTALLED = """
import json, platform, sysconfig, torch
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__}))
"""


def uv_options(settings: Mapping[str, str]) -> list[str]:
    """pip's settings in the environment as options of uv."""
    options = []
    for name, option in PIP_SETTINGS.items():
        if not any(settings.get(own) for own in UV_SETTINGS[name]):
            options += [word for value in settings.get(name, "").split() for word in (option, value)]
    if "--index" in options:
        # As pip: the newest release of all indices, not that of the first index that has the package.
        options += ["--index-strategy", "unsafe-best-match"]
    return options


def find_uv(given: str | None) -> str | None:
    """uv: the given one, that on PATH, or the one beside this interpreter."""
    if given:
        found = shutil.which(given)
        if found is None:
            sys.exit(f"--uv {given}: there is no such command")
        return found
    beside = Path(sys.executable).parent / "uv"
    return shutil.which("uv") or (str(beside) if os.access(beside, os.X_OK) else None)


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the commands that install into it."""

    folder: Path
    logs: Path
    uv: str | None

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def create(self, interpreter: Interpreter) -> None:
        """Make the environment, from nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        log = self.logs / "create.log"
        if self.uv is not None:
            done = run([self.uv, "venv", "--no-project", "--python", interpreter.path, str(self.folder)], log)
            if done.status == 0 and self.works():
                return
        # uv does not know every interpreter, and distributions ship interpreters without ensurepip.
        for options in ([], ["--without-pip"]):
            shutil.rmtree(self.folder, ignore_errors=True)
            done = run([interpreter.path, "-m", "venv", *options, str(self.folder)], log)
            if done.status == 0 and self.works():
                return
        must(done, f"venv of {interpreter.path}")
        raise Failed(f"venv of {interpreter.path}: the environment does not work; see {log}")

    def works(self) -> bool:
        code = "import sys; sys.exit(sys.prefix == sys.base_prefix)"
        return subprocess.run([self.python, "-c", code], capture_output=True).returncode == 0

    def installer(self) -> list[str]:
        """The command that installs: uv's, the environment's pip, or the pip of the interpreter that runs this."""
        if self.uv is not None:
            listing = [self.uv, "pip", "list", "--quiet", "--python", self.python]
            if subprocess.run(listing, capture_output=True).returncode == 0:
                return [self.uv, "pip", "install", "--python", self.python, *uv_options(os.environ)]
        if subprocess.run([self.python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
            return [self.python, "-m", "pip", "install"]
        return [sys.executable, "-m", "pip", "--python", self.python, "install"]

    def install(self, what: str, *arguments: str, folder: Path | None = None) -> None:
        """Install packages; ``what`` names them in messages and in the name of the log."""
        log = self.logs / f"install-{what.replace(' ', '-')}.log"
        command = [*self.installer(), *arguments]
        must(run(command, log, folder=folder, environment=self.variables()), f"installing {what}")

    def variables(self) -> dict[str, str]:
        """The environment variables of commands that run in it."""
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        variables["VIRTUAL_ENV"] = str(self.folder)
        variables["PATH"] = os.pathsep.join([*map(str, ccache_links()), str(self.folder / "bin"), os.environ["PATH"]])
        variables.setdefault("CCACHE_BASEDIR", str(ROOT))
        variables.setdefault("CCACHE_NOHASHDIR", "1")
        variables["HF_HUB_OFFLINE"] = "1"  # tests make models from configurations
        return variables

    def versions(self) -> dict[str, str]:
        """The exact versions of Python and torch in it."""
        return dict(installed_versions(self.python))


@functools.cache
def installed_versions(python: str) -> dict[str, str]:
    """The exact versions of an interpreter and its torch. Asked once: it takes seconds."""
    done = subprocess.run([python, "-c", INSTALLED], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"torch cannot be imported: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    versions: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return versions


def ccache_links() -> list[Path]:
    """A folder in which the names of compilers mean ccache, if there is one and no compiler is asked for.

    torch uses ccache by itself from 2.13 on. Before, it takes the first word of CXX for the compiler, so that
    ``CXX="ccache c++"`` does not work.
    """
    ccache = shutil.which("ccache")
    if ccache is None or os.environ.get("CXX"):
        return []
    folder = MATRIX / "ccache"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("c++", "cc", "g++", "gcc"):
        link = folder / name
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(ccache)
    return [folder]


def build_requirements(root: Path = ROOT) -> list[str]:
    """What the build needs, and the tests: pyproject.toml has both."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    extras: list[str] = project["project"]["optional-dependencies"]["dev"]
    return list(dict.fromkeys([*project["build-system"]["requires"], *extras]))


def pair_environment(pair: Pair, interpreter: Interpreter, uv: str | None, *, fresh: bool = False) -> Environment:
    """The environment of a pair, with torch and what builds and tests need: that of the last time, or a new one."""
    top = MATRIX / pair.name
    environment = Environment(top / "environment", top / "logs", uv)
    mark = top / "environment.json"
    packages = build_requirements()
    wanted = {
        "interpreter": [interpreter.path, *interpreter.release],
        "torch": pair.requirement,
        "packages": packages,
    }
    try:
        known = json.loads(mark.read_text())
    except (OSError, ValueError):
        known = None
    if known == wanted and not fresh and environment.works():
        return environment
    mark.unlink(missing_ok=True)
    environment.create(interpreter)
    environment.install("torch", pair.requirement)
    installed_versions.cache_clear()
    # Wheels of the registry have no local version in their metadata, whatever torch says about itself.
    exact = environment.versions()["torch"].partition("+")[0]
    environment.install("packages", f"torch=={exact}", *packages)
    mark.write_text(json.dumps(wanted, indent=1))
    return environment


def git(*arguments: str, folder: Path = ROOT) -> str:
    """What a command of git prints."""
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def checkout(commit: str, folder: Path) -> None:
    """A commit in a folder of its own; files that are not tracked, such as compiled ones, stay there."""
    if not (folder / ".git").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(folder))
    git("checkout", "--quiet", "--force", "--detach", commit, folder=folder)
    git("clean", "--quiet", "--force", "-d", folder=folder)
