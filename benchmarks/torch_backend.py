"""Kiln as a backend of torch's own compiler: ``backend="kiln"`` beside ``backend="inductor"`` and eager, in one run.

Training steps (forward and backward) of the GPT and of Hugging Face's BERT and GPT-2 (`speed_models.py`). *First step*
is that of a fresh process with empty caches, capture by torch included; *warm* is the same with the caches that the
first one left. *Step* is a step once compiled: the processes of a model live at the same time and take turns. All are
medians; the ratios are Kiln's time to inductor's and to eager's.

    python benchmarks/torch_backend.py [--quick] [--only gpt,bert]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks.measuring import ROOT, rotated, shown

CONTESTANTS = ("eager", "inductor", "kiln")
MODELS = ("gpt", "bert", "gpt2")
CHILD = """
import json, os, sys, time
sys.path.insert(0, {root!r})
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import torch
torch.set_num_threads(2)
from benchmarks import speed_models
from benchmarks.measuring import no_collection, time_calls
contestant, name = sys.argv[1:3]
model, batch = speed_models.build(name)
if contestant == "kiln":
    from kiln.torch_backend import compile_graph
    from importlib.metadata import entry_points
    found = "kiln" in entry_points(group="torch_dynamo_backends").names
    contestant = "kiln" if found else compile_graph
call = model if contestant == "eager" else torch.compile(model, backend=contestant)
parameters = list(model.parameters())

def step():
    for parameter in parameters:
        parameter.grad = None
    loss = speed_models.loss_of(call(**batch))
    loss.backward()
    return loss

def first():
    with no_collection():
        start = time.perf_counter()
        loss = step()
        return time.perf_counter() - start, loss.item()

def steps(count):
    return time_calls(step, (), count)

for line in sys.stdin:
    request, *arguments = json.loads(line)
    print(json.dumps({{"first": first, "steps": steps}}[request](*arguments)), file=answers, flush=True)
"""


class Contestant:
    """A process that takes training steps when it is told to."""

    def __init__(self, name: str, model: str, caches: str) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        for variable in ("KILN_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            environment[variable] = os.path.join(caches, variable)
        command = [sys.executable, "-c", CHILD.format(root=ROOT), name, model]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )

    def ask(self, *request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the process of a contestant ended")
        return json.loads(answer)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(model: str, starts: int, kinds: tuple[str, ...], rounds: int, calls: int) -> dict[str, Any]:
    """Medians by contestant, and the loss of the first step. The last process of each contestant takes the steps."""
    times: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in CONTESTANTS} for kind in (*kinds, "step")}
    losses: dict[str, float] = {}
    processes: dict[str, Contestant] = {}
    caches = tempfile.mkdtemp()
    try:
        for number in range(starts):
            for name in rotated(list(CONTESTANTS), number):
                for kind in kinds:  # the second has the caches of the first
                    if name in processes:
                        processes[name].end()
                    processes[name] = Contestant(name, model, os.path.join(caches, f"{name}{number}"))
                    seconds, losses[name] = processes[name].ask("first")
                    times[kind][name].append(seconds)
        for process in processes.values():
            process.ask("steps", 3)
        for number in range(rounds):
            for name in rotated(list(CONTESTANTS), number):
                times["step"][name].append(processes[name].ask("steps", calls))
    finally:
        for process in processes.values():
            process.end()
        shutil.rmtree(caches)
    medians = {kind: {name: statistics.median(found) for name, found in by.items()} for kind, by in times.items()}
    return {"model": model, "losses": losses, "times": medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one start with empty caches, and few steps")
    parser.add_argument("--only", default=",".join(MODELS), help="models, separated by commas")
    asked = parser.parse_args()
    effort = (1, ("first step",), 5, 3) if asked.quick else (3, ("first step", "warm"), 9, 5)
    results = []
    print(f"{'':24}" + "".join(f"{name:>11}" for name in (*CONTESTANTS, "/ inductor", "/ eager")), flush=True)
    for model in asked.only.split(","):
        found = measure(model, *effort)
        results.append(found)
        for kind, times in found["times"].items():
            ratios = [f"{times['kiln'] / times[other]:11.2f}" for other in ("inductor", "eager")]
            cells = "".join(f"{shown(times[name]):>11}" for name in CONTESTANTS)
            print(f"{f'{model}, {kind}':24}{cells}{''.join(ratios)}", flush=True)
        expected = found["losses"]["eager"]
        for name, loss in found["losses"].items():
            if not math.isclose(loss, expected, rel_tol=1e-4):
                print(f"{model}: the loss of {name} is {loss}, that of eager {expected}")
    print(json.dumps({"benchmark": "torch_backend", "quick": asked.quick, "results": results}))


if __name__ == "__main__":
    main()
