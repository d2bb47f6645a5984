"""Python code of torch around tensors, and NumPy: right, and captured where it is only operations."""

from __future__ import annotations

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import distributions, nn
from torch.nn.utils import parameters_to_vector, parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from kiln.testing import check
from tests.support.program_table import ProgramTable

X = torch.arange(6.0).reshape(2, 3) / 3
A = numpy.arange(6.0, dtype=numpy.float32).reshape(2, 3)


def leaf():
    return (torch.arange(6.0).reshape(2, 3) / 3 + 0.1).requires_grad_()


# -- NumPy ----------------------------------------------------------------------------------------------------------

arrays = ProgramTable(fullgraph=False)


@arrays(X, A)
def array_argument(x, a):
    y = x * 2
    return y + torch.from_numpy(a), a.sum(), a * 2, a.shape, torch.as_tensor(a) @ y.t(), torch.tensor(a.tolist())


@arrays(X, A)
def mixed_operators(x, a):
    return x.numpy() * a, a[0, 0].item() * x, torch.add(x, torch.from_numpy(a)), numpy.concatenate([x.numpy(), a])


@arrays(X)
def shared_memory(x):
    y = x * 2
    view = y.numpy()
    view[0] = 5.0
    y.add_(1)
    return y, view, view[0, 0]


@arrays(X, numpy.float64(2.5), numpy.int64(3), numpy.float32(0.5))
def scalars(x, a, b, c):
    return x * a, x + b, x - c, x[: int(b)], float(a) * 2, x * numpy.pi, torch.full((int(b),), float(c))


@arrays(X)
def functions_of_numpy(x):
    n = numpy.prod(x.shape)
    return x.reshape(int(n)), numpy.sqrt(2.0) * x, numpy.asarray(x), numpy.array([1, 2]), numpy.random.randint(3)


@arrays.rows
def test_arrays(program, args, expect):
    arrays.run(program, args, expect)


# -- library code ---------------------------------------------------------------------------------------------------

library = ProgramTable(fullgraph=False, calls=2, tracebacks=False)


@library(leaf())
def normal(x):
    d = distributions.Normal(x, 1.0)
    return d.log_prob(torch.ones(3)), d.rsample(), d.entropy(), d.mean


@library(leaf())
def categorical(x):
    d = distributions.Categorical(logits=x)
    action = d.sample()
    return action, d.log_prob(action), distributions.kl_divergence(d, distributions.Categorical(logits=x * 2))


@library(leaf())
def checkpointed(x):
    a = checkpoint(lambda t: (t * 2).sin(), x, use_reentrant=True)
    b = checkpoint(lambda t, k: F.dropout(t * k), x, 3.0, use_reentrant=False)
    return a + b


@library(X)
def sequences(x):
    padded = pad_sequence([x[0], x[1][:2]], batch_first=True)
    packed = pack_padded_sequence(x.t()[..., None], torch.tensor([3, 2]))
    again, lengths = pad_packed_sequence(packed)
    return padded, packed.data * 2, again, lengths


@library(X)
def encodings(x):
    return F.one_hot(torch.tensor([0, 2]), 3), torch.nn.functional.embedding(torch.tensor([1, 0]), x), F.pad(x, (1, 1))


@library(torch.ones(2, 3))
def initialised(x):
    nn.init.zeros_(x)
    nn.init.constant_(x, 2.0)
    y = nn.init.xavier_uniform_(torch.empty(3, 2))
    return nn.init.kaiming_normal_(torch.empty(2, 3)), nn.init.normal_(x), y, nn.init.orthogonal_(torch.empty(2, 2))


@library(X)
def windows(x):
    return torch.stft(x.repeat(1, 10), 8, window=torch.hann_window(8), return_complex=True), x.unfold(1, 2, 1)


@library(X)
def statistics(x):
    return torch.var_mean(x, dim=1), x.std(), torch.quantile(x, 0.5), x.median(), torch.cdist(x, x), x.logsumexp(0)


