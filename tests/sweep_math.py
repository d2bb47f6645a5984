"""Every float32 through every vector function of one argument: ``python tests/sweep_math.py [names] [--step 1]``.

Prints the greatest error of each in units of the last place, and where; takes some minutes a function. With a step,
every so many bit patterns only. tests/codegen/test_codegen_math.py has the bounds, and checks a sample.
"""

import argparse
import pathlib
import sys
import time

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent / "codegen"))
from test_codegen_math import ERRORS
from vector_functions import reference, ulps, vector_function

CHUNK = 1 << 22


def sweep(name: str, step: int) -> tuple[float, float]:
    """The greatest error, and the argument that has it."""
    function, expected = vector_function(name, 1, torch.float32), reference(name, torch.float32)
    worst, where = -1.0, 0.0
    for start in range(0, 1 << 32, CHUNK * step):
        bits = np.arange(start, min(start + CHUNK * step, 1 << 32), step, dtype=np.uint64).astype(np.uint32)
        x = bits.view(np.float32)
        errors = ulps(function(x), expected(x))
        greatest = int(np.argmax(errors))
        if errors[greatest] > worst:
            worst, where = float(errors[greatest]), float(x[greatest])
    return worst, where


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(ERRORS))
    parser.add_argument("--step", type=int, default=1)
    options = parser.parse_args()
    failed = []
    np.seterr(all="ignore")
    for name in options.names:
        begun = time.perf_counter()
        worst, where = sweep(name, options.step)
        allowed = ERRORS[name][0]
        verdict = "" if worst <= allowed else f"  MORE THAN {allowed}"
        print(f"{name:8} {worst:7.3f} ULP at {where!r}  ({time.perf_counter() - begun:.0f} s){verdict}", flush=True)
        failed += [name] if verdict else []
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
