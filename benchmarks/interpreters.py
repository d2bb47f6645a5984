"""What a call of a compiled module costs on one interpreter beside another.

The modules have 20, 150 and 600 parameters, and a graph that does nothing: what is left is the dispatch, that is guards
and the reading of parameters. The last row is plain Python without Kiln, because interpreters are built with different
optimizations. Processes of the interpreters take turns; the numbers are the fastest of all rounds, in microseconds.

    python benchmarks/interpreters.py PYTHON [PYTHON ...] [--rounds 5]

Each PYTHON is the interpreter of an environment for which Kiln is built in this checkout or installed (`make matrix`
makes such environments). The others are compared with the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = (20, 150, 600)
PLAIN = "plain Python"


def fastest(call: Callable[[], object], calls: int, repeats: int = 60) -> float:
    """Microseconds of a call, in the fastest of some loops."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best * 1e6


def plain(count: int = 100) -> int:
    total = 0
    for index in range(count):
        total += len((index, total))
    return total


def measure_here() -> dict[str, float]:
    """All rows on the interpreter that runs this."""
    import gc

    sys.path.insert(0, str(ROOT))
    import torch

    import kiln
    from benchmarks.capture import Tower, nothing

    torch.set_num_threads(1)
    rows: dict[str, float] = {}
    gc.disable()
    for size in SIZES:
        module, x = kiln.compile(Tower(size), backend=nothing), torch.ones(2, 4)
        for _ in range(50):
            module(x)
        rows[f"module, {size} parameters"] = fastest(lambda module=module, x=x: module(x), 30_000 // size)  # type: ignore[misc]
    rows[PLAIN] = fastest(plain, 300)
    return rows


def measure(python: str) -> dict[str, float]:
    """All rows on another interpreter."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, str(Path(__file__).resolve()), "--here"], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{python}: {done.stderr.strip()}")
    rows: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return rows


def version(python: str) -> str:
    code = "import platform, torch; print(platform.python_version(), 'torch', torch.__version__)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here()))
        return 0
    if not options.pythons:
        parser.error("name at least one interpreter")
    best: dict[str, dict[str, float]] = {python: {} for python in options.pythons}
    for _ in range(options.rounds):
        for python in options.pythons:
            for row, micros in measure(python).items():
                best[python][row] = min(micros, best[python].get(row, micros))
    first = best[options.pythons[0]]
    for python in options.pythons:
        print(f"{version(python)}  ({python})")
        for row, micros in best[python].items():
            print(f"  {row:24} {micros:8.2f} us   {micros / first[row]:5.2f} of the first")
    print(json.dumps(best))
    return 0


if __name__ == "__main__":
    sys.exit(main())
