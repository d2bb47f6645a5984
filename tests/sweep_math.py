"""Every float32 through every vector function of one argument: ``python tests/sweep_math.py [names] [--step 1]``.

Prints the greatest error of each in units of the last place, and where; takes some minutes a function. With a step,
every so many bit patterns only. tests/target/test_codegen_math.py has the bounds, and checks a sample.
"""

import argparse
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch

from kiln.target.llvm.llvm_text import Lines
from kiln.target.llvm.math.vector import Vector
from tests.target.test_codegen_math import ERRORS
from tests.target.vector_functions import compiled, loop, reference, vector_function

CHUNK = 1 << 20


def error_function():
    """`ulps` of vector_functions.py for float32 beside float64, in machine code: numpy takes too long."""
    lines = Lines()
    v, wide = Vector(lines, torch.float32, 16), Vector(lines, torch.float64, 16)
    got = lines.new(f"load {v.kind}, ptr %p0, align 4")
    expected = lines.new(f"load {wide.kind}, ptr %p1, align 8")
    rounded = v.narrow(expected)
    exponent = v.integer_op("lshr", v.integer_op("and", v.bits(rounded), 0x7F800000), 23)
    exponent = v.select_integer(v.integer_compare("slt", exponent, 1), 1, exponent)
    power = lines.new(f"zext {v.integers} {v.integer_op('sub', 150 + 1023, exponent)} to {wide.integers}")
    inverse = wide.from_bits(wide.integer_op("shl", power, 52))
    error = v.narrow(wide.mul(wide.abs(wide.sub(v.widen(got), expected)), inverse))
    nans = v.mask_and(v.compare("uno", got, got), v.compare("uno", rounded, rounded))
    same = v.mask_or(v.compare("oeq", got, rounded), nans)
    finite = v.mask_and(v.compare("olt", v.abs(got), np.inf), v.compare("olt", v.abs(rounded), np.inf))
    result = v.select(finite, error, v.select(same, 0.0, np.inf))
    lines.add(f"store {v.kind} {result}, ptr %p2, align 4")
    function = compiled(loop(["", "", ""], [4, 8, 4], lines.text, lines.names.declarations, 16), "run", 3)

    def run(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
        got, expected = np.ascontiguousarray(got), np.ascontiguousarray(expected)
        errors = np.empty(got.size, np.float32)
        function(got.ctypes.data, expected.ctypes.data, errors.ctypes.data, got.size)
        return errors

    return run


def sweep(name: str, step: int) -> tuple[float, float]:
    """The greatest error, and the argument that has it."""
    function, expected = vector_function(name, 1, torch.float32), reference(name, torch.float32)
    error = error_function()
    worst, where = -1.0, 0.0
    for start in range(0, 1 << 32, CHUNK * step):
        bits = np.arange(start, start + CHUNK * step, step, dtype=np.uint64).astype(
            np.uint32
        )  # the last may come again
        x = bits.view(np.float32)
        errors = error(function(x), expected(x))
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
