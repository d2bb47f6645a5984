"""Training steps on a GPU: eager, torch.compile and Kiln side by side, each in a process of its own.

    python -m benchmarks.gpu [--only gpt2,tiny] [--json FILE]

Each step is forward (bfloat16 autocast), backward and gradients set to None. Printed are the first step with empty
caches, the first step of a second process, the median step, and the peak of torch's allocator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

CONTESTANTS = ("eager", "torch.compile", "kiln")
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "KILN_CACHE_DIR")


def child(contestant: str, name: str, steps: int) -> None:
    """Measures one contestant and prints JSON."""
    import torch

    from benchmarks import gpu_models

    model, batch = gpu_models.make(name)
    torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")
    call: Any = model
    if contestant == "kiln":
        import kiln

        call = kiln.compile(model)
    elif contestant == "torch.compile":
        call = torch.compile(model)

    def step() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss: torch.Tensor = call(*batch)
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = None
        return loss

    torch.cuda.synchronize()
    start = time.perf_counter()
    loss = step()
    torch.cuda.synchronize()
    found = {"first": time.perf_counter() - start, "loss": loss.item()}
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    found |= {"step": statistics.median(times), "peak": torch.cuda.max_memory_allocated() / 2**20}
    print("@@" + json.dumps(found))


def measured(contestant: str, name: str, caches: str, steps: int) -> dict[str, float]:
    environment = dict(os.environ, **{variable: os.path.join(caches, variable) for variable in CACHES})
    command = [sys.executable, "-m", "benchmarks.gpu", "--child", contestant, "--only", name, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("@@"):
            found: dict[str, float] = json.loads(line[2:])
            return found
    print(done.stderr[-3000:], file=sys.stderr)
    return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="gpt2,llama,bert,tiny", help="models")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", help="a file to write the result to")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.only, options.steps)
        return 0
    table: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{'model':8} {'contestant':14} {'cold, s':>9} {'warm, s':>9} {'step, ms':>9} {'peak, MiB':>10} {'loss':>9}")
    for name in options.only.split(","):
        for contestant in options.contestants.split(","):
            with tempfile.TemporaryDirectory() as caches:
                cold = measured(contestant, name, caches, 2)
                warm = measured(contestant, name, caches, options.steps) if cold else {}
            table.setdefault(name, {})[contestant] = {"cold": cold.get("first", 0.0), **warm}
            if warm:
                row = f"{cold['first']:9.2f} {warm['first']:9.2f} {1e3 * warm['step']:9.3f} {warm['peak']:10.0f}"
                print(f"{name:8} {contestant:14} {row} {warm['loss']:9.4f}", flush=True)
            else:
                print(f"{name:8} {contestant:14} failed", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
