"""Hooks for the backward of modules, and hooks on all modules of the process: noticed, and run as in eager."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks

import kiln
from tests.support.hooked_modules import Affine, Keyword, Outer, Parallel, X, double, gradients, linear, negate_input
from tests.support.scenarios import ANY, BACK, Scenarios, play

hooks = Scenarios()


@pytest.mark.parametrize("every", [None, "line"])
@pytest.mark.parametrize("scenario, expected, options", hooks)
def test_backward_hooks(scenario, expected, options, every):
    with kiln.config.patch(break_every=every):
        play(scenario, expected, **options)


# -- one module ---------------------------------------------------------------------------------------------------


def backward_log(log, name):
    def hook(module, grad_inputs, grad_outputs):
        log.append((name, type(module).__name__, grad_inputs, grad_outputs))

    return hook


@hooks(ANY, ANY, ANY, ANY)
def full_backward_hooks(compiler):
    log = []
    m = Outer()
    f = compiler(m)
    handles = [module.register_full_backward_hook(backward_log(log, name)) for name, module in m.named_modules()]
    for k in range(2):
        x = (X + k).requires_grad_()
        f(x).sum().backward()
        yield gradients(m, x), log.copy()
        log.clear()
    for handle in handles:
        handle.remove()
    x = X.clone().requires_grad_()
    f(x).sum().backward()
    yield gradients(m, x), log.copy()
    m.first.register_full_backward_hook(lambda module, inputs, outputs: tuple(grad * 2 for grad in inputs))
    f(x).sum().backward()
    yield gradients(m, x)


@hooks(ANY, ANY, ANY)
def backward_pre_hooks(compiler):
    log = []
    m = Outer()
    f = compiler(m)
    x = X.clone().requires_grad_()
    f(x).sum().backward()
    yield gradients(m, x)
    for name, module in m.named_modules():
        module.register_full_backward_pre_hook(functools.partial(lambda n, mod, grads: log.append((n, grads)), name))
    m.first.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,), prepend=True)
    for _ in range(2):
        f(x).sum().backward()
        yield gradients(m, x), log.copy()
        log.clear()


@hooks(ANY, ANY, ANY)
def all_kinds_at_once(compiler):
    log = []
    m = Outer()
    for name, module in m.named_modules():
        module.register_forward_pre_hook(functools.partial(lambda n, mod, args: log.append(("pre", n)), name))
        module.register_forward_hook(functools.partial(lambda n, mod, args, out: log.append(("after", n)), name))
        module.register_full_backward_hook(functools.partial(lambda n, mod, i, o: log.append(("backward", n)), name))
        module.register_full_backward_pre_hook(functools.partial(lambda n, mod, o: log.append(("before", n)), name))
    f = compiler(m)
    for k in range(3):
        x = (X + k).requires_grad_()
        f(x).sum().backward()
        yield gradients(m, x), log.copy()
        log.clear()


@hooks(ANY, ANY, ANY)
def old_backward_hooks(compiler):
    """``register_backward_hook``, not the full kind: on the node that made the result."""
    log = []
    m = linear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handle = m.register_backward_hook(lambda module, inputs, outputs: log.append(len(inputs)))
        f = compiler(m)
        for k in range(3):
            x = (X + k).requires_grad_()
            f(x).sum().backward()
            yield gradients(m, x), log.copy()
            if k == 1:
                handle.remove()


@hooks(ANY, ANY)
def backward_hooks_on_the_compiled_module(compiler):
    log = []
    m = linear()
    f = compiler(m)
    f.register_full_backward_hook(lambda module, inputs, outputs: log.append((inputs, outputs)))
    f.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 2,))
    for k in range(2):
        x = (X + k).requires_grad_()
        f(x).sum().backward()
        yield gradients(m, x), log.copy()


# -- hooks on all modules -------------------------------------------------------------------------------------------

everywhere = Scenarios()


@pytest.mark.parametrize("scenario, expected, options", everywhere)
def test_global_hooks(scenario, expected, options):
    """These hold for the whole process, so eager is through before Kiln begins."""
    wanted = list(scenario(lambda function: function))
    play(
        lambda compiler: scenario(compiler) if isinstance(compiler, functools.partial) else wanted, expected, **options
    )


@everywhere(None, "_global_forward_hooks", BACK, fullgraph=True)
def global_forward_hook(compiler):
    m = Outer()
    f = compiler(m)
    yield f(X)
    with module_hooks.register_module_forward_hook(double):
        yield f(X)
    yield f(X)


@everywhere(None, "_global_forward_pre_hooks", BACK, fullgraph=True)
def global_pre_hook(compiler):
    m = Outer()
    f = compiler(m)
    yield f(X)
    with module_hooks.register_module_forward_pre_hook(negate_input):
        yield f(X)
    yield f(X)


@everywhere(None, "_global_forward_hooks", fullgraph=True)
def global_hooks_with_keywords(compiler):
    log = []
    m = Parallel(Keyword())
    f = compiler(m)
    yield f(X, scale=2.0)

    def hook(module, args, kwargs, output):
        log.append((type(module).__name__, kwargs))

    with module_hooks.register_module_forward_hook(hook, with_kwargs=True):
        yield f(X, scale=2.0), list(log)


@everywhere(ANY, ANY, ANY)
def global_hook_always_called(compiler):
    log = []
    m = nn.Sequential(linear(), nn.ReLU())
    f = compiler(m)
    yield f(X)
    with module_hooks.register_module_forward_hook(
        lambda module, args, output: log.append(type(module).__name__), always_call=True
    ):
        yield f(X), list(log)
        with pytest.raises(RuntimeError):
            f(torch.ones(7))
        yield list(log)


@everywhere(None, ANY, ANY, ANY)
def global_backward_hooks(compiler):
    log = []
    m = Outer()
    f = compiler(m)
    x = X.clone().requires_grad_()
    f(x).sum().backward()
    yield gradients(m, x)
    hook = module_hooks.register_module_full_backward_hook(backward_log(log, "after"))
    pre_hook = module_hooks.register_module_full_backward_pre_hook(
        lambda module, grads: log.append(("before", type(module).__name__, grads))
    )
    with hook, pre_hook:
        for _ in range(2):
            f(x).sum().backward()
            yield gradients(m, x), log.copy()
            log.clear()
    f(x).sum().backward()
    yield gradients(m, x), log.copy()


@everywhere(ANY, ANY)
def registration_hooks(compiler):
    """Told of each parameter, buffer and module that is set."""
    log = []

    def program(x):
        m = nn.Module()
        m.weight = nn.Parameter(torch.ones(3))
        m.register_buffer("count", torch.zeros(3))
        m.child = Affine()
        return m.child(x * m.weight + m.count)

    f = compiler(program)
    yield f(X)
    told = [
        module_hooks.register_module_parameter_registration_hook(lambda m, name, value: log.append(name)),
        module_hooks.register_module_buffer_registration_hook(lambda m, name, value: log.append(name)),
        module_hooks.register_module_module_registration_hook(lambda m, name, value: log.append(name)),
    ]
    yield f(X), list(log)
    for handle in told:
        handle.remove()
