"""Operators whose schema does not tell all: memory they share, state they change, grad mode they look at."""

import functools

import pytest
import torch
from torch import nn

import kiln
from kiln.report import counters
from kiln.testing import check


class Last(nn.Module):
    """A recurrent module's sequence; its final state is not looked at, or is."""

    def __init__(self, inner, looks_at_state):
        super().__init__()
        self.inner, self.looks_at_state = inner, looks_at_state

    def forward(self, x):
        result, state = self.inner(x)
        state = state[0] if isinstance(state, tuple) else state
        return (result.tanh(), state.sum()) if self.looks_at_state else result.tanh()


@pytest.mark.parametrize("looks_at_state", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind, looks_at_state):
    torch.manual_seed(0)
    before = counters["aot eager"]
    x = torch.randn(5, 2, 4, requires_grad=True)
    check(Last(kind(4, 6, num_layers=2), looks_at_state), x, backend="aot_eager", graphs=1)
    assert counters["aot eager"] == before


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_recurrent_cells(kind):
    torch.manual_seed(0)
    before = counters["aot eager"]
    check(kind(4, 6), torch.randn(3, 4, requires_grad=True), backend="aot_eager", graphs=1)
    assert counters["aot eager"] == before


SPLITS = {
    "split": lambda x: torch.unsafe_split(x, 2),
    "split_with_sizes": lambda x: torch.unsafe_split_with_sizes(x, [1, 3]),
    "chunk": lambda x: torch.unsafe_chunk(x, 2),
}


def change_part(split, x):
    whole = x.detach() * 2
    first, *_ = split(whole)
    first.mul_(3)
    return whole + x


def parts_of_input(split, x):
    return split(x)


def parts_beside_whole(split, x):
    whole = x * 2
    first, second = split(whole)
    return second, whole, first.t(), first


def parts_of_parts(split, x):
    return split(split(x * 2)[0].t())


def changed_parts_of_input(split, x):
    first, second = split(x)
    first.mul_(3)
    return first, second, x * 2


def changed_parts_of_whole(split, x):
    whole = x * 2
    first, second = split(whole)
    second.mul_(3).add_(1)
    return second, first


SPLITTING = [
    change_part,
    parts_of_input,
    parts_beside_whole,
    parts_of_parts,
    changed_parts_of_input,
    changed_parts_of_whole,
]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "differentiated"])
@pytest.mark.parametrize("program", SPLITTING, ids=lambda program: program.__name__)
@pytest.mark.parametrize("how", SPLITS)
def test_parts_share_memory_and_are_no_views(how, program, requires_grad):
    """Autograd is not told: the parts count their changes alone, and have no base."""
    before = counters["aot eager"]
    given = torch.randn(4, 4, requires_grad=requires_grad)
    check(functools.partial(program, SPLITS[how]), given, backend="aot_eager", graphs=1)
    assert counters["aot eager"] == before


def test_products_of_batches_are_no_views():
    """With sizes that vary, too: torch's rule in Python ends with a view."""
    before = counters.copy()
    compiled = kiln.compile(torch.matmul, backend="aot_eager", dynamic=True)
    for batch, heads, length in ((2, 3, 4), (4, 2, 5)):
        x, y = torch.randn(batch, heads, length, 6, requires_grad=True), torch.randn(batch, heads, 6, 7)
        found = compiled(x, y)
        assert not found._is_view()
        torch.testing.assert_close(found, x @ y)
    assert (counters["aot eager"], counters["recompiles"]) == (before["aot eager"], before["recompiles"])


def test_batch_norm_changes_statistics():
    before = counters["aot eager"]
    check(nn.BatchNorm1d(4), torch.randn(6, 4, requires_grad=True), backend="aot_eager", calls=2)
    assert counters["aot eager"] == before


def test_lstm_without_gradients():
    torch.manual_seed(0)
    layer, x = nn.LSTM(4, 6), torch.randn(5, 2, 4)
    with torch.no_grad():
        wanted, got = layer(x)[0], kiln.compile(layer, backend="aot_eager")(x)[0]
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(("size", "change"), [(41, "relu_"), (42, "sigmoid_"), (43, "tanh_"), (44, "exp_")])
def test_results_saved_after_a_change_in_place_are_traced(change, size):
    """Their backward looks at the version of a tensor that views, which share it, were made of.

    Sizes that nothing else has: the shapes of what was seen before are known by heart.
    """

    def program(x):
        return getattr(x * 2, change)().sum()

    before = counters["aot eager"]
    check(program, torch.randn(3, size, requires_grad=True), backend="aot_eager", graphs=1)
    assert counters["aot eager"] == before, "left to eager"
