"""The GPT of speed_models.py in JAX: the same architecture, sizes and weights; a step is loss and gradients, jitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.speed_models import HEADS, build

Weights = dict[str, Any]


def normalised(weights: Weights, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(weights: Weights, name: str, x: Any) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def attention(weights: Weights, name: str, x: Any) -> Any:
    batch, length, width = x.shape
    parts = linear(weights, f"{name}.qkv", x).reshape(batch, length, 3, HEADS, width // HEADS)
    q, k, v = (parts[:, :, number].transpose(0, 2, 1, 3) for number in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) / (width // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    y = jax.nn.softmax(scores, -1) @ v
    return linear(weights, f"{name}.project", y.transpose(0, 2, 1, 3).reshape(batch, length, width))


def loss(weights: Weights, x: Any, y: Any) -> Any:
    h = weights["words.weight"][x] + weights["places.weight"][: x.shape[1]]
    blocks = sorted({name.split(".")[1] for name in weights if name.startswith("blocks.")}, key=int)
    for number in blocks:
        block = f"blocks.{number}"
        h = h + attention(weights, block, normalised(weights, f"{block}.first_norm", h))
        up = linear(weights, f"{block}.up", normalised(weights, f"{block}.second_norm", h))
        h = h + linear(weights, f"{block}.down", jax.nn.gelu(up, approximate=False))
    logits = normalised(weights, "norm", h) @ weights["head.weight"].T
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), y[..., None], -1)
    return -chosen.mean()


def make_step() -> Callable[[], float]:
    """A training step that gives the loss; all of it is done when it returns."""
    model, batch = build("gpt")
    weights = {name: jnp.asarray(value.detach().numpy()) for name, value in model.named_parameters()}
    arrays = [jnp.asarray(value.numpy().astype("int32")) for value in batch.values()]
    compiled = jax.jit(jax.value_and_grad(loss))
    jax.block_until_ready((weights, arrays))
    del model, batch

    def step() -> float:
        found = jax.block_until_ready(compiled(weights, *arrays))
        return float(found[0])

    return step
