"""Recurrent networks with sizes that vary: compiled once for all batches, results and random numbers as in eager."""

import pytest
import torch
from torch import nn

import kiln
from kiln.report import counters
from tests.support.releases import SIZES_STAY_DYNAMIC

NETWORKS = {
    "lstm": lambda: nn.LSTM(4, 6, num_layers=2, dropout=0.5, batch_first=True),
    "lstm both ways": lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True, bias=False),
    "lstm projected": lambda: nn.LSTM(4, 6, num_layers=2, proj_size=3, dropout=0.5, dtype=torch.float64),
    "gru": lambda: nn.GRU(4, 6, num_layers=2, dropout=0.5, batch_first=True),
    "rnn": lambda: nn.RNN(4, 6, bidirectional=True, nonlinearity="relu", bias=False),
}
UNROLLED = ("lstm projected", "gru", "rnn")  # a length is a graph of its own


def step(network, function, x):
    """Results, gradients and where the random numbers are then."""
    network.zero_grad()
    x.grad = None
    torch.manual_seed(1)
    output, state = function(x)
    found = [output, *(state if isinstance(state, tuple) else [state])]
    sum((part * torch.arange(1, part.numel() + 1).view(part.shape)).sum() for part in found).backward()
    return [*found, x.grad, *(parameter.grad for parameter in network.parameters()), torch.get_rng_state()]


def shape(network, batch, length):
    return (batch, length, 4) if network.batch_first else (length, batch, 4)


@pytest.mark.parametrize("name", NETWORKS)
def test_batches_that_vary(name):
    torch.manual_seed(0)
    network = NETWORKS[name]()
    compiled = kiln.compile(network, backend="aot_eager", fullgraph=True)
    before = counters.copy()
    lengths = (2, 2, 2) if name in UNROLLED else (3, 5, 2)
    for batch, length in zip((2, 5, 7), lengths, strict=True):
        x = torch.randn(shape(network, batch, length), dtype=network.weight_ih_l0.dtype, requires_grad=True)
        wanted, found = step(network, network, x), step(network, compiled, x)
        torch.testing.assert_close(found, wanted)
        assert [part.stride() for part in found] == [part.stride() for part in wanted]
    assert counters["aot eager"] == before["aot eager"]
    if SIZES_STAY_DYNAMIC:
        assert counters["recompiles"] == before["recompiles"] + 1


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_with_batches_that_vary(kind):
    torch.manual_seed(0)
    cell = kind(4, 6)
    compiled = kiln.compile(cell, backend="kiln", dynamic=True, fullgraph=True)
    before = counters.copy()
    for batch in (3, 5):
        x = torch.randn(batch, 4, requires_grad=True)
        torch.testing.assert_close(compiled(x), cell(x))
    assert counters["recompiles"] == before["recompiles"]
    assert counters["aot eager"] + counters["codegen eager"] == before["aot eager"] + before["codegen eager"]


def test_a_gru_becomes_kernels():
    """Parts of a split that are changed in place were split again, and nobody knew the form of that."""
    torch.manual_seed(0)
    network, x = nn.GRU(4, 6), torch.randn(2, 3, 4, requires_grad=True)
    before = counters["codegen eager"]
    wanted, found = step(network, network, x), step(network, kiln.compile(network, backend="kiln"), x)
    torch.testing.assert_close(found, wanted)
    assert counters["codegen eager"] == before


def test_without_graph_as_well():
    """A program that is traced as it runs, not as a captured graph."""
    torch.manual_seed(0)
    network = nn.LSTM(4, 6, num_layers=2, dropout=0.5)
    compiled = kiln.aot.aot_function(
        lambda x: network(x)[0], fw_compiler=lambda module, examples: module.forward, dynamic=True
    )
    before = counters["aot eager"]
    for x in (torch.randn(3, 2, 4), torch.randn(5, 4, 4)):
        torch.manual_seed(1)
        wanted = network(x)[0]
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(x), wanted)
    assert counters["aot eager"] == before
