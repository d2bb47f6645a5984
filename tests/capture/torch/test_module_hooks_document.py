"""Hooks on modules as the modules document tests them, and the option that leaves out the guards on hooks."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import kiln
from kiln.report import events
from kiln.testing import CompileCounter, same
from tests.support.hooked_modules import Affine, X

# -- the option that skips the guards -------------------------------------------------------------------------------


def times_two(module, args, output):
    return 2 * output + 1


@pytest.mark.covers("test_modules::test_hooks_skip_guards")
def test_guards_on_hooks_can_be_left_out():
    m = Affine()
    handle = m.register_forward_hook(times_two)

    def outer(x):
        return m(x * 2 + 1)

    counter = CompileCounter()
    compiled = kiln.compile(outer, backend=counter)
    with kiln.config.patch(guard_module_hooks=False):
        one = torch.tensor(1.0, requires_grad=True)
        assert compiled(one).item() == outer(one).item() == 15
        assert (counter.frame_count, counter.op_count) == (1, 6)
        handle.remove()
        m.register_forward_pre_hook(lambda module, args: 1 / 0)
        assert compiled(one).item() == 15, "the hook is the entry's now, and the new one is not looked for"
        assert counter.frame_count == 1


def test_hooks_held_by_an_entry_are_those_of_one_module():
    """Also without guards on hooks: an entry with hooks is not for other modules of the class."""
    saved = []
    first, second = Affine(), Affine()
    handle = first.register_forward_hook(lambda module, args, output: saved.append(output))
    counter = CompileCounter()
    compiled = kiln.compile(lambda module, x: module(x), backend=counter)
    with kiln.config.patch(guard_module_hooks=False):
        compiled(first, X)
        handle.remove()
        saved = []  # what a hook closes over is guarded and read as ever
        assert same(compiled(first, X), first(X)) and len(saved) == 1
        assert same(compiled(second, X), second(X)) and len(saved) == 1
        assert counter.frame_count == 2


# -- the modules document -------------------------------------------------------------------------------------------


@pytest.mark.covers("test_modules::test_hooks_outer")
def test_hook_on_the_compiled_module_itself():
    m = Affine()
    handle = m.register_forward_hook(times_two)
    compiled = kiln.compile(m, backend="eager", fullgraph=True)
    one = torch.tensor(1.0, requires_grad=True)
    with events.listen() as heard:
        assert compiled(one).item() == m(one).item() == 7
        assert compiled(one).item() == 7
        assert heard.recompiles == []
        handle.remove()
        assert compiled(one).item() == m(one).item() == 3
    assert len(heard.recompiles) == 1 and "forward_hooks" in heard.recompiles[0][1]


@pytest.mark.covers("test_modules::test_hooks_inner")
def test_hook_inside_a_compiled_function():
    """One graph with the hook in it; without the hook another; another hook in its place is seen."""
    m = Affine()
    handle = m.register_forward_hook(times_two)

    def outer(x):
        return m(x * 2 + 1)

    counter = CompileCounter()
    compiled = kiln.compile(outer, backend=counter)
    one = torch.tensor(1.0, requires_grad=True)
    assert compiled(one).item() == outer(one).item() == 15
    assert (counter.frame_count, counter.op_count) == (1, 6)
    handle.remove()
    with events.listen() as heard:
        assert compiled(one).item() == outer(one).item() == 7
    assert "forward_hooks" in heard.recompiles[0][1]
    assert (counter.frame_count, counter.op_count) == (2, 10)

    kiln.reset()
    m = Affine()
    handle = m.register_forward_hook(times_two)
    assert compiled(one).item() == 15
    m._forward_hooks[handle.id] = lambda module, args, output: 2 * output + 2
    with events.listen() as heard:
        assert compiled(one).item() == outer(one).item() == 16
    assert len(heard.recompiles) == 1 and "'m'._forward_hooks" in heard.recompiles[0][1]


class Toy(nn.Module):
    """``call`` makes something of the network."""

    def __init__(self, call=lambda net, x: net(x)):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2), nn.ReLU())
        self.call = call

    def forward(self, x):
        return self.call(self.net, x)


@pytest.mark.covers("test_modules::test_hooks_allowed_modules", "test_modules::test_dunder_call_explicitly")
@pytest.mark.parametrize("call", [lambda net, x: net(x), lambda net, x: net.__call__(x)])
def test_activations_are_saved_on_each_call(call):
    """A global that says where, a partial that says which: nothing stays from the call that was traced."""
    m = Toy(call)
    saved = None

    def save(name, module, args, output):
        saved[name] = args

    names = []
    for name, module in m.named_modules():
        module.register_forward_hook(functools.partial(save, name))
        names.append(name)
    compiled = kiln.compile(m, backend="eager", fullgraph=True)
    for _ in range(2):
        x = torch.randn(3, 4)
        saved = seen = {}
        compiled(x).sum().backward()
        saved = expected = {}
        m(x).sum().backward()
        assert same(seen, expected) and set(seen) == set(names)


@pytest.mark.covers("test_modules::test_hooks_allowed_modules_compiles")
def test_saving_activations_takes_one_graph():
    m, saved = Toy(), []
    for module in m.modules():
        module.register_forward_hook(lambda module, args, output: saved.append(args))
    counter = CompileCounter()
    compiled = kiln.compile(m, backend=counter, fullgraph=True)
    for _ in range(2):
        saved.clear()
        compiled(torch.randn(3, 4)).sum().backward()
    assert len(saved) == 6
    assert counter.frame_count == 1


@pytest.mark.covers("test_modules::test_hooks_allowed_modules_compiles_self_contained")
def test_hooks_that_change_outputs_take_one_graph():
    """The document counts two graphs for a root module with a hook; Kiln needs one, and one more for another rank."""
    m = Toy(lambda net, x: net(x) * net(x))
    for module in m.modules():
        module.register_forward_hook(lambda module, args, output: 2 * output + 1)
    counter = CompileCounter()
    compiled = kiln.compile(m, backend=counter, fullgraph=True)
    for expected, shape in ((1, (3, 4)), (2, (2, 3, 4)), (2, (2, 3, 4))):
        x = torch.randn(shape)
        m(x).sum().backward()
        gradient = m.net[0].weight.grad
        m.zero_grad()
        compiled(x).sum().backward()
        assert same(m.net[0].weight.grad, gradient)
        m.zero_grad()
        assert counter.frame_count == expected


class Product(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns))

    def forward(self, x):
        return torch.mm(x, self.weight)


@pytest.mark.covers("test_modules::test_backward_hooks")
def test_backward_hooks_of_each_module_are_called():
    m = Toy()
    m.net = nn.Sequential(Product(4, 4), Product(4, 16), Product(16, 2))
    sizes, sizes_before, names = {}, {}, []
    for name, module in m.named_modules():
        names.append(name)
        module.register_full_backward_hook(
            functools.partial(
                lambda name, module, inputs, outputs: sizes.update(
                    {name: [grad if grad is None else grad.shape for grad in (*inputs, *outputs)]}
                ),
                name,
            )
        )
        module.register_full_backward_pre_hook(
            functools.partial(
                lambda name, module, outputs: sizes_before.update({name: [grad.shape for grad in outputs]}), name
            )
        )
    compiled = kiln.compile(m, backend="eager")
    seen = []
    for run in (compiled, compiled, m):
        sizes.clear()
        sizes_before.clear()
        run(torch.ones(3, 4)).sum().backward()
        seen.append((dict(sizes), dict(sizes_before)))
        assert set(sizes) == set(sizes_before) == set(names)
    assert seen[0] == seen[1] == seen[2]


class Prepended:
    """Registers its own method and is called in place of the module."""

    def __init__(self, module):
        self.module = module
        self.handle = module.register_forward_pre_hook(self.add, prepend=True, with_kwargs=True)

    def add(self, module, args, kwargs):
        return (args[0] + 1,), kwargs

    def __call__(self, x):
        return self.module(x)


@pytest.mark.covers("test_modules::test_udo_instance_method_as_hook")
def test_method_of_a_callable_object_as_hook():
    caller = Prepended(Affine())
    compiled = kiln.compile(caller, backend="eager", fullgraph=True)
    assert same(compiled(X), 2 * (X + 1) + 1)
    caller.handle.remove()
    assert same(compiled(X), 2 * X + 1)
