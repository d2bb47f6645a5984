"""Random tensor programs through the backend ``kiln``, beside eager: views, arithmetic, reductions, products, indexing.

    python tests/sweep_tensor_programs.py [--programs 300] [--seed 0] [--length 14] [--dynamic] [--device cuda]
    python tests/sweep_tensor_programs.py --reference          # the schedule for a GPU, computed without one
    python tests/sweep_tensor_programs.py --emulated           # the kernels for a GPU, run on the CPU

A program is a list of steps, each a function of values made before; it is printed where it differs. Values are compared
with eager's within what eager itself differs from float64, gradients too; strides and types must be the same. With
``--reference`` the graph of a program and that of its gradients are lowered and scheduled as for a GPU, and the
reference interpreter computes them; with ``--emulated`` the code of the kernels runs on the CPU.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

import kiln
from kiln.aot import aot_function
from tests.support.cuda_programs import compile_for_gpu_reference
from tests.target.cuda_programs_on_cpu import compile_for_gpu_on_cpu

SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 33)
Step = tuple[str, Callable[..., torch.Tensor], tuple[int, ...]]

UNARY = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "neg": torch.neg,
    "abs": torch.abs,
    "sin": torch.sin,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "exp of tanh": lambda x: x.tanh().exp(),
    "log of abs": lambda x: (x.abs() + 0.1).log(),
    "half": lambda x: x * 0.5,
    "shift": lambda x: x + 0.25,
    "square": lambda x: (x / 3) * x,
    "clamp": lambda x: x.clamp(-1, 1),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "dropout of nothing": lambda x: torch.nn.functional.dropout(x, 0.0),
    "mask": lambda x: x.masked_fill(x > 0.5, 0.0),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "to double and back": lambda x: (x.double() * 1.5).to(x.dtype),
    "through int": lambda x: x + (x > 0).int().to(x.dtype),
}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": lambda a, b: a * b * 0.5,
    "div": lambda a, b: a / (b.abs() + 1),
    "maximum": torch.maximum,
    "hypot": lambda a, b: (a * a + b * b + 0.1).sqrt(),
    "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
}


def view_of(x: torch.Tensor, pick: random.Random) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]] | None:
    """A view, or something that moves data, that fits a tensor."""
    choices: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = []
    if x.dim() > 1:
        a, b = pick.sample(range(x.dim()), 2)
        choices.append((f"transpose({a}, {b})", lambda t: t.transpose(a, b)))
        order = pick.sample(range(x.dim()), x.dim())
        choices.append((f"permute({order})", lambda t: t.permute(order)))
        choices.append(("reshape(-1)", lambda t: t.reshape(-1)))
        choices.append(("flatten(0, 1)", lambda t: t.flatten(0, 1)))
    if x.dim() and x.dim() < 5:
        dim = pick.randrange(x.dim())
        size = x.shape[dim]
        choices.append((f"unsqueeze({dim})", lambda t: t.unsqueeze(dim)))
        choices.append((f"flip({dim})", lambda t: t.flip(dim)))
        choices.append((f"roll(1, {dim})", lambda t: t.roll(1, dim)))
        choices.append((f"cat twice {dim}", lambda t: torch.cat([t, t * 2], dim)))
        choices.append(("pad", lambda t: torch.nn.functional.pad(t, (1, 2))))
        choices.append((f"select({dim}, {size - 1})", lambda t: t.select(dim, size - 1)))
        if size > 1:
            choices.append((f"narrow({dim}, 1, {size - 1})", lambda t: t.narrow(dim, 1, size - 1)))
            choices.append((f"every second of {dim}", lambda t: t[(slice(None),) * dim + (slice(None, None, 2),)]))
            index = torch.tensor([pick.randrange(size) for _ in range(pick.randint(1, 5))])
            choices.append((f"index_select({dim}, {index.tolist()})", lambda t: t.index_select(dim, index)))
            choices.append((f"chunk {dim}", lambda t: t.chunk(2, dim)[1]))
        if size % 2 == 0:
            shape = (*x.shape[:dim], size // 2, 2, *x.shape[dim + 1 :])
            choices.append((f"split axis {dim}", lambda t: t.reshape(shape)))
        if size == 1:
            expanded = list(x.shape)
            expanded[dim] = 3
            choices.append((f"expand {dim}", lambda t: t.expand(expanded)))
            choices.append((f"squeeze({dim})", lambda t: t.squeeze(dim)))
    return pick.choice(choices) if choices else None


def reduction_of(x: torch.Tensor, pick: random.Random) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]] | None:
    if not x.dim() or not x.numel():
        return None
    dims = sorted(pick.sample(range(x.dim()), pick.randint(1, x.dim())))
    dim, keep = pick.randrange(x.dim()), pick.random() < 0.5
    norm = tuple(x.shape[-1:])
    return pick.choice(
        [
            (f"sum({dims}, {keep})", lambda t: t.sum(dims, keep)),
            (f"mean({dims}, {keep})", lambda t: t.mean(dims, keep)),
            (f"amax({dim}, {keep})", lambda t: t.amax(dim, keep)),
            (f"max({dim})", lambda t: t.max(dim, keep).values),
            (f"var({dims})", lambda t: t.var(dims, correction=0, keepdim=keep)),
            (f"softmax({dim})", lambda t: t.softmax(dim)),
            (f"log_softmax({dim})", lambda t: t.log_softmax(dim)),
            (f"logsumexp({dim})", lambda t: t.logsumexp(dim, keep)),
            ("layer_norm", lambda t: torch.nn.functional.layer_norm(t, norm)),
            (f"cumsum({dim})", lambda t: t.cumsum(dim) * 0.1),
            (f"argmax({dim})", lambda t: t + t.argmax(dim, keepdim=True)),
        ]
    )


class Program:
    """Steps over values; the first values are the inputs."""

    def __init__(self, seed: int, length: int) -> None:
        self.pick = random.Random(seed)
        torch.manual_seed(seed)
        shape = [self.pick.choice(SIZES) for _ in range(self.pick.randint(1, 3))]
        self.inputs = [self.make_input(shape) for _ in range(2)] + [self.make_input(shape[-1:])]
        self.steps: list[Step] = []
        values = list(self.inputs)
        with torch.no_grad():
            for _ in range(length):
                step = self.next_step(values)
                if step is not None:
                    made = step[1](*(values[place] for place in step[2]))
                    if made.numel() <= 40_000 and bool(torch.isfinite(made).all()):
                        self.steps.append(step)
                        values.append(made)
        count = min(len(values) - len(self.inputs), self.pick.randint(1, 3))
        self.results = self.pick.sample(range(len(self.inputs), len(values)), count)

    def make_input(self, shape: list[int]) -> torch.Tensor:
        kind = self.pick.choice(["plain", "transposed", "sliced", "expanded"])
        if kind == "transposed" and len(shape) > 1:
            return torch.randn([*shape[:-2], shape[-1], shape[-2]]).transpose(-1, -2)
        if kind == "sliced":
            return torch.randn([*shape[:-1], shape[-1] * 2])[..., ::2]
        if kind == "expanded" and len(shape) > 1:
            return torch.randn([1, *shape[1:]]).expand(shape)
        return torch.randn(shape)

    def next_step(self, values: list[torch.Tensor]) -> Step | None:
        pick = self.pick
        place = pick.randrange(max(0, len(values) - 6), len(values))
        x, kind = values[place], pick.random()
        if kind < 0.25:
            name = pick.choice(list(UNARY))
            return name, UNARY[name], (place,)
        if kind < 0.5:
            found = view_of(x, pick)
            return (*found, (place,)) if found else None
        if kind < 0.7:
            found = reduction_of(x, pick)
            return (*found, (place,)) if found else None
        others = [n for n, other in enumerate(values) if goes_with(x, other)]
        if kind < 0.78 and x.dim() == 2:
            others = [n for n, other in enumerate(values) if other.dim() == 2 and other.shape[0] == x.shape[1]]
            return ("mm", lambda a, b: a @ b * 0.2, (place, pick.choice(others))) if others else None
        name = pick.choice(list(BINARY))
        return (name, BINARY[name], (place, pick.choice(others))) if others else None

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        values = list(inputs)
        for _, function, places in self.steps:
            values.append(function(*(values[place] for place in places)))
        return [values[place] for place in self.results]

    def __str__(self) -> str:
        lines = [f"v{n} = input {list(x.shape)} {x.stride()}" for n, x in enumerate(self.inputs)]
        for number, (name, _, places) in enumerate(self.steps, len(self.inputs)):
            lines.append(f"v{number} = {name} of {', '.join(f'v{place}' for place in places)}")
        return "\n".join([*lines, f"return {', '.join(f'v{place}' for place in self.results)}"])


def goes_with(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:
        return False
    return True


def run(program: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    results = program(*leaves)
    torch.manual_seed(7)
    weights = [torch.randn(result.shape, dtype=torch.float64).to(result) for result in results]
    loss = sum((result * weight).sum() for result, weight in zip(results, weights, strict=True))
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [*(result.detach() for result in results), *(g for g in gradients if g is not None)]


def run_compiled(program: Program, dynamic: bool | None) -> list[torch.Tensor]:
    return run(kiln.compile(program.__call__, backend="kiln", dynamic=dynamic), program.inputs)


def run_reference(program: Program, dynamic: bool | None) -> list[torch.Tensor]:
    """What the schedules of forward and backward for a GPU mean."""
    return run(aot_function(program.__call__, compile_for_gpu_reference, dynamic=bool(dynamic)), program.inputs)


def run_emulated(program: Program, dynamic: bool | None) -> list[torch.Tensor]:
    """What the kernels of forward and backward for a GPU do."""
    return run(aot_function(program.__call__, compile_for_gpu_on_cpu, dynamic=bool(dynamic)), program.inputs)


def differs(program: Program, dynamic: bool | None, run_other: Callable[..., list[torch.Tensor]]) -> str | None:
    """How other results differ from eager's; None where they do not."""
    eager = run(program, program.inputs)
    exact = run(program, [x.double() for x in program.inputs])
    found = run_other(program, dynamic)
    if len(found) != len(eager):
        return f"{len(found)} results and gradients, eager has {len(eager)}"
    for number, (one, plain, right) in enumerate(zip(found, eager, exact, strict=True)):
        if one.dtype is not plain.dtype or one.shape != plain.shape:
            return f"result {number}: {one.dtype} {one.shape}, eager {plain.dtype} {plain.shape}"
        if number < len(program.results) and strides_of(one) != strides_of(plain):
            return f"result {number}: strides {one.stride()}, eager {plain.stride()}"
        error, eagers = (one - right).abs().max().item(), (plain - right).abs().max().item()
        scale = right.abs().max().item() + 1
        if not error <= 4 * eagers + 1e-4 * scale:
            return f"result {number}: off by {error}, eager by {eagers}"
    return None


def strides_of(x: torch.Tensor) -> list[int]:
    """Those that matter; torch's own rules for axes of one element differ between fake and real tensors."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=14)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more programs after this time")
    parser.add_argument("--reference", action="store_true", help="compute the schedule for a GPU without one")
    parser.add_argument("--emulated", action="store_true", help="run the kernels for a GPU on the CPU")
    arguments = parser.parse_args()
    if (arguments.reference or arguments.emulated) and (arguments.dynamic or arguments.device != "cpu"):
        parser.error("the reference interpreter cannot find all dynamic sizes, and computes on the CPU")
    run_other = run_reference if arguments.reference else run_emulated if arguments.emulated else run_compiled
    end = time.monotonic() + arguments.seconds
    kiln.config.raise_internal_errors = True
    done = failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.programs):
        if time.monotonic() > end:
            break
        done += 1
        with torch.device(arguments.device):
            program = Program(seed, arguments.length)
        if not program.results:
            continue
        try:
            wrong = differs(program, True if arguments.dynamic else None, run_other)
        except Exception:
            wrong = traceback.format_exc()
        if wrong is not None:
            failed += 1
            print(f"--- seed {seed}\n{program}\n{wrong}\n", flush=True)
        kiln.reset()
    print(f"{done} programs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
