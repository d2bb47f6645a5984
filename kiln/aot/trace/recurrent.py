"""Recurrent networks with dynamic sizes: written in operators, since torch's own kernels want plain numbers.

An LSTM in float32 is oneDNN's layer, as in eager, for any batch and length; the others are unrolled over their length,
which so becomes a constant. Torch's decompositions are not used: they leave out the dropout between layers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ...platform.torch_dispatch import DispatchKey, is_key_included
from ...platform.torch_operators import VARIABLE_FUNCTIONS
from ...program.unsupported import Unsupported

aten = torch.ops.aten
Tensors = Sequence[torch.Tensor]
Weights = Sequence[Any]  # tensors; biases may be None
Cell = Callable[[torch.Tensor, Tensors, Weights], Tensors]  # gates of the input, state, weights: the next state
Layer = Callable[[torch.Tensor, Tensors, Tensors, bool], tuple[torch.Tensor, Tensors]]
ONE_DNN_LSTM = 2  # its number among oneDNN's kinds of cells


def recurrent(
    kind: str,
    data: torch.Tensor,
    state: torch.Tensor | Tensors,
    weights: Tensors,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Output and final states of a network."""
    states = [state.unbind(0)] if isinstance(state, torch.Tensor) else [part.unbind(0) for part in state]
    layer = layer_of(kind, data, states, has_biases, train)
    directions = 2 if bidirectional else 1
    width = len(weights) // (layers * directions)
    found: list[Tensors] = []
    if batch_first:
        data = data.transpose(0, 1)
    for number in range(layers):
        outputs = []
        for reverse in (False, True)[:directions]:
            place = len(found)
            own = weights[place * width : (place + 1) * width]
            output, final = layer(data, [part[place] for part in states], own, reverse)
            outputs.append(output)
            found.append(final)
        data = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and number < layers - 1:
            data = torch.dropout(data, dropout, True)
    return data.transpose(0, 1) if batch_first else data, *map(torch.stack, zip(*found, strict=True))


has_one_dnn: Callable[[], bool] = torch.backends.mkldnn.is_available


def layer_of(kind: str, data: torch.Tensor, states: Sequence[Tensors], has_biases: bool, train: bool) -> Layer:
    if kind == "lstm" and has_one_dnn() and torch.backends.mkldnn.enabled:
        if data.dtype in (torch.bfloat16, torch.float16):
            raise Unsupported("an LSTM of a type that oneDNN has for some processors, with sizes that vary")
        is_plain = data.dtype is torch.float32 and data.device.type == "cpu"
        if is_plain and states[0][0].shape[-1] == states[1][0].shape[-1]:  # no projection
            return functools.partial(one_dnn_layer, has_biases=has_biases, train=train)
    return functools.partial(unrolled_layer, cell=CELLS[kind], has_biases=has_biases)


def one_dnn_layer(
    data: torch.Tensor, state: Tensors, weights: Tensors, reverse: bool, *, has_biases: bool, train: bool
) -> tuple[torch.Tensor, Tensors]:
    biases = weights[2:] if has_biases else [torch.zeros_like(weight) for weight in weights]
    hidden, memory = state
    sizes = (ONE_DNN_LSTM, hidden.shape[-1], 1, has_biases, False, False, train)
    given = (data.contiguous(), *weights[:2], *biases, hidden.contiguous(), memory.contiguous())
    output, hidden, memory, _ = aten.mkldnn_rnn_layer.default(*given, reverse, [], *sizes)
    return output, (hidden.reshape(state[0].shape), memory.reshape(state[1].shape))


def unrolled_layer(
    data: torch.Tensor, state: Tensors, weights: Tensors, reverse: bool, *, cell: Cell, has_biases: bool
) -> tuple[torch.Tensor, Tensors]:
    """One step after the other; what comes of the inputs alone is computed for all steps at once."""
    gates = F.linear(data, weights[0], weights[2] if has_biases else None).unbind(0)
    of_state: list[torch.Tensor | None] = [
        weights[1],
        weights[3] if has_biases else None,
        *weights[4 if has_biases else 2 :],
    ]
    outputs = []
    for step in gates[::-1] if reverse else gates:
        state = cell(step, state, of_state)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if reverse else outputs), state


def lstm_cell(gates: torch.Tensor, state: Tensors, weights: Weights) -> Tensors:
    hidden, memory = state
    enter, forget, new, leave = (F.linear(hidden, *weights[:2]) + gates).chunk(4, 1)
    memory = forget.sigmoid() * memory + enter.sigmoid() * new.tanh()
    hidden = leave.sigmoid() * memory.tanh()
    return (F.linear(hidden, weights[2]) if len(weights) > 2 else hidden), memory


def gru_cell(gates: torch.Tensor, state: Tensors, weights: Weights) -> Tensors:
    reset, update, new = gates.chunk(3, 1)
    own_reset, own_update, own_new = F.linear(state[0], *weights[:2]).chunk(3, 1)
    new = (new + own_new * (own_reset + reset).sigmoid()).tanh()
    return ((state[0] - new) * (own_update + update).sigmoid() + new,)


def plain_cell(function: Callable[[torch.Tensor], torch.Tensor]) -> Cell:
    return lambda gates, state, weights: (function(F.linear(state[0], *weights[:2]) + gates),)


CELLS: dict[str, Cell] = {
    "lstm": lstm_cell,
    "gru": gru_cell,
    "rnn_tanh": plain_cell(torch.tanh),
    "rnn_relu": plain_cell(torch.relu),
}
NAMES = {getattr(VARIABLE_FUNCTIONS, kind): kind for kind in CELLS}


def rule_for(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[..., Any] | None:
    """What to call instead of a function, if it is a recurrent network and sizes are symbolic."""
    kind = NAMES.get(function)
    if kind is None or not is_symbolic_trace():
        return None
    if keywords or len(args) != 9 or type(args[3]) is not bool:
        raise Unsupported("a recurrent network over packed sequences, with sizes that vary")
    return functools.partial(recurrent, kind)


def is_symbolic_trace() -> bool:
    """Whether torch's kernels in Python are active, as they are while sizes are symbolic."""
    return is_key_included(DispatchKey.PythonDispatcher)


def replaced() -> contextlib.AbstractContextManager[object]:
    """In the block `rule_for` applies to the calls of a program that is no graph."""
    return RecurrentRules() if is_symbolic_trace() else contextlib.nullcontext()


class RecurrentRules(TorchFunctionMode):
    """Calls recurrent networks by `recurrent`."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (rule_for(function, args, kwargs or {}) or function)(*args, **(kwargs or {}))
