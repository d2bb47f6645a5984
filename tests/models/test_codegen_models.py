"""Twelve models through the backend ``kiln``: forward, training step and varying batches, as accurate as eager.

What is computed in float32 is compared with eager's result in float64: Kiln's may be about as far from it as eager's
own in float32, and no further. ``KILN_TEST_DEVICE=cuda`` runs them on a GPU.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.report import counters
from kiln.testing.observe import tensors_in
from tests.models.plain_models import PLAIN
from tests.models.tiny_models import BUILDERS
from tests.models.training import HEADS
from tests.support.devices import DEVICE, moved
from tests.support.releases import SIZES_STAY_DYNAMIC

FACTOR, SLACK = 2.0, 2e-6  # of eager's error, and of the values' size: eager may be right by luck
FIRST, OTHERS = (2, 8), [(3, 10), (5, 12)]  # (batch, length)
NAMED = {
    name: lambda name=name: BUILDERS[name](**({"head": HEADS[name]} if name in HEADS else {})) for name in BUILDERS
}
OTHER = {name: PLAIN[f"plain-{name}"] for name in ("resnet", "unet", "lstm", "ranking", "graph", "diffusion")}
MODELS = NAMED | OTHER
RECURRENT = ("lstm",)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models: threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Sides:
    """A model three times: in eager, compiled, and in eager in float64."""

    def __init__(self, name: str, training: bool) -> None:
        torch.manual_seed(0)
        kiln.reset()
        self.before = counters.copy()
        model, self.inputs = MODELS[name]()
        model = moved(model.train(training))
        if name in ("gpt2", "llama"):
            model.loss_function = cross_entropy
        self.models = {"exact": exact(model), "eager": copy.deepcopy(model), "kiln": model}
        self.calls = dict(self.models, kiln=kiln.compile(model, backend="kiln", fullgraph=True))

    def batch(self, size: tuple[int, int]) -> dict[str, Any]:
        torch.manual_seed(sum(size))
        return moved(self.inputs(*size))

    def counted(self, what: str) -> int:
        return counters[what] - self.before[what]


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *_: Any, **more: Any) -> torch.Tensor:
    """Of the next words, in the logits' type: the models' own makes float32 of float64."""
    if logits.dim() == 2:
        return F.cross_entropy(logits, labels)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def exact(model: torch.nn.Module) -> torch.nn.Module:
    """A copy in float64, whatever its code makes in float32 on the way."""
    made = copy.deepcopy(model).double()
    for module in made.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, args: (args[0].double(),))
    return made


@contextlib.contextmanager
def default_of(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_float64(value: Any) -> Any:
    if isinstance(value, list):
        return [in_float64(part) for part in value]
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def results(output: Any) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]


def loss_of(output: Any) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    return loss if loss is not None else sum(tensor.square().mean() for tensor in results(output))


def train(sides: Sides, side: str, batch: dict[str, Any]) -> list[torch.Tensor]:
    """Results, gradients, and buffers as the step left them."""
    model = sides.models[side]
    model.zero_grad()
    output = sides.calls[side](**batch)
    loss_of(output).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*results(output), *gradients, *(buffer for buffer in model.buffers() if buffer.is_floating_point())]


def compare(found: dict[str, list[torch.Tensor]]) -> None:
    assert len(found["kiln"]) == len(found["eager"]) == len(found["exact"])
    for number, (exact, eager, seen) in enumerate(zip(found["exact"], found["eager"], found["kiln"], strict=True)):
        assert (seen.shape, seen.dtype, seen.stride()) == (eager.shape, eager.dtype, eager.stride()), number
        assert exact.dtype is torch.float64 and exact.isfinite().all(), number
        errors = [(side.double() - exact).abs().max().item() for side in (eager, seen)]
        allowed = FACTOR * errors[0] + SLACK * max(1.0, exact.abs().max().item())
        assert errors[1] <= allowed, f"tensor {number}: error {errors[1]:.3g}, eager's is {errors[0]:.3g}"


def run(sides: Sides, size: tuple[int, int], training: bool) -> None:
    batch = sides.batch(size)
    found = {}
    for side in sides.calls:
        given = {name: in_float64(value) for name, value in batch.items()} if side == "exact" else batch
        with default_of(torch.float64 if side == "exact" else torch.float32), torch.set_grad_enabled(training):
            found[side] = train(sides, side, given) if training else results(sides.calls[side](**given))
    compare(found)


def check_compiled(sides: Sides) -> None:
    assert sides.counted("graphs") >= 1
    if DEVICE.type == "cpu" or not any(isinstance(one, torch.nn.RNNBase) for one in sides.models["kiln"].modules()):
        assert sides.counted("aot eager") == 0  # recurrent layers of cuDNN are left to eager
    assert sides.counted("codegen eager") == sides.counted("taken over") == 0


@pytest.mark.parametrize("name", MODELS)
def test_forward(name: str) -> None:
    sides = Sides(name, training=False)
    run(sides, FIRST, training=False)
    run(sides, FIRST, training=False)
    check_compiled(sides)
    assert sides.counted("recompiles") == 0


@pytest.mark.parametrize("name", MODELS)
def test_training_with_batches_that_vary(name: str) -> None:
    """The second size compiles once more, for all sizes; the third does not."""
    sides = Sides(name, training=True)
    for size in (FIRST, FIRST, *OTHERS):
        run(sides, size, training=True)
    check_compiled(sides)
    if SIZES_STAY_DYNAMIC or name not in RECURRENT:
        assert sides.counted("recompiles") == 1
