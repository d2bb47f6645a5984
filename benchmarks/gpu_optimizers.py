"""Optimizer steps, gradient clipping and unscaling on a GPU, over the parameters of GPT-2 small: 148 tensors, 124 M.

    python -m benchmarks.gpu_optimizers [--only adamw,clip] [--contestants eager,fused,torch.compile,kiln]

Printed are the median time of a step, from an idle GPU until it is idle again, the time until the call returns, the
number of kernels and memory operations on the GPU, the time of the first call, and the greatest difference of the
parameters (or of the gradients) from eager's after five steps, relative to the greatest number.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

LAYERS, WIDTH, VOCABULARY, LENGTH = 12, 768, 50304, 1024
STEPS_COMPARED = 5
Step = Callable[[], Any]


def shapes() -> list[tuple[int, ...]]:
    """The shapes of the parameters of GPT-2 small."""
    block: list[tuple[int, ...]] = [(WIDTH,)] * 4 + [(3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
    block += [(4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,)]
    return [(VOCABULARY, WIDTH), (LENGTH, WIDTH), *block * LAYERS, (WIDTH,), (WIDTH,)]


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    made = [torch.nn.Parameter(0.02 * torch.randn(shape, device="cuda")) for shape in shapes()]
    for parameter in made:
        parameter.grad = 0.1 * torch.randn_like(parameter)
    return made


# ---- what is measured ------------------------------------------------------------------------------------------------


def adamw(given: list[torch.nn.Parameter], **how: Any) -> Step:
    return torch.optim.AdamW(given, lr=1e-3, **how).step


def adamw_on_gpu(given: list[torch.nn.Parameter], **how: Any) -> Step:
    """Step counters on the GPU, as CUDA graphs need them."""
    return torch.optim.AdamW(given, lr=1e-3, capturable=True, **how).step


def adam(given: list[torch.nn.Parameter], **how: Any) -> Step:
    return torch.optim.Adam(given, lr=1e-3, weight_decay=0.01, capturable=True, **how).step


def sgd(given: list[torch.nn.Parameter], **how: Any) -> Step:
    return torch.optim.SGD(given, lr=1e-3, momentum=0.9, **how).step


def clip(given: list[torch.nn.Parameter], **how: Any) -> Step:
    return lambda: torch.nn.utils.clip_grad_norm_(given, 1.0)


def unscale(given: list[torch.nn.Parameter], **how: Any) -> Step:
    """What GradScaler does to gradients before a step; the factor keeps their size."""
    found, factor = torch.zeros((), device="cuda"), torch.full((), 1.0, device="cuda")

    def step() -> torch.Tensor:
        torch._amp_foreach_non_finite_check_and_unscale_([one.grad for one in given], found, factor)
        return found

    return step


def clipped_adamw(given: list[torch.nn.Parameter], **how: Any) -> Step:
    """Clipping, then AdamW, in one compiled function."""
    optimizer = torch.optim.AdamW(given, lr=1e-3, capturable=True, **how)

    def step() -> torch.Tensor:
        norm = torch.nn.utils.clip_grad_norm_(given, 1.0)
        optimizer.step()
        return norm

    return step


CASES = {
    "adamw": adamw,
    "adamw gpu": adamw_on_gpu,
    "adam": adam,
    "sgd": sgd,
    "clip": clip,
    "unscale": unscale,
    "clip+adamw": clipped_adamw,
}
HAVE_NO_FUSED_FORM = ("clip", "unscale")
CONTESTANTS = ("eager", "fused", "torch.compile", "kiln")


def step_of(contestant: str, name: str, given: list[torch.nn.Parameter]) -> Step:
    how = {} if name in HAVE_NO_FUSED_FORM else {"fused": True} if contestant == "fused" else {"foreach": True}
    step = CASES[name](given, **how)
    if contestant == "kiln":
        import kiln

        compiled: Step = kiln.compile(step)
        return compiled
    return torch.compile(step) if contestant == "torch.compile" else step


# ---- measuring -------------------------------------------------------------------------------------------------------


def seconds(step: Step, count: int) -> tuple[float, float]:
    """The medians of a step's time until the GPU is idle, and until the call returns."""
    whole, returned = [], []
    for _ in range(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        returned.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - start)
    return statistics.median(whole), statistics.median(returned)


def launches(step: Step) -> tuple[int, float]:
    """The number of kernels and memory operations on the GPU in a step, and the seconds that they take."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        step()
        torch.cuda.synchronize()
    events = [event for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    on_gpu = [event for event in events if not event.is_user_annotation and "Buffer" not in event.name]
    return len(on_gpu), sum(event.device_time for event in on_gpu) * 1e-6


def apart(found: list[torch.nn.Parameter], wanted: list[torch.nn.Parameter]) -> float:
    """The greatest difference of parameters and gradients, relative to the greatest number of the tensor."""
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        for a, b in ((one.detach(), other.detach()), (one.grad, other.grad)):
            assert a is not None and b is not None
            worst = max(worst, float((a - b).abs().max() / b.abs().max()))
    return worst


def measure(contestant: str, name: str, count: int) -> str:
    given, wanted = parameters(), parameters()
    step, eager = step_of(contestant, name, given), step_of("eager", name, wanted)
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    step()  # the first step of an optimizer makes its state, and is another graph
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    for _ in range(STEPS_COMPARED - 2):
        step()
    for _ in range(STEPS_COMPARED):
        eager()
    difference = apart(given, wanted)
    whole, returned = seconds(step, count)
    number, busy = launches(step)
    times = f"{1e6 * whole:9.0f} {1e6 * returned:9.0f} {1e6 * busy:9.0f} {number:9}"
    return f"{name:12} {contestant:14} {times} {first:9.2f} {difference:10.1e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    columns = " ".join(f"{title:>9}" for title in ("step, us", "call, us", "busy, us", "launches", "first, s"))
    print(f"{'step':12} {'contestant':14} {columns} {'difference':>10}")
    for name in options.only.split(","):
        for contestant in options.contestants.split(","):
            if contestant == "fused" and name in HAVE_NO_FUSED_FORM:
                continue
            try:
                print(measure(contestant, name, options.steps), flush=True)
            except Exception as error:
                print(f"{name:12} {contestant:14} {type(error).__name__}: {str(error)[:200]}", flush=True)
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
