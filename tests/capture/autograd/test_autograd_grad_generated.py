"""Generated programs that take gradients of what they computed, of each other's results, and of gradients."""

import linecache
import random

import pytest
import torch

import kiln
from kiln.testing import check

FUNCTIONS = ("sin", "cos", "exp", "tanh", "sigmoid", "neg", "square")
FORMS = (
    "{n} = {a}.{f}()",
    "{n} = {a}.{f}() * {b}",
    "{n} = {a} * {b} + 1.5",
    "{n} = {a}.view(4)[:2].sum() * {b}",
    "{n} = {a}.t() @ {b}",
    "{n} = {a}.clone(); {n}.mul_({b})",
    "{n} = {a}.detach()",
    "{n} = {a}.detach().requires_grad_()",
)


def written(seed):
    """The text of a program of two tensors."""
    choice = random.Random(seed)
    lines, names = ["def program(x, w):"], ["x", "w"]
    for number in range(choice.randint(3, 9)):
        n, a, b = f"v{number}", choice.choice(names), choice.choice(names)
        if choice.random() < 0.6:
            form = choice.choice(FORMS)
            lines.append("    " + form.format(n=n, a=a, b=b, f=choice.choice(FUNCTIONS)))
        else:
            asked = choice.sample(names, choice.randint(1, 2))
            output, weights = (f"{a}.sum()", "None") if choice.random() < 0.6 else (a, f"torch.ones_like({a})")
            flags = (
                f"create_graph={choice.random() < 0.6}, allow_unused=True, materialize_grads={choice.random() < 0.7}"
            )
            kept = choice.choice(["", ", retain_graph=True"])
            lines.append(f"    found = torch.autograd.grad({output}, [{', '.join(asked)}], {weights}, {flags}{kept})")
            lines.append(f"    {n} = found[{choice.randrange(len(asked))}]")
            lines.append(f"    if {n} is None: {n} = torch.zeros(2, 2, dtype=x.dtype)")
        names.append(n)
    results = choice.sample(names[2:], min(len(names) - 2, choice.randint(1, 3)))
    return "\n".join([*lines, f"    return {', '.join(name + ' * 1' for name in results)},"])


def arguments(kind):
    x, w = (
        torch.linspace(*ends, 4, dtype=torch.float64).view(2, 2).clone().requires_grad_()
        for ends in ((0.1, 1), (-1, 0.5))
    )
    return {"leaves": (x, w), "a result": (x * 2, w), "related": (x, x * 3)}[kind]


@pytest.mark.parametrize("backend", [name for name in ("eager", "aot_eager") if name in kiln.list_backends()])
@pytest.mark.parametrize("kind", ["leaves", "a result", "related"])
@pytest.mark.parametrize("block", range(2))
def test_programs(block, kind, backend):
    for seed in range(8 * block, 8 * block + 8):
        text, file = written(seed), f"<generated {seed}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        names = {"torch": torch}
        exec(compile(text, file, "exec"), names)
        try:
            check(names["program"], make_args=lambda: arguments(kind), calls=2, backend=backend, rtol=1e-9, atol=1e-9)
        except AssertionError as error:
            raise AssertionError(f"{text}\n{error}") from error
        finally:
            del linecache.cache[file]
