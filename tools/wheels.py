"""`make wheel` and `make test-wheel`: builds wheels from a source distribution, and tries them in clean environments.

    python -m tools.wheels [--pairs 3.12:2.15 …] [--test]

Without pairs, the wheel is for the environment that this runs in. docs/packaging.md describes what comes out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from .environments import MATRIX, ROOT, Environment, find_uv, pair_environment
from .interpreters import NoInterpreter, find, given_interpreters, probe
from .pairs import Pair, parse
from .processes import Failed, must, run
from .wheel_check import check_contents, describe
from .wheel_trial import try_wheel

DIST = ROOT / "dist"
BUILD = ROOT / "build" / "wheels"
HOOK = "import sys; from setuptools import build_meta; print(build_meta.{}(sys.argv[1]))"


def make_sdist(environment: Environment) -> Path:
    """The source distribution, in dist/."""
    DIST.mkdir(exist_ok=True)
    log = environment.logs / "sdist.log"
    done = run([environment.python, "-c", HOOK.format("build_sdist"), str(DIST)], log, folder=ROOT)
    return DIST / must(done, "building the source distribution").last_lines(1)


def make_wheel(environment: Environment, pair: Pair) -> Path:
    """The wheel of an environment's Python and torch, in dist/.

    It is built from the source distribution, so that neither is what lies around in the working tree: objects of other
    releases of torch, modules that are gone.
    """
    began = time.monotonic()
    tree = BUILD / pair.name
    shutil.rmtree(tree, ignore_errors=True)
    with tarfile.open(make_sdist(environment)) as archive:
        archive.extractall(tree, filter="data")
    (sources,) = tree.iterdir()
    variables = {**environment.variables(), "KILN_TORCH_IN_VERSION": "1"}
    command = [environment.python, "-c", HOOK.format("build_wheel"), str(DIST)]
    done = run(command, environment.logs / "wheel.log", folder=sources, environment=variables)
    wheel = DIST / must(done, "building the wheel").last_lines(1)
    check_contents(wheel, sources, pair.torch)
    print(f"{pair}: {wheel.relative_to(ROOT)}, {time.monotonic() - began:.0f} s")
    for line in describe(wheel):
        print(f"  {line}")
    return wheel


def test_wheel(wheel: Path, pair: Pair, environment: Environment, uv: str | None) -> None:
    """Install a wheel into a clean environment, outside of the repository, and use it there."""
    interpreter = probe(environment.python)
    if interpreter is None:
        raise Failed(f"{environment.python} does not run")
    with tempfile.TemporaryDirectory(prefix="kiln-wheel-") as folder:
        clean = Environment(Path(folder) / "environment", environment.logs, uv)
        clean.create(interpreter)
        for line in try_wheel(clean, wheel, Path(folder) / "work", pair.torch):
            print(f"  {line}")


def own_environment(uv: str | None) -> tuple[Environment, Pair]:
    """The environment that this runs in, and its pair."""
    environment = Environment(Path(sys.prefix), BUILD / "logs", uv)
    versions = environment.versions()
    python, torch = (".".join(versions[name].split(".")[:2]) for name in ("python", "torch"))
    return environment, Pair(python, torch)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tools.wheels", description=__doc__.partition("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--pairs", nargs="+", type=parse, default=[], help="pairs, as 3.12:2.15 (default: this one)")
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="as for tools.matrix")
    parser.add_argument("--uv", metavar="PATH", help="as for tools.matrix")
    parser.add_argument("--no-uv", action="store_true", help="as for tools.matrix")
    parser.add_argument("--test", action="store_true", help="install each wheel into a clean environment and use it")
    parser.add_argument("--sdist", action="store_true", help="build the source distribution alone")
    asked = parser.parse_args(words)
    uv = None if asked.no_uv else find_uv(asked.uv)
    given = given_interpreters(asked.python)
    if asked.sdist:
        print(make_sdist(Environment(Path(sys.prefix), BUILD / "logs", uv)).relative_to(ROOT))
        return 0
    status = 0
    for pair in asked.pairs or [None]:
        try:
            if pair is None:
                environment, pair = own_environment(uv)
            else:
                interpreter = find(pair.python, given, uv, MATRIX / "interpreters")
                environment = pair_environment(pair, interpreter, uv)
            wheel = make_wheel(environment, pair)
            if asked.test:
                test_wheel(wheel, pair, environment, uv)
        except (Failed, NoInterpreter) as failed:
            print(f"{pair or 'this environment'}: {failed}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
