"""Generated programs under the engine: forward in eager, hooks anywhere, gradients and what hooks saw as in eager.

python tests/engine/test_engine_programs.py 0 500 graph,eager,aot_eager     # the long run: seeds from, to
"""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
import torch

import kiln
from kiln.testing import differences

COMPILERS = {
    "graph": lambda graph: graph,
    "eager": lambda graph: kiln.compile(graph, backend="eager"),
    "aot_eager": lambda graph: kiln.compile(graph, backend="aot_eager"),
}
SIZES = (3, 5, 4, 3)  # of the batch: the second makes it symbolic, the third is that of another dimension


class Scaled(torch.autograd.Function):
    """Two results, an argument that is no tensor, and a gradient only where it is needed."""

    @staticmethod
    def forward(ctx, x, y, factor):
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * y * factor, x + y

    @staticmethod
    def backward(ctx, first, second):
        x, y = ctx.saved_tensors
        other = first * x * ctx.factor + second if ctx.needs_input_grad[1] else None
        return first * y * ctx.factor + second, other, None


def written_over(x, y):
    result = x.clone()
    result[:, 1:3].mul_(y[:, :2])
    return result


def swapped(x):
    left, right = x.split(2, 1)
    return torch.cat([right, left * left], 1)


# Of two tensors of a batch, a matrix and a vector.
STEPS = (
    lambda x, y, matrix, vector: x.sin(),
    lambda x, y, matrix, vector: x * y,
    lambda x, y, matrix, vector: x @ matrix,
    lambda x, y, matrix, vector: x + vector,
    lambda x, y, matrix, vector: torch.cat([x, y], 1)[:, 2:6],
    lambda x, y, matrix, vector: x.t().contiguous().t() * 2,
    lambda x, y, matrix, vector: x.exp().clamp(max=3.0),
    lambda x, y, matrix, vector: written_over(x, y),
    lambda x, y, matrix, vector: (x * 1.5).add_(y, alpha=0.5),
    lambda x, y, matrix, vector: torch.where(x > 0, x, y),
    lambda x, y, matrix, vector: Scaled.apply(x, y, 0.3)[0],
    lambda x, y, matrix, vector: sum(Scaled.apply(x, y, 0.7)),
    lambda x, y, matrix, vector: x.softmax(-1),
    lambda x, y, matrix, vector: x.reshape(-1, 2).sum(1, keepdim=True).expand(-1, 2).reshape(x.shape),
    lambda x, y, matrix, vector: swapped(x),
    lambda x, y, matrix, vector: x.cumsum(0),
    lambda x, y, matrix, vector: torch.nn.functional.layer_norm(x, (4,), vector, None),
    lambda x, y, matrix, vector: x / (y.abs() + 1),
    lambda x, y, matrix, vector: x[torch.arange(x.shape[0] - 1, -1, -1)],
    lambda x, y, matrix, vector: x.unbind(1)[1].unsqueeze(1) * y,
    lambda x, y, matrix, vector: (x * x.detach()).float().double(),
    lambda x, y, matrix, vector: torch.stack([x, y]).mean(0),
)


def scaled(gradients, factor):
    return tuple(None if gradient is None else gradient * factor for gradient in gradients)


def halve(leaf):
    leaf.grad.mul_(0.5)


# What is put on a result, with a list for what is seen and one for tensors to look at in the end; nothing, mostly.
HOOKS = (
    lambda tensor, seen, kept: tensor.register_hook(lambda gradient: seen.append(gradient.sum().item())),
    lambda tensor, seen, kept: tensor.register_hook(lambda gradient: gradient * 2),
    lambda tensor, seen, kept: (tensor.retain_grad(), kept.append(tensor)),
    lambda tensor, seen, kept: tensor.grad_fn.register_prehook(lambda given: scaled(given, 0.5)),
    lambda tensor, seen, kept: tensor.grad_fn.register_hook(lambda result, given: scaled(result, 3.0)),
    *(lambda tensor, seen, kept: None,) * 5,
)
LEAF_HOOKS = (
    lambda leaf: leaf.register_hook(lambda gradient: gradient.clamp(-5, 5)),
    lambda leaf: leaf.register_post_accumulate_grad_hook(halve),
    lambda leaf: setattr(leaf, "grad", torch.ones_like(leaf)),
    *(lambda leaf: None,) * 4,
)


def by_backward(results, leaves, draw):
    sum(result.sum() for result in results).backward()


def by_backward_twice(results, leaves, draw):
    loss = sum(result.sum() for result in results)
    loss.backward(retain_graph=True)
    loss.backward()


def by_grad(results, leaves, draw):
    weights = [torch.full_like(result, 0.5) for result in results]
    return torch.autograd.grad(results, leaves, weights, allow_unused=True)


def by_some_inputs(results, leaves, draw):
    torch.autograd.backward(results, [torch.ones_like(result) for result in results], inputs=draw.sample(leaves, 2))


WAYS = (by_backward, by_backward_twice, by_grad, by_some_inputs)


def observed(seed: int, size: int, compiler: Any) -> dict[str, Any]:
    """What a program leaves behind; what it does follows from the seed."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(1000 * seed + size)
    shapes = [(size, 4)] * draw.randint(1, 3) + [(4, 4), (4,)]
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    batch, seen, kept = leaves[:-2], [], []
    for _ in range(draw.randint(3, 14)):
        result = draw.choice(STEPS)(draw.choice(batch), draw.choice(batch), *leaves[-2:])
        draw.choice(HOOKS)(result, seen, kept)
        batch = [*batch, result]
    for leaf in leaves:
        draw.choice(LEAF_HOOKS)(leaf)
    way, error, given = draw.choice(WAYS), None, None
    try:
        if compiler is None:
            given = way(batch[-3:], leaves, draw)
        else:
            with kiln.compiled_autograd.enable(compiler):
                given = way(batch[-3:], leaves, draw)
    except RuntimeError as raised:
        error = str(raised)
    gradients = [tensor.grad for tensor in (*leaves, *kept)]
    return {"gradients": gradients, "given": given, "seen": seen, "raised": error}


def check_program(seed: int, compiler: Any) -> None:
    kiln.reset()
    for size in SIZES:
        expected, found = observed(seed, size, None), observed(seed, size, compiler)
        wrong = differences(expected, found, name=f"program {seed}", identity=False, rtol=1e-12, atol=1e-12)
        assert not wrong, f"batch of {size}: {wrong}"


@pytest.mark.parametrize("seed", range(12))
def test_generated_programs(seed):
    check_program(seed, COMPILERS["graph"])


@pytest.mark.parametrize("seed", [100, 101])
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_generated_programs_compiled(seed, compiler):
    check_program(seed, COMPILERS[compiler])


def main(first: str, last: str, names: str) -> None:
    failed = 0
    for seed in range(int(first), int(last)):
        for name in names.split(","):
            try:
                check_program(seed, COMPILERS[name])
            except Exception as error:
                failed += 1
                print(f"{name}, {seed}: {type(error).__name__}: {error}"[:1000], flush=True)
    print(f"{failed} failed; {dict(kiln.report.counters)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
