"""``torch.nn.utils`` and ``torch.func.functional_call`` in captured code."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune, rnn

from kiln.testing import check

X = torch.arange(24.0).reshape(4, 6) / 11 - 1


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Positive(nn.Module):
    def forward(self, weight):
        return weight.exp()

    def right_inverse(self, weight):
        return weight.log()


def parametrized(*kinds):
    module = nn.Linear(6, 6)
    with torch.no_grad():
        module.weight.abs_()
    for kind in kinds:
        parametrize.register_parametrization(module, "weight", kind())
    return module


def pruned():
    module = nn.Linear(6, 6)
    prune.l1_unstructured(module, "weight", 0.3)
    prune.random_unstructured(module, "bias", 2)
    return module


REPARAMETRIZED = {
    "parametrized": lambda: parametrized(Symmetric),
    "parametrized twice": lambda: parametrized(Symmetric, Positive),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(6, 6)),
    "weight norm by hook": lambda: utils.weight_norm(nn.Linear(6, 6)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(6, 6)),
    "spectral norm by hook": lambda: utils.spectral_norm(nn.Linear(6, 6)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(6, 6)),
    "pruned": pruned,
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", REPARAMETRIZED)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils")
def test_reparametrized(name, training):
    def setup():
        torch.manual_seed(1)
        module = nn.Sequential(REPARAMETRIZED[name](), nn.Tanh()).train(training)
        return module, [(X,)] * 2, module

    check(setup=setup, fullgraph=True, recompiles=0)


def test_parametrization_cached_set_and_removed():
    def program(module, x):
        with parametrize.cached():
            y = module(x) + module(x)
        with torch.no_grad():
            module.weight = torch.full((6, 6), 2.0)
        return y + module(x), parametrize.is_parametrized(module)

    def setup():
        torch.manual_seed(1)
        module = parametrized(Positive)
        return program, [(module, X)] * 2, module

    check(setup=setup)


def test_parametrization_registered_later_is_noticed():
    def setup():
        torch.manual_seed(1)
        module = nn.Linear(6, 6)

        def program(x, step):
            if step == 1:
                parametrize.register_parametrization(module, "weight", Symmetric())
            if step == 2:
                parametrize.remove_parametrizations(module, "weight")
            return module(x)

        return program, [(X, step) for step in (0, 1, 0, 2, 0)], None

    check(setup=setup)


# -- functional calls --------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.register_buffer("shift", torch.ones(6))

    def forward(self, x, factor=1):
        return self.b(self.a(x)) * factor + self.shift


FUNCTIONAL = {
    "all": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.BatchNorm1d(6)),
        lambda m: {name: value.detach() * 2 for name, value in m.named_parameters()},
        {},
    ),
    "tied": (Tied, lambda m: {"a.weight": torch.ones(6, 6)}, {"factor": 3}),
    "buffer": (Tied, lambda m: {"shift": torch.full((6,), 7.0), "b.bias": torch.zeros(6)}, {}),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_call(name):
    make, values, kwargs = FUNCTIONAL[name]

    def program(module, values, x):
        inside = {key: value * 2 for key, value in values.items()}
        first = torch.func.functional_call(module, values, (x,), kwargs)
        return first + torch.func.functional_call(module, inside, x) + module(x)

    def setup():
        torch.manual_seed(1)
        module = make()
        return program, [(module, values(module), X)] * 2, module

    check(setup=setup, fullgraph=True, recompiles=0)


def test_stacked_state():
    def program(modules, x):
        parameters, buffers = torch.func.stack_module_state(modules)
        return parameters["weight"].sum() * x, list(parameters), list(buffers)

    def setup():
        torch.manual_seed(1)
        modules = [nn.Linear(6, 6) for _ in range(2)]
        return program, [(modules, X)] * 2

    check(setup=setup, fullgraph=True)


# -- gradients, vectors, sequences -------------------------------------------------------------------------------------


def clip_norm(module):
    return utils.clip_grad_norm_(module.parameters(), 0.5)


def clip_norm_one_by_one(module):
    return utils.clip_grad_norm_(list(module.parameters()), 0.5, norm_type=1, foreach=False)


def clip_value(module):
    utils.clip_grad_value_(module.parameters(), 0.1)
    return utils.get_total_norm([parameter.grad for parameter in module.parameters()])


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float32, torch.float64)])
@pytest.mark.parametrize("program", [clip_norm, clip_norm_one_by_one, clip_value])
def test_gradients_clipped(program, dtypes):
    def setup():
        torch.manual_seed(1)
        module = nn.ModuleList([nn.Linear(6, 6, dtype=dtype) for dtype in dtypes])
        for layer in module:
            layer(X.to(layer.weight.dtype)).sum().backward()
        return program, (module,), [parameter.grad for parameter in module.parameters()]

    check(setup=setup, fullgraph=True, grads=False)


def test_parameters_as_a_vector():
    def program(module, x):
        vector = utils.parameters_to_vector(module.parameters())
        utils.vector_to_parameters(vector * 2, module.parameters())
        return module(x) + vector.sum()

    def setup():
        torch.manual_seed(1)
        module = nn.Linear(6, 6)
        return program, [(module, X)] * 2, module

    check(setup=setup, fullgraph=True)


def test_sequences():
    def program(lstm, first, second):
        padded = rnn.pad_sequence([first, second], batch_first=True)
        packed = rnn.pack_padded_sequence(padded, torch.tensor([3, 2]), batch_first=True)
        output, lengths = rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        return output, lengths, rnn.pack_sequence([first, second]).data

    def setup():
        torch.manual_seed(1)
        return program, [(nn.LSTM(2, 3, batch_first=True), X[:3, :2], X[:2, :2])] * 2

    check(setup=setup)
    check(lambda a, b: rnn.pad_sequence([a, b], batch_first=True) * 2, X[:3], X[:2], fullgraph=True)


def test_fused():
    def program(convolution, norm, x):
        return utils.fusion.fuse_conv_bn_eval(convolution, norm)(x)

    def setup():
        torch.manual_seed(1)
        return program, (nn.Conv2d(3, 4, 1).eval(), nn.BatchNorm2d(4).eval(), X.reshape(2, 3, 2, 2))

    check(setup=setup, fullgraph=True)
