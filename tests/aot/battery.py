"""Programs that mutate and alias, in all combinations, each compared with eager in everything a user could see.

A program is a mutation and a way to return results. A scenario says which inputs require grad, which share memory, and
what is done with the results. Each program is compiled once and meets several scenarios, so that guards have to notice.

    python tests/aot/battery.py --backend aot_eager        the whole product (hours); exits with 1 if anything differs
    python tests/aot/battery.py --sample 2000 --dynamic    part of it, sizes symbolic
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

import kiln

# -- programs ---------------------------------------------------------------------------------------------------------

MUTATIONS = {
    "nothing": "",
    "x": "x.mul_(2)",
    "y": "y.add_(1)",
    "both": "x.mul_(2); y.add_(3)",
    "one into the other": "x.mul_(2); y.add_(x.sum())",
    "twice": "x.mul_(2); x.exp_()",
    "copied into": "x.copy_(y)",
    "an item": "x[1] = y[0]",
    "a view": "x[0].mul_(3)",
    "a view of a view": "x.t()[1:].add_(1)",
    "no_grad": "\nwith torch.no_grad():\n    x.mul_(2)",
    "no_grad and then not": "\nwith torch.no_grad():\n    y.mul_(2)\ny.mul_(3)",
    "detached": "x.detach().mul_(2)",
    "data": "x.data.mul_(2)",
    "transposed": "x.transpose_(0, 1)",
    "unsqueezed": "y.unsqueeze_(0)",
    "data, then transposed": "x.mul_(2); x.transpose_(0, 1)",
    "transposed, then data": "x.t_(); x.mul_(2); y.add_(1)",
    "detach_": "x.detach_()",
    "saved, then changed": "kept = x.sin(); x.mul_(2); y = y + kept.sum()",
    "zeroed": "x.zero_(); x.add_(y.sum())",
    "in place of a result": "z = y * 2; x.add_(z.sum()); z.mul_(3)",
    "and back": "x.add_(1); x.sub_(1)",
    "through data and by itself": "x.data.add_(1); x.mul_(2)",
}

# What comes between the mutation and the return, and what is returned.
RESULTS = {
    "fresh": ("", "a + 1, b"),
    "scalar": ("", "a.sum()"),
    "input": ("", "x, b"),
    "other input": ("", "b, y"),
    "both inputs": ("", "y, x"),
    "input twice": ("", "x, a, x"),
    "view of input": ("", "x[0], b"),
    "views of input": ("", "x[1:], x.t(), b"),
    "input and view": ("", "x, x.t(), a"),
    "view of view of input": ("v = x[1:]", "v[0], a, v"),
    "expanded input": ("", "x.expand(2, *x.shape), b"),
    "chunks of input": ("", "x.chunk(2), a"),
    "rows of input": ("", "x.unbind(0), b"),
    "detached input": ("", "x.detach(), a"),
    "view in no_grad": ("\nwith torch.no_grad():\n    v = y.view_as(y)", "v, b"),
    "bits of input": ("", "x.detach().view(torch.int64), b"),
    "intermediate": ("", "a, b"),
    "loss and logits": ("", "(a * b).sum(), a"),
    "logits, loss": ("c = a.exp()", "c, c.sum() * b.sum(), a"),
    "view of intermediate": ("", "a[0], b"),
    "views of intermediate": ("", "a[0], a[1:]"),
    "base and view": ("", "a, a.t(), b"),
    "view and base": ("v = a[1:]", "v, a"),
    "same result twice": ("", "a, a"),
    "result and detached": ("", "a.detach(), a, b"),
    "chunks of intermediate": ("", "a.chunk(2)"),
    "rows of intermediate": ("", "a.unbind(0), a.sum()"),
    "view, then base changed": ("v = a[0]; a.mul_(2)", "a, v"),
    "base, then view changed": ("v = a[0]; v.mul_(3)", "a, v, b"),
    "view changed, base dropped": ("v = a[0]; v.mul_(3)", "v, b"),
    "changed view of input": ("v = x[0]; v.add_(1)", "v, a"),
    "nothing differentiable": ("", "a > 0, a.detach() * 2, a.argmax()"),
    "no tensors": ("", "None, 3, 'text'"),
    "mixed": ("", "{'k': [a, (b, x)], 'n': None, 's': 'text', 'f': 1.5}"),
    "detach_ed": ("c = a * 2; c.detach_()", "c, b"),
    "requires_grad_": ("c = a.detach().requires_grad_()", "c, b"),
    "constant": ("", "torch.ones(3, dtype=torch.float64), a"),
    "real part": ("", "torch.view_as_real(torch.complex(a, a)), b"),
    "changed late": ("x.mul_(2)", "b, x"),
    "diagonal": ("", "a.diagonal(), x.diagonal()"),
}


@dataclass(frozen=True)
class Program:
    """One function of two tensors."""

    mutation: str
    result: str

    @property
    def source(self) -> str:
        between, returned = RESULTS[self.result]
        body = [MUTATIONS[self.mutation], "a = x.sin() * 2", "b = y * a.sum()", between, f"return {returned}"]
        return "def program(x, y):\n" + textwrap.indent("\n".join(part for part in body if part), "    ")

    def function(self) -> Callable[..., Any]:
        """A function object of its own, so that nothing compiled for another is found."""
        namespace: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, f"<{self.mutation} / {self.result}>", "exec"), namespace)
        return namespace["program"]


# -- inputs -----------------------------------------------------------------------------------------------------------


@dataclass
class Inputs:
    """The two arguments, and whatever they were made from."""

    wants_x: bool
    wants_y: bool
    leaf: bool
    rows: int
    named: dict[str, torch.Tensor] = field(default_factory=dict)

    def source(self, name: str, requires_grad: bool, rows: int | None = None) -> torch.Tensor:
        """A tensor with values of its own; where it is not to be a leaf, computed from one."""
        shape = (rows or self.rows, 3)
        start = 0.1 + 0.7 * len(self.named)
        values = (torch.arange(shape[0] * shape[1], dtype=torch.float64) * 0.37 + start).cos() + 1.5
        self.named[name] = values.reshape(shape).clone().requires_grad_(requires_grad)
        if requires_grad and not self.leaf:
            self.named[f"{name} computed"] = self.named[name] * 1
            return self.named[f"{name} computed"]
        return self.named[name]

    @property
    def wants_any(self) -> bool:
        return self.wants_x or self.wants_y


def part(tensor: torch.Tensor, first: int, last: int, requires_grad: bool) -> torch.Tensor:
    return (tensor if requires_grad else tensor.detach())[first:last]


def _separate(make: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    return make.source("s", make.wants_x), make.source("t", make.wants_y)


def _same(make: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    tensor = make.source("s", make.wants_any)
    return tensor, tensor


def _parts(first: slice, second: slice) -> Callable[[Inputs], tuple[torch.Tensor, torch.Tensor]]:
    """Two slices of one base, given in quarters of its rows, which are twice those of the arguments."""

    def make_parts(make: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        base = make.source("s", make.wants_any, 2 * make.rows)
        half = make.rows // 2
        one = part(base, first.start * half, first.stop * half, make.wants_x)
        return one, part(base, second.start * half, second.stop * half, make.wants_y)

    return make_parts


def _detached(make: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    tensor = make.source("s", make.wants_x)
    return tensor, tensor.detach().requires_grad_(make.wants_y)


def _head(make: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    tensor = make.source("s", make.wants_any)
    return (tensor if make.wants_x else tensor.detach()), part(tensor, 0, 2, make.wants_y)


def _base_second(make: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    one, other = _head(make)
    return other, one


def _transposed(make: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    return make.source("s", make.wants_x).t(), make.source("t", make.wants_y)


def _strided(make: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    base = make.source("s", make.wants_x, 2 * make.rows)
    return base[1::2], make.source("t", make.wants_y)


def _expanded(make: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    return make.source("s", make.wants_x, 1).expand(make.rows, 3), make.source("t", make.wants_y)


ALIASES: dict[str, Callable[[Inputs], tuple[torch.Tensor, torch.Tensor]]] = {
    "separate": _separate,
    "same": _same,
    "overlapping": _parts(slice(0, 2), slice(1, 3)),
    "disjoint": _parts(slice(0, 2), slice(2, 4)),
    "equal views": _parts(slice(1, 3), slice(1, 3)),
    "detached": _detached,
    "head": _head,
    "base second": _base_second,
    "transposed": _transposed,
    "strided": _strided,
    "expanded": _expanded,
}

GRADS = {
    "none": (False, False, True),
    "x": (True, False, True),
    "y": (False, True, True),
    "both": (True, True, True),
    "x computed": (True, False, False),
    "y computed": (False, True, False),
    "both computed": (True, True, False),
}


# -- what is done with the results ------------------------------------------------------------------------------------


def weights(tensor: torch.Tensor) -> torch.Tensor:
    """An incoming gradient that no symmetry cancels."""
    return (torch.arange(tensor.numel(), dtype=torch.float64) + 1).sin().reshape(tensor.shape).to(tensor.dtype)


@dataclass
class Run:
    """One call: its inputs, its results, and a log of what was seen on the way."""

    inputs: dict[str, torch.Tensor]
    outputs: list[torch.Tensor]
    log: list[Any]

    @property
    def differentiable(self) -> list[torch.Tensor]:
        return [tensor for tensor in self.outputs if tensor.requires_grad]

    @property
    def wanted(self) -> list[torch.Tensor]:
        return [tensor for tensor in self.inputs.values() if tensor.requires_grad]

    def backward(self, outputs: list[torch.Tensor], **options: Any) -> None:
        if outputs:
            torch.autograd.backward(outputs, [weights(output) for output in outputs], **options)

    def gradients(self, outputs: list[torch.Tensor], wanted: list[torch.Tensor], **options: Any) -> list[Any]:
        if not outputs or not wanted:
            return []
        seeds = [weights(output) for output in outputs]
        found = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True, **options)
        self.log.append([gradient if gradient is None else gradient.detach() for gradient in found])
        return list(found)


def _all(run: Run) -> None:
    run.backward(run.differentiable)


def _first(run: Run) -> None:
    run.backward(run.differentiable[:1])


def _last(run: Run) -> None:
    run.backward(run.differentiable[-1:])


def _each(run: Run) -> None:
    """One after the other, the graph kept: gradients add up."""
    for output in run.differentiable:
        run.backward([output], retain_graph=True)


def _freed(run: Run) -> None:
    run.backward(run.differentiable)
    run.backward(run.differentiable)


def _some(run: Run) -> None:
    run.gradients(run.differentiable[:1], run.wanted[-1:], retain_graph=True)
    run.gradients(run.differentiable[-1:], run.wanted[:1])


def _between(run: Run) -> None:
    """Gradients with respect to results."""
    run.gradients(run.differentiable[-1:], run.differentiable[:1] + run.wanted, retain_graph=True)
    run.gradients(run.differentiable[:1], run.differentiable[-1:])


def _second(run: Run) -> None:
    gradients = run.gradients(run.differentiable, run.wanted, create_graph=True)
    squares = [(gradient * gradient).sum() for gradient in gradients if gradient is not None and gradient.requires_grad]
    if squares:
        run.gradients([torch.stack(squares).sum()], run.wanted)


def _hooks(run: Run) -> None:
    """Hooks on results, added after the call: each sees the whole gradient of its tensor, in eager's order."""
    for number, output in enumerate(run.outputs):
        if output.requires_grad:
            output.register_hook(lambda gradient, number=number: run.log.append((number, gradient.detach().clone())))
            if not output.is_leaf:
                output.retain_grad()
    run.backward(run.differentiable)
    run.log.sort(key=lambda entry: entry[0])  # which of two that do not depend on each other comes first is open
    run.log.append([output.grad for output in run.outputs if output.retains_grad])


