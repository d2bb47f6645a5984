"""Backward hooks of modules: captured in one graph, called as in eager, and noticed when they come, go or change."""

import pytest
import torch
from torch.nn.modules import module as module_globals

import kiln
from kiln.testing import check

BOTH = (None, "line")


def shapes(gradients):
    return [None if g is None else round(float(g.sum()), 4) for g in gradients]


class Logged:
    """A hook of either kind that logs what it is given, and multiplies gradients by a factor if it has one."""

    def __init__(self, log, name, factor=None):
        self.log, self.name, self.factor = log, name, factor

    def __call__(self, module, *gradients):
        self.log.append((self.name, type(module).__name__, *map(shapes, gradients)))
        if self.factor is not None:
            return tuple(None if g is None else g * self.factor for g in gradients[0])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.second = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.second(self.first(x).relu())


class Two(torch.nn.Module):
    def forward(self, x, scale, y=None):
        return x * scale, x + y


def arguments():
    return (torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(),)


def hooked(register):
    """A set-up with a block, a log, and hooks as ``register(block, log)`` puts them."""

    def setup():
        torch.manual_seed(0)
        block, log = Block(), []
        register(block, log)
        return block, arguments(), log

    return setup


def everywhere(block, log):
    for name, module in block.named_modules():
        module.register_full_backward_hook(Logged(log, f"post {name}"))
        module.register_full_backward_pre_hook(Logged(log, f"pre {name}"))


def changing(block, log):
    block.register_full_backward_hook(Logged(log, "outer", 2.0))
    block.first.register_full_backward_hook(Logged(log, "first", 3.0))
    block.first.register_full_backward_pre_hook(Logged(log, "before first", 5.0))
    block.second.register_full_backward_pre_hook(Logged(log, "before second", 7.0))
    block.second.register_full_backward_hook(lambda module, inputs, outputs: log.append("nothing"))


def in_order(block, log):
    for name in "ab":
        block.first.register_full_backward_hook(Logged(log, name, 2.0))
        block.first.register_full_backward_pre_hook(Logged(log, f"pre {name}", 3.0))
    block.first.register_full_backward_hook(Logged(log, "prepended"), prepend=True)
    block.first.register_full_backward_pre_hook(Logged(log, "pre prepended"), prepend=True)


def with_forward_hooks(block, log):
    block.first.register_forward_hook(lambda module, args, result: log.append("forward") or result * 2)
    block.first.register_full_backward_hook(Logged(log, "backward"))
    block.first.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def raising(block, log):
    def hook(module, inputs, outputs):
        raise ValueError("from the hook")

    block.first.register_full_backward_hook(hook)


def nonsense(block, log):
    block.first.register_full_backward_hook(lambda module, inputs, outputs: (None, None, None))


def nonsense_before(block, log):
    block.first.register_full_backward_pre_hook(lambda module, outputs: ())


@pytest.mark.parametrize(
    "register", [everywhere, changing, in_order, with_forward_hooks, raising, nonsense, nonsense_before]
)
def test_captured(register):
    check(setup=hooked(register), calls=3, fullgraph=True, graphs=1, recompiles=0, breaks_every=BOTH)


def test_old_hooks():
    """The deprecated kind goes on the last node of autograd's graph that the module made."""

    def setup():
        log = []
        block = Block()
        block.register_backward_hook(lambda module, inputs, outputs: log.append((len(inputs), len(outputs))))
        return block, arguments(), log

    check(setup=setup, calls=2, breaks_every=BOTH)


@pytest.mark.parametrize("gradient", ["both", "neither", "second"])
def test_several_inputs_and_outputs(gradient):
    def setup():
        log = []
        module = Two()
        module.register_full_backward_hook(Logged(log, "post"))
        module.register_full_backward_pre_hook(Logged(log, "pre"))
        x, y = torch.ones(2, requires_grad=gradient == "both"), torch.ones(2, requires_grad=gradient != "neither")

        def function(x, y):
            one, other = module(x, 2.0, y=y)
            return one, other * 3

        return function, (x, y), log

    check(setup=setup, calls=2, fullgraph=True, graphs=1, breaks_every=BOTH)


def test_no_input_requires_a_gradient():
    """The hook then runs with the gradients of the outputs, and warns."""

    def setup():
        log = []
        block = Block()
        block.register_full_backward_hook(Logged(log, "post"))
        return block, (torch.ones(2, 3),), log

    check(setup=setup, calls=2, fullgraph=True, graphs=1, breaks_every=BOTH)


def test_without_gradients():
    def setup():
        log = []
        block = Block()
        everywhere(block, log)

        def function(x):
            with torch.no_grad():
                quiet = block(x)
            return quiet, block(x)

        return function, arguments(), log

    check(setup=setup, calls=2, fullgraph=True, graphs=1)


def test_inputs_changed_in_place_by_the_module():
    """The hook makes inputs views that must not be changed: eager's error."""

    def setup():
        log = []
        module = torch.nn.ReLU(inplace=True)
        module.register_full_backward_hook(Logged(log, "post"))
        return lambda x: module(x * 2), arguments(), log

    check(setup=setup)


# -- hooks that come and go ------------------------------------------------------------------------------------------


def sequence(compiled):
    """Calls of a block between which its hooks change, and what they did."""
    torch.manual_seed(0)
    block, log = Block(), []
    call = kiln.compile(block, fullgraph=True) if compiled else block
    results = []

    def step(name):
        (x,) = arguments()
        call(x).sum().backward()
        results.append((name, list(log), x.grad))
        log.clear()
        for parameter in block.parameters():
            results.append(parameter.grad)
            parameter.grad = None

    step("none")
    first = block.first.register_full_backward_hook(Logged(log, "first", 2.0))
    step("one")
    step("again")
    second = block.first.register_full_backward_pre_hook(Logged(log, "second", 3.0))
    step("two")
    first.remove()
    step("only the pre-hook")
    block.first._backward_pre_hooks[second.id] = Logged(log, "replaced", 5.0)
    step("replaced under the same number")
    second.remove()
    step("none again")
    everywhere = module_globals.register_module_full_backward_hook(Logged(log, "global"))
    step("global")
    before = module_globals.register_module_full_backward_pre_hook(Logged(log, "global before", 2.0))
    step("two global ones")
    everywhere.remove()
    before.remove()
    step("none in the end")
    return results


def test_hooks_that_come_and_go():
    expected, seen = sequence(False), sequence(True)
    assert kiln.testing.same(expected, seen), kiln.testing.compare.differences(expected, seen)


def test_registered_inside():
    """Registering hooks on a module inside the compiled function, and removing them there."""

    def setup():
        log = []
        block = Block()

        def function(x):
            handle = block.first.register_full_backward_hook(Logged(log, "post"))
            y = block(x)
            handle.remove()
            return y + block(x)

        return function, arguments(), log

    check(setup=setup, calls=2, breaks_every=BOTH)


def test_backward_twice():
    """The state that links the two halves of a hook belongs to one call."""

    def setup():
        log = []
        block = Block()
        everywhere(block, log)
        compiled_results = []

        def function(x):
            y = block(x).sin().sum()
            compiled_results.append(y)
            return y

        return function, arguments(), (log, compiled_results)

    report = check(setup=setup, calls=2, grads=False, fullgraph=True, graphs=1)
    for outcome in (report.eager, report.compiled):
        log, results = outcome.state
        for result in results:
            result.backward(retain_graph=True)
            result.backward()
    assert report.eager.state[0] == report.compiled.state[0] and len(report.eager.state[0]) == 24
