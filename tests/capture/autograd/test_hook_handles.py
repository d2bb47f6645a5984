"""Handles that captured code makes for hooks of modules: registered inside, called there, kept, removed, numbered."""

import pytest
import torch
from torch.nn.modules import module as module_globals
from torch.utils.hooks import RemovableHandle

from kiln.testing import check

BOTH = (None, "line")


class Logged:
    """A hook of any kind that logs the shapes of its calls and changes nothing."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def __call__(self, *args, **kwargs):
        self.log.append((self.name, len(args), sorted(kwargs)))


REGISTER = {
    "forward": lambda module, hook: module.register_forward_hook(hook),
    "forward, prepended": lambda module, hook: module.register_forward_hook(hook, prepend=True),
    "forward, always": lambda module, hook: module.register_forward_hook(hook, always_call=True),
    "forward, keywords": lambda module, hook: module.register_forward_hook(hook, with_kwargs=True),
    "before": lambda module, hook: module.register_forward_pre_hook(hook),
    "before, prepended": lambda module, hook: module.register_forward_pre_hook(hook, prepend=True),
    "before, keywords": lambda module, hook: module.register_forward_pre_hook(hook, with_kwargs=True),
    "backward": lambda module, hook: module.register_full_backward_hook(hook),
    "backward, prepended": lambda module, hook: module.register_full_backward_hook(hook, prepend=True),
    "before backward": lambda module, hook: module.register_full_backward_pre_hook(hook),
    "global forward": lambda module, hook: module_globals.register_module_forward_hook(hook),
    "global before": lambda module, hook: module_globals.register_module_forward_pre_hook(hook),
    "global backward": lambda module, hook: module_globals.register_module_full_backward_hook(hook),
}


def world(program):
    """A set-up for a program that takes the module, a register function, the log and a tensor."""

    def setup(register):
        torch.manual_seed(0)
        log, module = [], torch.nn.Linear(3, 3)
        module.register_forward_hook(Logged(log, "there before"))
        module.register_full_backward_hook(Logged(log, "there before, backward"))
        function = program(module, REGISTER[register], log)
        return function, (torch.ones(2, 3, requires_grad=True),), log

    return setup


def removed_inside(module, register, log):
    def function(x):
        handle = register(module, Logged(log, "inside"))
        y = module(x)
        handle.remove()
        handle.remove()
        return y + module(x)

    return function


def with_block(module, register, log):
    def function(x):
        with register(module, Logged(log, "inside")) as handle:
            y = module(x)
        return y + module(x), handle

    return function


def several(module, register, log):
    def function(x):
        handles = [register(module, Logged(log, index)) for index in range(3)]
        y = module(x)
        handles.pop(1).remove()
        z = module(y)
        for handle in handles:
            handle.remove()
        return z

    return function


@pytest.mark.parametrize("register", REGISTER)
@pytest.mark.parametrize("program", [removed_inside, with_block, several])
def test_for_the_time_of_a_call(program, register):
    """In one graph, again and again: the numbers of the hooks go on, and none is assumed."""
    breaks = BOTH if program is removed_inside else (None,)
    check(setup=lambda: world(program)(register), calls=3, fullgraph=True, graphs=1, recompiles=0, breaks_every=breaks)


@pytest.mark.parametrize("register", [name for name in REGISTER if "global" not in name])
def test_kept(register):
    """Hooks that stay: the next call finds one more, which is noticed."""

    def kept(module, register, log):
        def function(x):
            y = module(x)
            return y, register(module, Logged(log, "inside"))

        return function

    check(setup=lambda: world(kept)(register), calls=3)


def test_kept_once():
    """A hook that puts itself in place when it is first needed."""

    class Lazily(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)
            self.handle = None
            self.seen = []

        def forward(self, x):
            if self.handle is None:
                self.handle = self.inner.register_forward_hook(self.add_record)
            return self.inner(x)

        def add_record(self, module, args, result):
            self.seen.append(result.shape)

    check(Lazily(), torch.ones(2, 3), calls=4, fullgraph=True, breaks_every=BOTH)


def test_module_made_inside():
    def function(x):
        module = torch.nn.Linear(3, 3)
        handle = module.register_forward_hook(lambda module, args, result: result * 2)
        y = module(x)
        return y, handle, module

    check(function, torch.ones(2, 3), calls=2, breaks_every=BOTH)


def test_number_of_a_handle():
    """Asked for as a number it is eager's to tell."""

    def function(module, x):
        one = module.register_forward_hook(lambda module, args, result: None)
        other = module.register_forward_hook(lambda module, args, result: result * 2)
        facts = [one.id < other.id, other.id - one.id, one.id in module._forward_hooks, isinstance(one.id, int)]
        facts.append(str(other.id).isdigit())
        facts.append(one.id == one.id)
        table = {one.id: "one"}
        facts.append(table[one.id])
        y = module(x)
        one.remove()
        facts.append(one.id in module._forward_hooks)
        other.remove()
        return y, facts, len(table)

    check(function, torch.nn.Linear(3, 3), torch.ones(2, 3), calls=2, breaks_every=BOTH)


def test_handles_for_other_dictionaries():
    class Table(dict):
        pass

    def function(x, make):
        try:
            handle = RemovableHandle(make())
        except TypeError as error:
            return x * 2, str(error)
        return x * 2, handle.id >= 0, type(handle).__name__

    for kind in (dict, Table):
        check(function, torch.ones(2), kind, breaks_every=BOTH)