def _changing_hooks(run: Run) -> None:
    for output in run.differentiable:
        output.register_hook(lambda gradient: gradient * 2)
    run.backward(run.differentiable)


def _overwrite(run: Run) -> None:
    """A result is changed in place, visibly to autograd."""
    run.outputs[0].mul_(2)
    run.backward(run.differentiable)


def _overwrite_last(run: Run) -> None:
    run.outputs[-1].add_(1)
    run.backward(run.differentiable)


def _overwrite_quietly(run: Run) -> None:
    with torch.no_grad():
        for output in run.outputs:
            output.add_(1)
    run.backward(run.differentiable)


def _overwrite_input(run: Run) -> None:
    with torch.no_grad():
        run.inputs["x"].mul_(2)
    run.backward(run.differentiable)


def _detach_output(run: Run) -> None:
    for output in run.outputs[:1]:
        output.detach_()
    run.backward(run.differentiable)


def _nothing(run: Run) -> None:
    pass


USES: dict[str, Callable[[Run], None]] = {
    name[1:]: function
    for name, function in list(globals().items())
    if callable(function) and getattr(function, "__annotations__", {}).get("run") == "Run"
}


# -- runs and their comparison ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """Which inputs require grad, which alias, what is done with the results."""

    grads: str
    alias: str
    use: str
    rows: int = 4
    context: str = "grad"


