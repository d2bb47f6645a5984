"""What a backward is given lies as its graph says: compilers go by that."""

import torch
from torch import nn

import kiln
from kiln.aot import make_aot_backend

seen = []


def checking(module, examples):
    """A compiler whose graphs look at how their inputs lie."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]

    def run(*inputs):
        for node, value in zip(placeholders, inputs, strict=True):
            if isinstance(value, torch.Tensor):
                seen.append(node.name)
                assert value.stride() == node.meta["val"].stride(), node.name
        return module(*inputs)

    return run


class Heads(nn.Module):
    """Parts of one product, as heads: what is saved of them is copied, for a part must not keep the whole alive."""

    def __init__(self):
        super().__init__()
        self.all = nn.Linear(16, 96)

    def forward(self, x):
        q, k, v = (part.view(2, 8, 4, 8).transpose(1, 2) for part in self.all(x).split(32, dim=2))
        kept = torch.cat([k.new_empty(2, 4, 0, 8), k], 2)
        weights = torch.softmax(q @ kept.transpose(-1, -2), -1)
        return (weights @ v).transpose(1, 2).reshape(2, 8, 32).sin(), kept, q.exp()


def test_views_that_are_saved_as_copies():
    seen.clear()
    model, x = Heads(), torch.randn(2, 8, 16)
    compiled = kiln.compile(model, backend=make_aot_backend(checking, checking), fullgraph=True)
    for results in (slice(0, 1), slice(0, 3), slice(1, 3)):
        model.zero_grad()
        sum(result.sum() for result in compiled(x)[results]).backward()
        found = model.all.weight.grad.clone()
        model.zero_grad()
        sum(result.sum() for result in model(x)[results]).backward()
        torch.testing.assert_close(found, model.all.weight.grad)
    assert seen


def test_as_strided_of_an_input_that_begins_inside_its_memory():
    base, weight = torch.arange(21.0).reshape(3, 7), torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def function(x):
        return (x.as_strided((2, 2), (1, 2), 0) * weight).sum()

    compiled = kiln.compile(function, backend="aot_eager")
    for x in (base.clone(), base[:, 1::2], base[1:]):
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(compiled(x), x)
        (wanted,) = torch.autograd.grad(function(x), x)
        torch.testing.assert_close(found, wanted)


def test_copies_where_sizes_vary():
    """What sizes of a copy make (the zeros around a slice's gradient) is not made while compiling."""

    def program(x, y):
        return torch.maximum((y + x).chunk(2)[1], y) + 0.25

    inputs = [torch.randn(3, 4)[:, ::2].requires_grad_(), torch.randn(2, requires_grad=True)]
    inputs = [x.detach().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(program(*inputs).sin().sum(), inputs)
    with kiln.config.patch(raise_internal_errors=True):
        compiled = kiln.compile(program, backend="kiln", dynamic=True, fullgraph=True)
        found = torch.autograd.grad(compiled(*inputs).sin().sum(), inputs)
    torch.testing.assert_close(found, expected)


def test_hooks_are_not_called_to_learn_how_copies_lie():
    calls = []

    def hook(gradient):
        calls.append(gradient.shape)
        return gradient * 2

    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.all, self.few = nn.Linear(16, 96), nn.Linear(16, 4)

        def forward(self, x):
            factor = self.few(x).sin().t()
            factor.register_hook(hook)
            return (self.all(x).sin().t()[:4] * factor).sum()  # four rows of 96: a copy is saved, which lies otherwise

    model, x = Hooked(), torch.randn(2, 16)
    compiled = kiln.compile(model, backend=make_aot_backend(checking, checking))
    gradients = []
    for run in (model, compiled, compiled):
        model.zero_grad()
        run(x).backward()
        gradients.append(model.few.weight.grad.clone())
    assert calls == [(4, 2)] * 3
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0])
