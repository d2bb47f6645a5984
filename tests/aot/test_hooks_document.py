"""The hooks document through ahead-of-time autograd: hooks on inputs, intermediates and outputs, as eager runs them."""

import copy
import functools

import pytest
import torch

import kiln
from kiln import aot
from kiln.testing import CompileCounterWithBackend, check

AHEAD = "aot_eager"


def add(gradient, *, number=0):
    return gradient + number


class Intermediate(torch.nn.Module):
    def forward(self, x):
        y = x.mul(2)
        y.register_hook(functools.partial(add, number=3))
        y.register_hook(functools.partial(add, number=4))
        return (y.mul(3),)


class Input(torch.nn.Module):
    def forward(self, x):
        x.register_hook(functools.partial(add, number=3))
        return (x.mul(2).mul(3),)


@pytest.mark.covers("test_hooks::test_intermediary_hooks_same_on_aot_eager", "test_hooks::test_input_hooks_same")
@pytest.mark.parametrize("kind", [Intermediate, Input])
def test_hooks_in_a_module(kind):
    """Captured with its hooks, in one graph; and traced as it is, where the hooks are traced with it."""
    check(kind(), torch.ones(4, requires_grad=True), backend=AHEAD, fullgraph=True, graphs=1, calls=2, recompiles=0)
    x, again = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    compiled = aot.aot_module_simplified(kind(), (x,), aot.nop)
    (seen,), (expected,) = compiled(x), kind()(again)
    torch.testing.assert_close(seen, expected)
    seen.backward(torch.ones(4))
    expected.backward(torch.ones(4))
    torch.testing.assert_close(x.grad, again.grad)


class Counted:
    """A hook with state: what it does depends on how often it was called."""

    def __init__(self, log):
        self.log = log

    def __call__(self, gradient):
        self.log.append(gradient.tolist())
        return gradient * gradient if len(self.log) % 2 else gradient + gradient


@pytest.mark.parametrize("after", ["before the product", "after the product"])
def test_hooks_with_state(after):
    def setup():
        log = []

        def program(x):
            y = x.mul(2)
            if after == "after the product":
                z = y.mul(3)
            y.register_hook(Counted(log))
            y.register_hook(Counted(log))
            if after != "after the product":
                z = y.mul(3)
            return z

        return program, (torch.ones(4, requires_grad=True),), log

    check(setup=setup, backend=AHEAD, fullgraph=True, graphs=1, calls=3, recompiles=0)


def test_hook_that_closes_over_an_object():
    """Another object in the hook is no other graph."""

    class Holds:
        def __init__(self, value):
            self.value = value

    def program(x, holder):
        y = x.sin()
        y.register_hook(lambda gradient: gradient + holder.value)
        return y.sin()

    counter = CompileCounterWithBackend(AHEAD)
    compiled = kiln.compile(program, backend=counter, fullgraph=True)
    for value in (torch.tensor(88.0), torch.tensor(99.0)):
        x, again = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        program(x, Holds(value)).sum().backward()
        compiled(again, Holds(value)).sum().backward()
        torch.testing.assert_close(again.grad, x.grad)
    assert counter.frame_count == 1


@pytest.mark.parametrize("when", ["all", "loss only", "logits only", "neither"])
def test_hooks_on_outputs_that_depend_on_each_other(when):
    def setup():
        log = []

        def program(x, w):
            logits = x @ w
            logits.register_hook(lambda gradient: log.append(("logits", gradient.tolist())))
            loss = logits.square().sum()
            loss.register_hook(lambda gradient: log.append(("loss", gradient.tolist())))
            return logits, loss

        def run(x, w):
            logits, loss = program(x, w)
            return {"all": (logits, loss), "loss only": loss, "logits only": logits, "neither": logits.detach()}[when]

        return run, (torch.ones(2, 3), torch.ones(3, 2, requires_grad=True)), log

    check(setup=setup, backend=AHEAD, fullgraph=True, graphs=1, calls=2)


@pytest.mark.parametrize("what", ["input", "intermediate", "output"])
def test_retained_gradients(what):
    kept = {}

    def program(x):
        y = x.sin()
        z = y * 2
        chosen = {"input": x, "intermediate": y, "output": z}[what]
        chosen.retain_grad()
        kept["tensor"] = chosen
        return z

    check(program, torch.ones(3, requires_grad=True), backend=AHEAD, graphs=1)
    x = torch.linspace(0, 1, 3, requires_grad=True)
    gradients = []
    for function in (program, kiln.compile(program, backend=AHEAD)):
        function(x * 1).backward(torch.arange(3.0))
        gradients.append(kept.pop("tensor").grad)
    torch.testing.assert_close(*gradients)
    assert gradients[1] is not None


def test_multi_grad_hook():
    log = []

    def program(x, y):
        a, b = x.sin(), y.cos()
        torch.autograd.graph.register_multi_grad_hook(
            (a, b), lambda gradients: log.append([g.tolist() for g in gradients])
        )
        return a * b

    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with kiln.config.patch(raise_internal_errors=False):
        program(x, y).sum().backward()
        kiln.compile(program, backend=AHEAD)(x, y).sum().backward()
    assert len(log) == 2 and log[0] == log[1]


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.second(self.first(x).relu())


def with_hooks(module, log, changes):
    def hook(module, inputs, outputs):
        log.append(("after", [g.tolist() for g in inputs], [g.tolist() for g in outputs]))
        return tuple(gradient * 2 for gradient in inputs) if changes else None

    def before(module, outputs):
        log.append(("before", [g.tolist() for g in outputs]))
        return tuple(gradient + 1 for gradient in outputs) if changes else None

    module.first.register_full_backward_hook(hook)
    module.second.register_full_backward_pre_hook(before)


@pytest.mark.parametrize("changes", [False, True], ids=["looks", "changes"])
def test_module_backward_hooks(changes):
    def setup():
        module, log = Layers(), []
        with_hooks(module, log, changes)
        return module, (torch.ones(1, 3, requires_grad=True),), log

    taken_over = kiln.report.counters["taken over"]
    check(setup=setup, backend=AHEAD, calls=2, graphs=1, fullgraph=True, rtol=1e-5)
    check(setup=setup, backend="eager", calls=2, graphs=1, fullgraph=True)
    assert kiln.report.counters["taken over"] == taken_over, "the graphs ran"


@pytest.mark.parametrize("changes", [False, True], ids=["looks", "changes"])
def test_module_backward_hooks_added_later(changes):
    module, logs, gradients = Layers(), ([], []), []
    for log, run in zip(logs, (copy.deepcopy(module), kiln.compile(module, backend=AHEAD)), strict=True):
        for number in range(3):
            if number == 1:
                with_hooks(run, log, changes)
            run(torch.ones(1, 3, requires_grad=True)).sum().backward()
        gradients.append([parameter.grad for parameter in run.parameters()])
    torch.testing.assert_close(*gradients)
    assert len(logs[0]) == 4
    torch.testing.assert_close(*([entry[1:] for entry in log] for log in logs))
    assert [entry[0] for entry in logs[0]] == [entry[0] for entry in logs[1]]
