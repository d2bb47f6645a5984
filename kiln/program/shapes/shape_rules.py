"""Shapes of operations whose own rule in torch needs plain numbers where sizes are symbolic.

torch unrolls a recurrent network over its sequence to learn what comes out, so that every length would be a graph of
its own. What comes out follows from the sizes that go in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import is_grad_enabled  # the program may put another function in its place

from ...platform.torch_autograd import is_any_autocast_enabled
from ...platform.torch_operators import VARIABLE_FUNCTIONS


def recurrent(
    data: torch.Tensor,
    state: torch.Tensor | tuple[torch.Tensor, ...],
    weights: list[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Output and final states of an LSTM, GRU or plain recurrent network."""
    states = (state,) if isinstance(state, torch.Tensor) else tuple(state)
    batch, length = data.shape[:2] if batch_first else (data.shape[1], data.shape[0])
    output = data.new_empty(length, batch, states[0].shape[-1] * (2 if bidirectional else 1))
    if batch_first:
        output = output.transpose(0, 1)
    made = [output, *(data.new_empty(item.shape) for item in states)]
    leaves = [leaf for leaf in (data, *states, *weights) if leaf.requires_grad]
    if leaves and is_grad_enabled():
        made = [item + leaves[0].sum() for item in made]  # differentiable, like the real ones
    return tuple(made)


def pooled(
    data: torch.Tensor,
    kernel_size: int | tuple[int],
    stride: int | tuple[int] | None = None,
    padding: int | tuple[int] = 0,
    dilation: int | tuple[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> object:
    """One-dimensional pooling as two-dimensional: only that keeps its sizes symbolic."""

    def pair(value: int | tuple[int], other: int) -> tuple[int, int]:
        return (other, value) if isinstance(value, int) else (other, value[0])

    pool: Any = F.max_pool2d
    made = pool(
        data.unsqueeze(-2),
        pair(kernel_size, 1),
        pair(kernel_size if stride is None else stride, 1),
        pair(padding, 0),
        pair(dilation, 1),
        ceil_mode,
        return_indices,
    )
    return tuple(item.squeeze(-2) for item in made) if return_indices else made.squeeze(-2)


POOLING: tuple[object, ...] = (F.max_pool1d, torch.max_pool1d)
RECURRENT: tuple[object, ...] = tuple(
    getattr(VARIABLE_FUNCTIONS, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
)


def shape_rule(function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """What to run on fakes instead of the operation, where that is known."""
    if function in POOLING:
        return pooled
    if function not in RECURRENT or kwargs or len(args) != 9 or type(args[8]) is not bool:  # else: packed sequences
        return None
    return recurrent if args[0].dim() == 3 and not is_any_autocast_enabled() else None
