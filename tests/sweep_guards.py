"""Guard mutation, the long run: programs are compiled and called, one thing they can reach is changed, and they are
called again, and once more when it is undone. The results must be eager's.

    python tests/sweep_guards.py --mutations 20000 [--seed N] [--jobs 2] [--program NAME] [--site TEXT]

Prints how many programs and mutations there were, of which kinds, how many of them changed eager's answer, and each
difference. Exit status 1 if there is one.
"""

from __future__ import annotations

import argparse
import collections
import gc
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

GENERATED = 60  # programs of the fuzzer in a long run


def programs(seed: int, generated: int, models: bool) -> list[Any]:
    from tests.mutation.corpus import generated_programs, model_programs, table_programs

    found = list(table_programs())
    if models:
        found += model_programs()
    found += itertools.islice(generated_programs(seed), generated)
    random.Random(seed).shuffle(found)  # so that a run that is cut short has seen some of everything
    return found


def work(options: argparse.Namespace) -> None:
    """One worker: a share of the programs; one line of JSON each."""
    import kiln
    from tests.mutation.runner import as_rows, mutate_program

    os.environ.setdefault("KILN_CACHE_DIR", tempfile.mkdtemp())
    kiln.config.raise_internal_errors = True  # Kiln's own bugs are to be seen, not hidden behind eager
    chosen = programs(options.seed, options.generated, not options.no_models)
    share = [program for program in chosen if options.program is None or options.program in program.name]
    each = -(-options.mutations // max(len(share), 1))
    share = share[options.worker :: options.jobs]
    for place, program in enumerate(share):
        if place < options.skip:
            continue
        gc.collect()
        gc.freeze()  # each world collects garbage when it begins: only what is made from here on needs a look

        def note(label: str, name: str = program.name) -> None:
            print(json.dumps({"at": f"{name} {label}"}), flush=True)

        tally = mutate_program(program, each, options.seed, options.site, note)
        print(json.dumps(as_rows(tally)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--program", help="only programs whose name contains this")
    parser.add_argument("--site", help="only changes whose label contains this; all of them")
    parser.add_argument("--generated", type=int, default=GENERATED)
    parser.add_argument("--no-models", action="store_true")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options)
        return 0
    return Sweep(options).run()


class Sweep:
    """The workers and what they say."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.done = self.mutations = self.seen = self.unlike = self.crashes = 0
        self.skipped: list[tuple[str, str]] = []
        self.kinds: collections.Counter[str] = collections.Counter()
        self.failures: list[dict[str, Any]] = []
        self.begin = time.monotonic()

    def run(self) -> int:
        workers = [self.start(number, 0) for number in range(self.options.jobs)]
        states = [[worker, number, 0, ""] for number, worker in enumerate(workers)]
        while states:
            state = states.pop(0)
            line = state[0].stdout.readline()
            if line:
                self.read(state, line)
                states.append(state)
                continue
            if state[0].wait():  # died in the middle of a program: the next ones are for a new process
                self.crashes += 1
                print(f"--- the process ended with {state[0].returncode} at {state[3]}", flush=True)
                state[2] += 1
                state[0] = self.start(state[1], state[2])
                states.append(state)
        return self.finish()

    def start(self, number: int, skip: int) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--worker", str(number), "--skip", str(skip)]
        command += ["--mutations", str(self.options.mutations)]
        command += ["--seed", str(self.options.seed), "--jobs", str(self.options.jobs)]
        command += ["--generated", str(self.options.generated)]
        command += ["--no-models"] if self.options.no_models else []
        command += ["--program", self.options.program] if self.options.program else []
        command += ["--site", self.options.site] if self.options.site else []
        # What torch leaves uninitialised is alike in both worlds: malloc fills it.
        environment = {**os.environ, "MALLOC_PERTURB_": "85"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)

    def read(self, state: list, line: str) -> None:
        try:
            row = json.loads(line)
        except ValueError:  # the program's own words
            return
        if not isinstance(row, dict):
            return
        if "at" in row:
            state[3] = row["at"]
            return
        state[2] += 1
        self.done += not row["skipped"]
        if row["skipped"]:
            self.skipped.append((row["program"], row["skipped"]))
        self.mutations += row["mutations"]
        self.seen += row["seen"]
        self.unlike += row["unlike"]
        self.kinds.update(row["kinds"])
        for failure in row["failures"]:
            self.failures.append(failure)
            print(f"--- {failure['program']} | {failure['site']}", flush=True)
            for text in failure["differences"]:
                print(f"      {text}", flush=True)
        if (self.done + len(self.skipped)) % 25 == 0:
            print(f"{self.done} programs, {self.mutations} mutations, {len(self.failures)} failed", flush=True)

    def finish(self) -> int:
        for name, why in self.skipped:
            print(f"left out: {name}: {why}")
        for kind, count in self.kinds.most_common():
            print(f"{count:6} {kind}")
        print(
            f"{self.done} programs ({len(self.skipped)} left out), {self.mutations} mutations of {len(self.kinds)} "
            f"kinds, {self.seen} of which change eager's answer ({self.unlike} more could not be made alike in both "
            f"worlds); {len(self.failures)} failed, {self.crashes} crashes, "
            f"{time.monotonic() - self.begin:.0f} s"
        )
        return 1 if self.failures or self.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
