"""One contestant of speed.py in a process of its own: it makes a training step and does what its parent asks for.

    python benchmarks/speed_child.py CONTESTANT MODEL BACKEND

Requests are lines of JSON on standard input, each answered by one on standard output: ``["first"]`` takes the first
step (seconds, loss, what is not compiled), ``["steps", COUNT, CALLS]`` takes COUNT × CALLS steps (seconds a step, COUNT
of them), ``["memory"]`` takes one (its peak, in bytes). What a contestant's ``import`` line imports is not in the first
step; what it imports on first use is, as users wait for that.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

from benchmarks import speed_models
from benchmarks.measuring import no_collection, time_calls

THREADS = 2
THREE_OPS, ADAMW = "three ops", "gpt, AdamW"
LEFT_ALONE = ("breaks", "aot eager", "codegen eager", "taken over")  # counters of what Kiln did not compile
Step = Callable[[], Any]
Tensors = list[torch.Tensor]


def compiler(contestant: str, backend: str) -> Callable[[Any], Any]:
    """What makes a function or module what the contestant runs."""
    if contestant == "eager":
        return lambda function: function
    if contestant == "peer":
        return torch.compile
    import kiln

    dynamic = True if contestant == "kiln dynamic" else None
    return lambda function: kiln.compile(function, backend=backend, dynamic=dynamic)


def three_ops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).sin().sum()


def three_op_step(compiled: Callable[[Any], Any]) -> Step:
    x, w = torch.ones(8, requires_grad=True), torch.full((8,), 0.5, requires_grad=True)
    call = compiled(three_ops)

    def step() -> Any:
        loss = call(x, w)
        loss.backward()
        return loss

    return step


def model_step(compiled: Callable[[Any], Any], name: str) -> Step:
    """Forward and backward; gradients are new in each step."""
    model, batch = speed_models.build(name)
    call, loss_of = compiled(model), speed_models.loss_of
    parameters = list(model.parameters())

    def step() -> Any:
        for parameter in parameters:
            parameter.grad = None
        loss = loss_of(call(**batch))
        loss.backward()
        return loss

    return step


def adamw(weights: Tensors, gradients: Tensors, first: Tensors, second: Tensors, count: torch.Tensor) -> None:
    """An update of all weights in place. (torch's own optimizer takes `count` out of its tensor, between graphs.)"""
    count += 1
    torch._foreach_mul_(weights, 1 - 1e-5 * 0.01)
    torch._foreach_lerp_(first, gradients, 0.1)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, gradients, gradients, 0.001)
    scales = torch._foreach_sqrt(second)
    torch._foreach_div_(scales, torch.sqrt(1 - 0.999**count))
    torch._foreach_add_(scales, 1e-8)
    changes = torch._foreach_div(first, scales)
    torch._foreach_mul_(changes, 1e-5 / (1 - 0.9**count))
    torch._foreach_sub_(weights, changes)


def optimizer_step(compiled: Callable[[Any], Any]) -> Step:
    """The GPT with an update by AdamW, which is compiled, too."""
    model, batch = speed_models.build("gpt")
    weights = list(model.parameters())
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    call, update, count = compiled(model), compiled(adamw), torch.zeros(())

    def step() -> Any:
        loss = call(**batch)
        loss.backward()
        with torch.no_grad():
            update(weights, [weight.grad for weight in weights], first, second, count)
        for weight in weights:
            weight.grad = None
        return loss

    return step


def make_step(contestant: str, name: str, backend: str) -> Step:
    if contestant == "jax":
        from benchmarks import speed_jax

        return speed_jax.make_step()
    compiled = compiler(contestant, backend)
    if name == THREE_OPS:
        return three_op_step(compiled)
    return optimizer_step(compiled) if name == ADAMW else model_step(compiled, name)


def first(step: Step) -> tuple[float, float, str]:
    """Seconds, the loss, and what the contestant did not compile, in words."""
    with no_collection():
        start = time.perf_counter()
        loss = step()
        seconds = time.perf_counter() - start
    return seconds, loss.item() if isinstance(loss, torch.Tensor) else loss, not_compiled()


def not_compiled() -> str:
    if sys.argv[1] == "peer":
        graphs = sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"]
        return "" if graphs else "it compiled nothing"
    if "kiln" not in sys.modules:
        return ""
    counters = sys.modules["kiln"].report.counters
    return ", ".join(f"{name}: {counters[name]}" for name in LEFT_ALONE if counters[name])


def steps(step: Step, count: int, calls: int) -> list[float]:
    return [time_calls(step, (), calls) for _ in range(count)]


def memory(step: Step) -> int:
    """The most bytes that torch's allocator had given out at once during a step, beyond what it had before."""
    from kiln.testing.memory import memory_taken

    step()
    return memory_taken(step)[0]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what contestants print is no answer
    torch.set_num_threads(THREADS)
    step = make_step(*sys.argv[1:4])
    requests: dict[str, Callable[..., Any]] = {"first": first, "steps": steps, "memory": memory}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(requests[name](step, *arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