_CONTEXTS: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def make_inputs(scenario: Scenario) -> dict[str, torch.Tensor]:
    make = Inputs(*GRADS[scenario.grads], rows=scenario.rows)
    x, y = ALIASES[scenario.alias](make)
    return {"x": x, "y": y, **make.named}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a result, one that is there twice twice."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def skeleton(value: Any) -> Any:
    """A result with its tensors left out."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(skeleton, value))
    return {key: skeleton(item) for key, item in value.items()} if isinstance(value, dict) else value


def play(function: Callable[..., Any], scenario: Scenario) -> dict[str, Any]:
    """Call, look at everything, use the results, look again."""
    inputs = make_inputs(scenario)
    seen: dict[str, Any] = {}
    log: list[Any] = []
    outputs: list[torch.Tensor] = []
    try:
        with _CONTEXTS[scenario.context]():
            returned = function(inputs["x"], inputs["y"])
        outputs = list(tensors_in(returned))
        seen["result"] = skeleton(returned)
    except Exception as error:
        seen["error"] = described(error)
    seen["grad mode"] = torch.is_grad_enabled()
    seen["after the call"] = look(inputs, outputs)
    if outputs:
        try:
            USES[scenario.use](Run(inputs, outputs, log))
        except Exception as error:
            seen["error in use"] = described(error)
        seen["log"] = log
        seen["after the use"] = look(inputs, outputs)
    return seen


MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation"

DETACHED = "Trying to use a saved tensor that has been detached in-place"


def described(error: Exception) -> tuple[str, str]:
    """An exception; which of several saved tensors it names is left out."""
    known = next((start for start in (MODIFIED, DETACHED) if str(error).startswith(start)), None)
    return type(error).__name__, known or str(error)


def look(inputs: dict[str, torch.Tensor], outputs: list[torch.Tensor]) -> dict[str, Any]:
    """All that can be seen of tensors, those that they share memory with or are views of told by name."""
    named = {**inputs, **{f"output {number}": tensor for number, tensor in enumerate(outputs)}}
    objects: dict[int, str] = {}
    storages: dict[int, str] = {}
    for name, tensor in named.items():
        objects.setdefault(id(tensor), name)
        storages.setdefault(tensor.untyped_storage().data_ptr(), name)
    hidden: list[torch.Tensor] = []  # bases that nobody returned; kept, so that their ids mean something
    return {name: look_at(tensor, objects, storages, hidden) for name, tensor in named.items()}


def look_at(
    tensor: torch.Tensor, objects: dict[int, str], storages: dict[int, str], hidden: list[torch.Tensor]
) -> dict[str, Any]:
    base = tensor._base
    if base is not None and id(base) not in objects:
        objects[id(base)] = f"hidden base {len(hidden)}"
        hidden.append(base)
    try:
        history = {"is_leaf": tensor.is_leaf, "has grad_fn": tensor.grad_fn is not None}
    except RuntimeError as error:  # a view whose base was changed in a way that views cannot follow
        history = {"is_leaf": False, "has grad_fn": described(error)}
    return {
        **history,
        "value": tensor.detach().clone(),
        "the same object as": objects[id(tensor)],
        "shares memory with": storages[tensor.untyped_storage().data_ptr()],
        "base": objects[id(base)] if base is not None else None,
        "is view": tensor._is_view(),
        "layout": (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()),
        "bytes": tensor.untyped_storage().nbytes(),
        "requires_grad": tensor.requires_grad,
        "retains_grad": tensor.retains_grad,
        "inference": tensor.is_inference(),
        "version": None if tensor.is_inference() else tensor._version,
        "base version": None if base is None or base.is_inference() else base._version,
        "grad": tensor.grad if history["is_leaf"] or tensor.retains_grad else None,
    }


def differences(expected: Any, seen: Any, path: str = "") -> Iterator[str]:
    """Where two looks differ, in words."""
    if isinstance(expected, torch.Tensor) and isinstance(seen, torch.Tensor):
        properties = [(t.dtype, tuple(t.shape), t.requires_grad) for t in (expected, seen)]
        if properties[0] != properties[1]:
            yield f"{path}: {properties[0]} expected, {properties[1]} seen"
        elif not torch.allclose(expected.detach(), seen.detach(), rtol=1e-9, atol=1e-12, equal_nan=True):
            yield f"{path}: {expected.tolist()} expected, {seen.tolist()} seen"
    elif isinstance(expected, dict) and isinstance(seen, dict):
        for key in [*expected, *(key for key in seen if key not in expected)]:
            yield from differences(expected.get(key), seen.get(key), f"{path} / {key}" if path else str(key))
    elif isinstance(expected, (list, tuple)) and type(expected) is type(seen) and len(expected) == len(seen):
        for number, (one, other) in enumerate(zip(expected, seen, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif type(expected) is not type(seen) or expected != seen:
        yield f"{path}: {expected!r} expected, {seen!r} seen"


@dataclass(frozen=True)
class Case:
    """A program, and the scenarios that its compiled form meets one after the other."""

    program: Program
    scenarios: tuple[Scenario, ...]
    dynamic: bool = False

    def __str__(self) -> str:
        text = ", ".join(f"{s.grads}/{s.alias}/{s.use}" for s in self.scenarios)
        return f"{self.program.mutation} | {self.program.result} | {text}{' | dynamic' if self.dynamic else ''}"

    def failures(self, backend: Any) -> list[str]:
        """What the compiled program did otherwise than eager."""
        kiln.reset()
        compiled = kiln.compile(self.program.function(), backend=backend, dynamic=True if self.dynamic else None)
        plain = self.program.function()
        found: list[str] = []
        for number, scenario in enumerate(self.scenarios, 1):
            expected = play(plain, scenario)
            seen = play(compiled, scenario)
            if expected.get("error in use", "")[1:] in ((MODIFIED,), (DETACHED,)):
                # Saved copies are right where eager finds its originals changed; eager may raise half-way.
                for outcome in (expected, seen):
                    if outcome.get("error in use") in (None, expected["error in use"]):
                        outcome["after the use"] = outcome["log"] = None
                seen["error in use"] = seen.get("error in use", expected["error in use"])
            found += [f"call {number} ({scenario}): {text}" for text in differences(expected, seen)]
        return found


# -- which cases ------------------------------------------------------------------------------------------------------


def balanced(values: Any, chance: random.Random) -> Iterator[Any]:
    """Endlessly all values in ever new orders: each comes up equally often."""
    while True:
        order = list(values)
        chance.shuffle(order)
        yield from order


def sample(count: int, *, dynamic: bool = False, seed: int = 0) -> list[Case]:
    """Cases in which every value of every axis comes up equally often.

    A case is one scenario, met twice (the second call must find the first's entry), then others.
    """
    chance = random.Random(seed)
    axes = [balanced(axis, chance) for axis in (MUTATIONS, RESULTS, GRADS, ALIASES, USES)]
    contexts = balanced(["grad"] * 8 + ["no_grad", "inference"], chance)
    cases = []
    for _ in range(count):
        program = Program(next(axes[0]), next(axes[1]))
        grads, alias = next(axes[2]), next(axes[3])
        sizes = (4, 6, 8) if dynamic else (4, 4, 4)
        scenarios = [
            Scenario(grads, alias, next(axes[4]), sizes[0]),
            Scenario(grads, alias, next(axes[4]), sizes[1]),
            Scenario(grads, next(axes[3]), next(axes[4]), sizes[2]),
            Scenario(next(axes[2]), alias, next(axes[4]), sizes[2], next(contexts)),
        ]
        cases.append(Case(program, tuple(scenarios), dynamic))
    return cases


def product(*, dynamic: bool = False) -> Iterator[Case]:
    """Every program in every scenario; neighbours share a compiled program, so that guards are tried too."""
    for mutation, result in itertools.product(MUTATIONS, RESULTS):
        for grads, alias in itertools.product(GRADS, ALIASES):
            scenarios = [
                Scenario(grads, alias, use, 6 if dynamic and number % 2 else 4) for number, use in enumerate(USES)
            ]
            yield Case(Program(mutation, result), tuple(scenarios), dynamic)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--sample", type=int, help="how many cases, at random; all of them without")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only cases in whose description this occurs")
    parser.add_argument("--limit", type=int, default=10, help="how many failures to show in full")
    options = parser.parse_args()
    if options.sample:
        cases: Any = sample(options.sample, dynamic=options.dynamic, seed=options.seed)
    else:
        cases = product(dynamic=options.dynamic)
    failed = total = 0
    with kiln.config.patch(raise_internal_errors=True):
        for case in cases:
            if options.only not in str(case):
                continue
            total += 1
            found = case.failures(options.backend)
            failed += bool(found)
            if found and failed <= options.limit:
                print(f"{case}\n{case.program.source}", *found[:8], "", sep="\n", flush=True)
            elif found:
                print(case, found[0], sep="\n    ", flush=True)
    print(f"{total} cases, {failed} differ from eager")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
