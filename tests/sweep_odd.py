"""Odd programs under a watchdog: every odd value in every use, in plain Python and under Kiln.

    python tests/sweep_odd.py                       # a sample of 2,000 programs
    python tests/sweep_odd.py --count 100000        # all of them
    python tests/sweep_odd.py -k 'EndlessList / sum'

Prints the programs that hang, crash or differ, and the numbers. The exit status is 1 if there is any.
"""

from __future__ import annotations

import argparse
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from tests.odd.running import SECONDS, all_programs, run, sample


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the watchdog's patience with one program")
    parser.add_argument("-k", default="", help="only programs whose name matches this regular expression")
    options = parser.parse_args()
    if options.k:
        programs = [program for program in all_programs() if re.search(options.k, program.name)]
    else:
        programs = sample(options.count, options.seed)
    shares = [programs[job :: options.jobs] for job in range(options.jobs)]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda share: run(share, options.seconds, report=print), shares))
    bad = sum(len(result.different) + len(result.hung) + len(result.crashed) for result in results)
    ran = sum(result.ran for result in results)
    print(f"{len(programs)} programs of {len(all_programs())}, {ran} came to an end, {bad} hung, crashed or differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
