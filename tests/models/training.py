"""Training tiny models compiled and in eager, step for step: what tests and the sweep share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kiln import testing
from tests.support.devices import DEVICE, moved, random_state

STEPS = 3
SIZES = [(2, 7)] * STEPS  # (batch, length) of each step
# Weights after the steps agree with eager's to these.
TOLERANCES = {torch.float64: {"rtol": 1e-9, "atol": 1e-9}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}
if DEVICE.type == "cuda":
    # Parts of these models are in float32 whatever the type of the weights: norms, positions, the loss. On the CPU they
    # are bit for bit eager's, on a GPU their kernels round elsewhere than ATen's.
    TOLERANCES[torch.float64] = {"rtol": 1e-6, "atol": 1e-6}
# Heads that return a loss beside their logits, and dropout under each configuration's own names.
HEADS = {"bert": "BertForMaskedLM"}
DROPOUT: dict[str, dict[str, float]] = {
    "bert": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "gpt2": {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    "llama": {"attention_dropout": 0.1},
    "t5": {"dropout_rate": 0.1},
    "vit": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "whisper": {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1},
}
Build = Callable[[], tuple[torch.nn.Module, Callable[[int, int], dict[str, Any]]]]


@dataclass
class Trained:
    """What is left of a run: the model's final state, and loss, logits and gradients of each step."""

    state: dict[str, torch.Tensor]
    steps: list[dict[str, Any]] = field(default_factory=list)
    random_state: torch.Tensor = field(default_factory=random_state)


def train(
    build: Build,
    compiler: Callable[[torch.nn.Module], Callable[..., Any]],
    *,
    dtype: torch.dtype,
    training: bool = True,
    checkpointed: bool = False,
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> Trained:
    """Make a model, make it anything else with `compiler`, and take a step of SGD for each size."""
    torch.manual_seed(0)
    model, inputs = build()
    model = moved(model).to(dtype).train(training)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    batches = [moved(in_dtype(inputs(*size), dtype)) for size in sizes]
    compiled = compiler(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)  # once: each step must draw what eager draws
    steps = []
    for batch in batches:
        output = compiled(**batch)
        output.loss.backward()
        gradients = {name: copied(parameter.grad) for name, parameter in model.named_parameters()}
        steps.append({"loss": output.loss, "logits": output.logits, "gradients": gradients})
        optimizer.step()
        optimizer.zero_grad()
    return Trained({name: value.clone() for name, value in model.state_dict().items()}, steps)


def copied(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """The values; how often memory was written to on the way is not compared."""
    return None if gradient is None else gradient.clone()


def in_dtype(batch: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {
        name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in batch.items()
    }


def differences(expected: Trained, seen: Trained, dtype: torch.dtype) -> list[str]:
    """What a user could tell apart, in words."""
    options = TOLERANCES[dtype]
    found = testing.differences(expected.steps, seen.steps, name="step", **options)
    found += testing.differences(expected.state, seen.state, name="weights", **options)
    if not torch.equal(expected.random_state, seen.random_state):
        found.append("the state of the random generator differs")
    return found
