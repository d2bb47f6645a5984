"""Modules of ``torch.nn``, parameters, and optimizers' steps in captured code."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from kiln.testing import check


class Block(nn.Module):
    """Children in containers, a buffer, a training branch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.table = nn.ModuleDict({"in": nn.Linear(4, 4), "out": nn.Linear(4, 2)})
        self.scale = nn.Parameter(torch.ones(4))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))])
        self.register_buffer("steps", torch.zeros(1))
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        x = self.table["in"](x) * self.scale
        for layer in self.layers:
            x = F.relu(layer(x))
        if self.training:
            self.steps += 1
            x = self.drop(x)
        return self.table["out"](x) + sum(self.weights)


class Rebinding(nn.Module):
    """A buffer that is replaced, and an attribute that is counted."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.calls = 0

    def forward(self, x):
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        self.calls += 1
        return x - self.mean


X = torch.arange(20.0).reshape(5, 4) / 7 - 1
IMAGE = torch.arange(2 * 3 * 8 * 8.0).reshape(2, 3, 8, 8) / 100

MODULES = {
    "linear": (lambda: nn.Linear(4, 3), X),
    "bilinear": (lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2), nn.LogSoftmax(dim=1)), X),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        IMAGE,
    ),
    "transposed": (lambda: nn.ConvTranspose2d(3, 2, 2, stride=2), IMAGE),
    "batch norm": (lambda: nn.BatchNorm2d(3), IMAGE),
    "batch norm evaluated": (lambda: nn.BatchNorm1d(4).eval(), X),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4)), X),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(3, 3), nn.InstanceNorm2d(3, affine=True)), IMAGE),
    "dropout": (lambda: nn.Dropout(0.5), X),
    "dropout evaluated": (lambda: nn.Dropout(0.5).eval(), X),
    "embedding": (lambda: nn.Embedding(5, 3, padding_idx=0), torch.tensor([[0, 2], [4, 1]])),
    "embedding bag": (lambda: nn.EmbeddingBag(5, 3), torch.tensor([[0, 2], [4, 1]])),
    "pooling": (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Upsample(scale_factor=2), nn.AvgPool2d(2)), IMAGE),
    "padding": (lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.ZeroPad2d(1), nn.PixelUnshuffle(2)), IMAGE),
    "activations": (
        lambda: nn.Sequential(nn.SiLU(), nn.PReLU(), nn.Softplus(), nn.ELU(), nn.Hardswish(), nn.Mish()),
        X,
    ),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, batch_first=True), X[None]),
    "attention evaluated": (
        lambda: nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, batch_first=True).eval(),
        X[None],
    ),
    "decoder": (lambda: Decoder(), X[None]),
    "block": (Block, X),
    "block evaluated": (lambda: Block().eval(), X),
    "rebinding": (Rebinding, X),
}


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, dim_feedforward=8, batch_first=True)

    def forward(self, x):
        return self.layer(x, x)


# Code of torch that looks at values, hooks of its own or C++ state: right, in more than one graph.
BREAKING = {"attention evaluated"}


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    make, argument = MODULES[name]

    def program(module, x):
        return module(x)

    def setup():
        torch.manual_seed(1)
        module = make()
        return program, [(module, argument)] * 2, module

    report = check(setup=setup, fullgraph=name not in BREAKING)
    assert report.graphs


@pytest.mark.parametrize("name", ["block", "batch norm", "rebinding", "dropout"])
def test_module_with_breaks(name):
    make, argument = MODULES[name]

    def program(module, x):
        y = module(x)
        y = y + 1
        return module(x) + y

    def setup():
        torch.manual_seed(1)
        module = make()
        return program, [(module, argument)] * 2, module

    check(setup=setup, breaks_every=(None, "line"))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}])
def test_recurrent(kind, options):
    def program(module, x):
        output, state = module(x)
        return output, state

    def setup():
        torch.manual_seed(1)
        return program, (kind(4, 3, **options), X[None])

    check(setup=setup)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_recurrent_cell(kind):
    def program(module, x):
        state = None
        for row in x:
            state = module(row[None], state)
        return state

    def setup():
        torch.manual_seed(1)
        return program, (kind(4, 3), X)

    check(setup=setup, fullgraph=True)


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}])
def test_attention(options):
    def program(module, x):
        return module(x, x, x, **options)

    def setup():
        torch.manual_seed(1)
        return program, (nn.MultiheadAttention(4, 2, batch_first=True), X[None])

    check(setup=setup, fullgraph=True)


def test_scaled_dot_product_attention():
    def program(q):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True), F.scaled_dot_product_attention(
            q, q, q, dropout_p=0.5
        )

    check(program, torch.arange(24.0).reshape(1, 2, 3, 4) / 24, fullgraph=True)


def test_losses():
    def program(x, y, labels):
        losses = [
            F.mse_loss(x, y),
            F.l1_loss(x, y),
            F.smooth_l1_loss(x, y),
            F.cross_entropy(x, labels),
            F.huber_loss(x, y),
        ]
        losses += [F.nll_loss(F.log_softmax(x, 1), labels), F.binary_cross_entropy_with_logits(x, y.sigmoid())]
        losses += [
            nn.CrossEntropyLoss(label_smoothing=0.1)(x, labels),
            nn.KLDivLoss(reduction="batchmean")(x, y.softmax(1)),
        ]
        return losses, F.cosine_similarity(x, y), F.pairwise_distance(x, y)

    check(program, X.clone().requires_grad_(), X.cos(), torch.tensor([0, 3, 1, 2, 2]), fullgraph=True)


def test_loss_with_a_function():
    def program(x):
        return F.triplet_margin_with_distance_loss(x, x + 1, x - 1, distance_function=lambda a, b: (a - b).abs().sum(1))

    check(program, X, fullgraph=True)


# -- parameters -----------------------------------------------------------------------------------------------------


def test_parameter_made_inside():
    def program(x):
        weight = nn.Parameter(torch.ones(4) * 2)
        frozen = nn.Parameter(x.detach(), requires_grad=False)
        facts = isinstance(weight, nn.Parameter), weight.requires_grad, weight.is_leaf, isinstance(frozen, nn.Parameter)
        return x * weight + frozen, weight, facts, type(weight) is nn.Parameter

    check(program, X, fullgraph=True, breaks_every=(None, "line"))


def test_module_made_inside():
    def program(x):
        layer = nn.Linear(4, 2)
        return layer(x), layer.weight.shape

    check(program, X)


def test_parameters_walked():
    def program(module, x):
        total = sum(p.sum() for p in module.parameters())
        names = [name for name, _ in module.named_parameters()]
        buffers = {name: buffer.shape for name, buffer in module.named_buffers()}
        return total * x.sum(), names, buffers, len(list(module.modules())), [n for n, _ in module.named_children()]

    def setup():
        torch.manual_seed(1)
        return program, (Block(), X)

    check(setup=setup)


def test_two_modules_share_an_entry():
    def program(module, x):
        return module(x)

    torch.manual_seed(1)
    modules = [nn.Linear(4, 3) for _ in range(4)]
    counter = kiln.testing.CompileCounter()
    compiled = kiln.compile(program, backend=counter)
    for module in modules:
        assert torch.equal(compiled(module, X), module(X))
    assert counter.frame_count == 1


# -- optimizers -----------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd loop": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_inside(name):
    def program(module, optimizer, x):
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def setup():
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = OPTIMIZERS[name](module.parameters())
        return program, [(module, optimizer, X)] * 3, [p for p in module.parameters()]

    check(setup=setup, tracebacks=False)


def test_graph_modules():
    """Modules that torch.fx made: their call is that of modules, with hooks and all."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, x):
            return self.dropout(self.linear(x)).relu()

    traced = torch.fx.symbolic_trace(Net())
    traced.register_forward_hook(lambda module, args, result: result * 2)
    check(lambda x: traced(x) + 1, torch.ones(2, 3), calls=2, fullgraph=True, graphs=1, recompiles=0)


def test_buffers_are_known_by_their_class_or_mark():
    def program(x, buffer, marked):
        made = torch.nn.Buffer(x * 2)
        kinds = [isinstance(value, torch.nn.Buffer) for value in (x, buffer, marked, made)]
        return x + 1, kinds, isinstance(buffer, torch.nn.Parameter)

    marked = torch.ones(2)
    marked._is_buffer = True
    check(program, torch.ones(2), torch.nn.Buffer(torch.ones(2)), marked)
