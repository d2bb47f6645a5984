"""Training steps on a GPU: eager, torch.compile and Kiln side by side, each in a process of its own.

    python -m benchmarks.gpu [--only gpt2,tiny] [--json FILE] [--profile FOLDER]

Each step is forward (bfloat16 autocast), backward and gradients set to None. Printed are the first step with empty
caches, the first step of a second process, the median step, the peak of torch's allocator, the loss of the first step,
and how far it is from eager's. Python's bytecode is there before the first process starts. With ``--profile``, a file
for each model and contestant lists GPU time by kernel.
``--contestants`` also takes ``kiln+graphs`` and ``torch.compile+graphs``, which record CUDA graphs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from typing import Any

CONTESTANTS = ("eager", "torch.compile", "kiln")
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "KILN_CACHE_DIR", "CUDA_CACHE_PATH")
PACKAGES = ("torch", "sympy", "mpmath", "numpy", "triton", "llvmlite")
MODELS = "gpt2,llama,bert,vit,resnet50,unet,dlrm,tiny"


def child(contestant: str, name: str, steps: int, profile: str | None) -> None:
    """Measures one contestant and prints JSON."""
    import torch

    from benchmarks import gpu_models

    model, batch = gpu_models.make(name)
    torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")
    call: Any = model
    mode = "reduce-overhead" if contestant.endswith("+graphs") else "default"
    if contestant.startswith("kiln"):
        import kiln

        call = kiln.compile(model, mode=mode)
    elif contestant.startswith("torch.compile"):
        call = torch.compile(model, mode=mode)

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
    if profile:
        with open(os.path.join(profile, f"{name}-{contestant}.txt"), "w") as file:
            file.write(time_by_kernel(step))


def time_by_kernel(step: Callable[[], Any], steps: int = 3) -> str:
    """GPU time of a step by kernel, the longest first."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    rows = [(event.self_device_time_total / steps, event.count / steps, event.key) for event in profiled.key_averages()]
    rows = sorted((row for row in rows if row[0]), reverse=True)
    lines = [f"{sum(row[0] for row in rows) / 1e3:9.3f} ms {sum(row[1] for row in rows):6.0f} x  all"]
    lines += [
        f"{total / 1e3:9.3f} ms {count:6.1f} x {total / count:9.1f} us  {key[:150]}" for total, count, key in rows
    ]
    return "\n".join(lines) + "\n"


def measured(contestant: str, name: str, caches: str, steps: int, profile: str | None = None) -> dict[str, float]:
    environment = dict(os.environ, **{variable: os.path.join(caches, variable) for variable in CACHES})
    command = [sys.executable, "-m", "benchmarks.gpu", "--child", contestant, "--only", name, "--steps", str(steps)]
    command += ["--profile", profile] if profile else []
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("@@"):
            found: dict[str, float] = json.loads(line[2:])
            return found
    print(done.stderr[-3000:], file=sys.stderr)
    return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=MODELS, help="models")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", help="a file to write the result to")
    parser.add_argument("--profile", help="a folder to write GPU time by kernel to")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.only, options.steps, options.profile)
        return 0
    if options.profile:
        os.makedirs(options.profile, exist_ok=True)
    table: dict[str, dict[str, dict[str, float]]] = {}
    columns = ("cold, s", "warm, s", "step, ms", "peak, MiB", "loss", "- eager")
    print(f"{'model':9}{'contestant':14}" + "".join(f"{column:>10}" for column in columns))
    with tempfile.TemporaryDirectory() as folder:
        compile_bytecode(folder)
        for name in options.only.split(","):
            rows = table.setdefault(name, {})
            for contestant in options.contestants.split(","):
                rows[contestant] = both(contestant, name, options.steps, options.profile)
                print(f"{name:9}{contestant:14}" + row_text(rows[contestant], rows.get("eager")), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)
    return 0


def compile_bytecode(folder: str) -> None:
    """Has Kiln's modules compiled to bytecode, as those of an installed package are; also those of torch and all others
    if torch's are not, into a folder that the processes then look in. Otherwise importing sympy alone takes seconds."""
    folders = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kiln")]
    torch = importlib.util.find_spec("torch")
    if torch is not None and not os.path.exists(importlib.util.cache_from_source(str(torch.origin))):
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        found = [importlib.util.find_spec(package) for package in PACKAGES]
        folders += [place for spec in found if spec is not None for place in spec.submodule_search_locations or ()]
        run_compileall([sysconfig.get_paths()["stdlib"]], "/(site-packages|test)/")
    run_compileall(folders, "/test/")


def run_compileall(folders: list[str], left_out: str) -> None:
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0", "-x", left_out, *folders]
    subprocess.run(command, capture_output=True, check=False)


def both(contestant: str, name: str, steps: int, profile: str | None) -> dict[str, float]:
    """What a process with empty caches and a second one measure; eager has no caches, so one will do."""
    with tempfile.TemporaryDirectory() as caches:
        if contestant == "eager":
            return measured(contestant, name, caches, steps, profile)
        cold = measured(contestant, name, caches, 2)
        warm = measured(contestant, name, caches, steps, profile) if cold else {}
        return {**warm, "cold": cold["first"]} if warm else {}


def row_text(found: dict[str, float], eager: dict[str, float] | None) -> str:
    if not found:
        return "   failed"
    cold = f"{found['cold']:10.2f}" if "cold" in found else f"{'-':>10}"
    text = f"{cold}{found['first']:10.2f}{1e3 * found['step']:10.3f}{found['peak']:10.0f}{found['loss']:10.4f}"
    return text + (f"{found['loss'] - eager['loss']:10.4f}" if eager and eager is not found else "")


if __name__ == "__main__":
    raise SystemExit(main())
