"""Builtins that run on shadows, called with odd arguments: ``python tests/sweep_natives.py [names] [--calls 8]``.

For every builtin that capture may run while tracing, draws calls (plain values, spies that log their special methods,
proxies, tensors, symbolic numbers, iterators, callbacks, aliases), runs each in eager and compiled, and prints what
differs. ``--page`` writes docs/natives.md. tests/native_calls/test_natives.py runs a sample.
"""

import argparse
import collections
import resource
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from tests.native_calls.entries import all_entries
from tests.native_calls.judging import Drawer, judge
from tests.native_calls.page import PAGE, page

MEMORY = 6 << 30  # in bytes: a call that would take it all raises instead


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="entries, by the beginnings of their names (all)")
    parser.add_argument("--calls", type=int, default=8, help="calls of each entry")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="store_true", help="write docs/natives.md, and call nothing")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page())
        return 0
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    entries = [e for e in all_entries() if not options.names or e.name.startswith(tuple(options.names))]
    begun, done, wrong = time.monotonic(), 0, collections.Counter()
    for entry in entries:
        drawer = Drawer(f"{options.seed} {entry.name}")
        for call in drawer.calls(entry, options.calls):
            done += 1
            found = judge(call)
            if found:
                wrong[entry.name] += 1
                print(call.describe(), *found, sep="\n    ", flush=True)
    seconds = time.monotonic() - begun
    print(
        f"{len(entries)} entries, {done} calls, {sum(wrong.values())} differ in {len(wrong)} entries; {seconds:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
