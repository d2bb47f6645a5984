"""Hooks inside a compiled backward run in eager's order among all else that a backward does."""

import pytest
import torch
from torch import nn

import kiln
from kiln.report import counters
from kiln.testing import check


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).sin()
        return x.sum()


def watched(module, log):
    """Every kind of hook on parameters, which come from outside the graph."""
    for name, parameter in module.named_parameters():
        parameter.register_hook(lambda gradient, name=name: log.append(("gradient", name)))
        parameter.register_post_accumulate_grad_hook(lambda parameter, name=name: log.append(("accumulated", name)))


def of_a_module(module, log):
    module.layers[1].register_full_backward_hook(lambda *given: log.append("module"))


def before_a_module(module, log):
    module.layers[1].register_full_backward_pre_hook(lambda *given: log.append("before module"))


def of_results(module, log):
    """On a tensor inside, put there by a forward hook, in each layer."""

    def forward_hook(layer, inputs, result):
        result.register_hook(lambda gradient: log.append(("result", round(gradient.sum().item(), 4))))

    for layer in module.layers:
        layer.register_forward_hook(forward_hook)


def that_change(module, log):
    module.layers[1].register_full_backward_hook(lambda layer, inputs, outputs: (inputs[0] * 2,))


HOOKS = [of_a_module, before_a_module, of_results, that_change]


@pytest.mark.parametrize("hooks", [[one] for one in HOOKS] + [HOOKS], ids=[one.__name__ for one in HOOKS] + ["all"])
def test_order(hooks):
    def setup():
        module, log = Layers(), []
        watched(module, log)
        for hook in hooks:
            hook(module, log)
        return module, [(torch.ones(2, 3, requires_grad=True),) for _ in range(2)], log

    before = counters["aot eager"]
    check(setup=setup, backend="aot_eager", fullgraph=True)
    assert counters["aot eager"] == before


def test_second_derivatives_of_a_compiled_function_with_hooks():
    def program(x):
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 3)
        z = (y * x).exp()
        z.register_hook(lambda gradient: gradient + x)
        return z.sum()

    def second(function):
        x = torch.linspace(0, 1, 3, requires_grad=True)
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        return first, torch.autograd.grad(first.pow(2).sum(), x)[0]

    compiled = kiln.compile(program, backend="aot_eager", fullgraph=True)
    for one, other in zip(second(program), second(compiled), strict=True):
        assert torch.allclose(one, other)


def test_hooks_on_results_in_higher_derivatives():
    """Of an operation whose derivative reads its result: later derivatives lead through that, and its hooks."""

    def program(x):
        return (x * 2).exp()

    def derivatives(function):
        x, log = torch.linspace(0, 1, 3, requires_grad=True), []
        y = function(x)
        y.register_hook(lambda gradient: log.append(gradient.detach().sum().item()) or gradient * 3)
        found = [y]
        for _ in range(3):
            found.append(torch.autograd.grad(found[-1].sum(), x, create_graph=True)[0])
        found.append(torch.autograd.grad(found[1].pow(2).sum(), y)[0])  # by the result itself
        return found, log

    compiled = kiln.compile(program, backend="aot_eager", fullgraph=True)
    (expected, calls), (seen, seen_calls) = derivatives(program), derivatives(compiled)
    torch.testing.assert_close(seen, expected)
    assert seen_calls == pytest.approx(calls)


def test_hooks_on_nodes_that_take_gradients_away():
    """A gradient that a hook replaces by None does not go on; one that is None is not replaced."""

    def program(x, w):
        y = x * w.detach()
        y.grad_fn.register_hook(lambda inputs, outputs: (None, None) if x[0] > 0 else (inputs[0], outputs[0]))
        return y.sum() + (x * 5).sum()

    compiled = kiln.compile(program, backend="aot_eager", fullgraph=True)
    for function in (program, compiled):
        x, w = torch.ones(2, requires_grad=True), torch.ones(2)
        function(x, w).backward()
        assert x.grad.tolist() == [5.0, 5.0]
        with pytest.raises(RuntimeError, match="can't replace a None gradient"):
            function(-torch.ones(2, requires_grad=True), w).backward()
