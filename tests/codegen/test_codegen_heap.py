"""Memory between steps: what a compiled step frees is not given back to the system each time."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, torch, kiln
torch.set_num_threads(1)

def function(x, y):
    return torch.mm(torch.mm(x, y).sin(), y).cos() + 1  # blocks of two megabytes

run = kiln.compile(function, backend="kiln")
x, y = torch.randn(700, 700), torch.randn(700, 700)
for _ in range(5):
    run(x, y)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    run(x, y)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_pages_are_not_taken_anew():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(found.stdout.split()[-1]) < 500  # a block has 478 pages
