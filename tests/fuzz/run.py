"""The long run: many generated programs, in worker processes; prints the count, and each failing program made small.

Programs are numbered by chunk, so a failure comes back with the same seed:

    python tests/fuzz/run.py --examples 10000 [--seed N] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[2])

CHUNK = 250


def work(seed: int, examples: int, note_path: str) -> None:
    """One worker: a chunk of programs, its failures reduced and printed as JSON."""
    import kiln
    from tests.fuzz.oracle import failures_in_chunk, reduced

    kiln.config.raise_internal_errors = True  # Kiln's own bugs are to be seen, not hidden behind eager

    def note(source: str) -> None:  # so that the parent can show the program that crashed the interpreter
        with open(note_path, "w") as file:
            file.write(source)

    failures = failures_in_chunk(seed, examples, note)
    kinds: dict[str, dict[str, object]] = {}
    for failure in failures:
        if failure.signature in kinds:
            kinds[failure.signature]["count"] += 1  # type: ignore[operator]
            continue
        small = reduced(failure, note=note)
        kinds[failure.signature] = {
            "count": 1,
            "source": small.source,
            "message": small.message,
            "break_every": small.break_every,
        }
    print(json.dumps({"examples": examples, "failed": len(failures), "kinds": kinds}))


def start(seed: int, examples: int, folder: str) -> tuple[subprocess.Popen[str], str, int]:
    note_path = os.path.join(folder, f"{seed}.py")
    command = [sys.executable, __file__, "--worker", note_path, "--seed", str(seed), "--examples", str(examples)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), note_path, examples


def finish(process: subprocess.Popen[str], note_path: str, examples: int) -> dict[str, object]:
    stdout, stderr = process.communicate()
    lines = stdout.splitlines()
    if process.returncode == 0 and lines:
        return json.loads(lines[-1])
    with open(note_path) as file:
        source = file.read()
    message = f"the process ended with {process.returncode}\n{stderr[-2000:]}"
    crash = {"count": 1, "source": source, "message": message, "break_every": None}
    return {"examples": examples, "failed": 1, "kinds": {"crash": crash}}


def own_part(source: str) -> str:
    """The program without the prelude that all of them share."""
    position = source.find("def helper_one")
    return source[position:] if position > 0 else source


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first chunk; a chunk is 250 programs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.seed, options.examples, options.worker)
        return 0

    begin = time.monotonic()
    sizes = [min(CHUNK, options.examples - done) for done in range(0, options.examples, CHUNK)]
    waiting = [(1000 + options.seed + index, size) for index, size in enumerate(sizes)][::-1]
    total = failed = 0
    shown: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        running = [start(*waiting.pop(), folder) for _ in range(min(options.jobs, len(waiting)))]
        while running:
            result = finish(*running.pop(0))
            if waiting:
                running.append(start(*waiting.pop(), folder))
            total += result["examples"]
            failed += result["failed"]
            print(f"{total} programs, {failed} failed, {time.monotonic() - begin:.0f} s", flush=True)
            for kind, failure in result["kinds"].items():
                if kind not in shown:
                    shown.add(kind)
                    print(f"--- {failure['count']} times, break_every={failure['break_every']!r}: {failure['message']}")
                    print(own_part(failure["source"]), flush=True)
    print(f"{total} programs, {failed} failed ({len(shown)} kinds), {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
