"""Trains models in eager and with ``torch.compile(backend="kiln")``; prints what differs as JSON."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import kiln
from benchmarks import speed_models
from tests.models import training
from tests.models.tiny_models import BUILDERS
from tests.torch_backend.running import Compile, Program, compare

VARYING = [(2, 7), (3, 9), (4, 6)]


def gpt(compile: Compile) -> Any:
    """The GPT of the benchmarks, smaller: four steps of training, and inference with lengths that vary."""
    for name, value in {"WORDS": 50, "WIDTH": 16, "HEADS": 2, "LAYERS": 2, "BATCH": 2, "LENGTH": 12}.items():
        setattr(speed_models, name, value)
    model, batch = speed_models.build("gpt")
    call, losses = compile(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = speed_models.loss_of(call(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    model.eval()
    with torch.no_grad():
        shorter = [
            call(**{name: tokens[:, :length].contiguous() for name, tokens in batch.items()}) for length in (5, 7, 9)
        ]
    return losses, shorter, model.state_dict()


def hugging_face(name: str, **how: Any) -> Program:
    """Three steps of training, with dropout."""

    def train(compile: Compile) -> Any:
        head = {"head": training.HEADS[name]} if name in training.HEADS else {}
        build: training.Build = lambda: BUILDERS[name](**head, **training.DROPOUT[name])  # noqa: E731
        found = training.train(build, compile, dtype=torch.float32, **how)
        return found.steps, found.state, found.random_state

    return train


MODELS: dict[str, Callable[[Compile], Any]] = {
    "gpt": gpt,
    "bert": hugging_face("bert"),
    "gpt2, dynamic sizes": hugging_face("gpt2", sizes=VARYING),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, program in MODELS.items():
        try:
            with kiln.config.patch(raise_internal_errors=True):
                results[name] = compare(program)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    print(json.dumps(results))