@library(X)
def searched(x):
    return (
        torch.bucketize(x, torch.tensor([0.5, 1.0])),
        torch.searchsorted(torch.tensor([0.5, 1.0]), x),
        torch.histc(x, 3),
    )


@library.rows
def test_library(program, args, expect):
    library.run(program, args, expect)


def module_program(make, program, **expect):
    def setup():
        torch.manual_seed(3)
        torch.utils.hooks.RemovableHandle.next_id = 0  # it counts through the whole process
        module = make()
        return program, [(module, X)] * 2, list(module.state_dict().values())

    check(setup=setup, tracebacks=False, **expect)


def test_parametrized_modules():
    for wrap in (parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal):
        module_program(lambda: wrap(nn.Linear(3, 3)), lambda module, x: module(x))


def test_old_weight_norm():
    module_program(lambda: nn.utils.weight_norm(nn.Linear(3, 2)), lambda module, x: module(x))


def test_checkpointed_modules():
    def make():
        return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))

    module_program(make, lambda module, x: checkpoint_sequential(module, 2, x, use_reentrant=False))


def test_gradients_clipped():
    def program(module, x):
        module.zero_grad()
        module(x).sum().backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        nn.utils.clip_grad_value_(module.parameters(), 0.1)
        return norm, parameters_to_vector(module.parameters()), [p.grad.clone() for p in module.parameters()]

    module_program(lambda: nn.Linear(3, 2), program)


def test_state_dictionaries():
    def program(module, x):
        state = {name: value.clone() for name, value in module.state_dict().items()}
        before = module(x)
        module.load_state_dict({name: value * 2 for name, value in state.items()})
        return before, module(x), list(state)

    module_program(lambda: nn.Linear(3, 2), program)


def test_modes_of_modules():
    def program(module, x):
        module.eval()
        a = module(x)
        module.train()
        b = module(x)
        module.requires_grad_(False)
        return a, b, module.training, module(x).requires_grad, module[0].weight.dtype

    module_program(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)), program)


def test_conversion_of_modules():
    def program(module, x):
        y = module.double()(x.double())
        return y, module.float()(x), module.half().weight.dtype

    module_program(lambda: nn.Linear(3, 2), program)


def test_schedule():
    def program(module, x):
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            module(x).pow(2).mean().backward()
            optimizer.step()
            schedule.step()
        return schedule.get_last_lr(), module(x)

    module_program(lambda: nn.Linear(3, 2), program)


# -- recurrent networks, script functions, numbers of numpy -----------------------------------------------------------


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_networks_take_any_length_in_one_graph(kind, batch_first):
    core = kind(4, 6, num_layers=2, bidirectional=True, batch_first=batch_first)

    def run(x):
        y, state = core(x)
        return y, state, y.stride(), y.requires_grad, y.is_leaf

    calls = [(torch.randn(2, 5, 4),), (torch.randn(3, 7, 4),), (torch.randn(4, 9, 4),), (torch.randn(2, 6, 4),)]
    check(run, calls=calls, graphs=2, breaks=0, recompiles=1)


def test_projections_and_missing_batch_of_a_recurrent_network():
    core = torch.nn.LSTM(4, 6, proj_size=3)
    check(lambda x: core(x), torch.randn(5, 4), fullgraph=True)
    check(lambda x: core(x), torch.randn(5, 3), tracebacks=False)  # eager's error


@torch.jit.script
def scripted(x, size: int):
    if size > 3:
        return torch.clamp(x, 0, size)
    return x


def test_script_functions_are_captured_as_the_python_they_were_made_from():
    check(lambda x: scripted(x * 2, x.shape[0]), calls=[(torch.randn(5),), (torch.randn(2),)], fullgraph=True, graphs=2)


def test_numpy_on_plain_numbers_is_arithmetic():
    check(lambda x: x * numpy.sqrt(x.shape[-1]) + numpy.float64(2.0), torch.randn(2, 16), fullgraph=True)
    check(lambda x: x + numpy.sqrt(x.shape), torch.randn(2, 2), grads=False)
