"""The device that tests of models and of generated programs run on: ``KILN_TEST_DEVICE=cuda pytest tests/models``."""

from __future__ import annotations

import os
from typing import Any

import torch

DEVICE = torch.device(os.environ.get("KILN_TEST_DEVICE", "cpu"))


def moved(value: Any) -> Any:
    """A module, or the tensors in containers, on that device."""
    if DEVICE.type == "cpu":
        return value
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return value.to(DEVICE)
    if isinstance(value, dict):
        return {name: moved(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(moved, value))
    return value


def random_state() -> torch.Tensor:
    """The state of the generator that operators on that device draw from."""
    return torch.cuda.get_rng_state() if DEVICE.type == "cuda" else torch.get_rng_state()
