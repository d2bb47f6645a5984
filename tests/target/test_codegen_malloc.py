"""Memory between steps: what a compiled step frees is not given back to the system each time."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, torch, kiln
torch.set_num_threads(1)

def function(x, w):
    for _ in range(8):
        x = torch.cumsum(x, 1).sin() * w  # blocks of 352 pages, kept for the backward
    return x.sum()

run = kiln.compile(function, backend="kiln")
x, w = torch.randn(600, 600, requires_grad=True), torch.randn(600, 600) / 30
for _ in range(5):
    run(x, w).backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(60):
    run(x, w).backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_pages_are_not_taken_anew():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(found.stdout.split()[-1]) < 60 * 150  # less than half a block a step: it was one
