"""Hooks on modules: whatever kind, wherever registered, removed or replaced, they are noticed and run as in eager.

Each scenario is played in eager and compiled (``scenarios.py``): results of each step are compared, and whether it
recompiled, and for what reason. ``fullgraph`` says that the hooks are captured, not left to Python.
"""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from scenarios import ANY, BACK, Scenarios, play
from torch import nn
from torch.nn.modules import module as module_hooks

import kiln
from kiln.report import events
from kiln.testing import CompileCounter, same

X = torch.arange(6.0).reshape(2, 3) / 4 - 0.5
HOOK = "_forward_hooks"
PRE_HOOK = "_forward_pre_hooks"

hooks = Scenarios()


def whole(*expected):
    """A scenario whose hooks are part of the graph."""
    return hooks(*expected, fullgraph=True)


@pytest.mark.parametrize("scenario, expected, options", hooks)
def test_hooks(scenario, expected, options):
    play(scenario, expected, **options)


@pytest.mark.parametrize("scenario, expected, options", hooks)
def test_hooks_with_breaks(scenario, expected, options):
    with kiln.config.patch(break_every="line"):
        play(scenario, None)


def linear(scale=1.0, size=3):
    """A linear layer with weights that are the same each time."""
    made = nn.Linear(size, size)
    with torch.no_grad():
        made.weight.copy_(torch.arange(size * size).reshape(size, size) * scale / 10)
        made.bias.fill_(0.5)
    return made


class Affine(nn.Module):
    def forward(self, x):
        return 2 * x + 1


class Keyword(nn.Module):
    def forward(self, x, *, scale=1.0, shift=None):
        return x * scale + (0 if shift is None else shift)


class Outer(nn.Module):
    """Modules in every kind of container, one of them twice."""

    def __init__(self):
        super().__init__()
        self.first = linear()
        self.steps = nn.ModuleList([linear(0.5), nn.ReLU()])
        self.table = nn.ModuleDict({"a": linear(0.2), "b": nn.Tanh()})
        self.sequence = nn.Sequential(self.first, nn.Sigmoid())

    def forward(self, x):
        x = self.first(x)
        for step in self.steps:
            x = step(x)
        for step in self.table.values():
            x = step(x)
        return self.sequence(x)


def double(module, args, output):
    return output * 2


def plus_one(module, args, output):
    return output + 1


def nothing(module, args, output):
    return None


def negate_input(module, args):
    return (-args[0],)


SEEN: list = []
LATEST = None


def remember_globally(module, args, output):
    global LATEST
    SEEN.append(output.detach())
    LATEST = output


def gradients(model, *tensors):
    """The gradients there are, and none left for the next step."""
    found = []
    for tensor in (*model.parameters(), *tensors):
        found.append(None if tensor.grad is None else tensor.grad.clone())
        tensor.grad = None
    return found


# -- forward hooks and pre-hooks, one module ------------------------------------------------------------------------


@whole(None, HOOK, BACK, HOOK, HOOK)
def added_removed_replaced(compiler):
    m = Affine()
    f = compiler(lambda x: m(x * 2))
    yield f(X)
    handle = m.register_forward_hook(double)
    yield f(X)
    handle.remove()
    yield f(X)
    handle = m.register_forward_hook(plus_one)
    yield f(X)
    m._forward_hooks[handle.id] = double
    yield f(X)


@whole(None, HOOK, BACK)
def replaced_in_the_dictionary(compiler):
    m = Affine()
    handle = m.register_forward_hook(double)
    f = compiler(m)
    yield f(X)
    m._forward_hooks[handle.id] = plus_one
    yield f(X)
    m._forward_hooks[handle.id] = double
    yield f(X)


@whole(None, PRE_HOOK, BACK)
def pre_hook_replaced_in_the_dictionary(compiler):
    m = Affine()
    handle = m.register_forward_pre_hook(negate_input)
    f = compiler(m)
    yield f(X)
    m._forward_pre_hooks[handle.id] = lambda module, args: (args[0] + 1,)
    yield f(X)
    m._forward_pre_hooks[handle.id] = negate_input
    yield f(X)


@whole(None, PRE_HOOK, PRE_HOOK, BACK)
def pre_hook_that_gives_a_single_value(compiler):
    m = Affine()
    f = compiler(m)
    yield f(X)
    handle = m.register_forward_pre_hook(lambda module, args: args[0] - 3)
    yield f(X)
    m.register_forward_pre_hook(lambda module, args: None, prepend=True)
    yield f(X)
    m._forward_pre_hooks.clear()
    yield f(X)
    handle.remove()  # it is not there any more: nothing happens


@whole(None, HOOK, HOOK, HOOK)
def order_of_hooks(compiler):
    m = Affine()
    m.register_forward_hook(double)
    f = compiler(m)
    yield f(X)
    last = m.register_forward_hook(plus_one)
    yield f(X)
    m._forward_hooks.move_to_end(last.id, last=False)
    yield f(X)
    m.register_forward_hook(lambda module, args, output: output - args[0], prepend=True)
    yield f(X)


@whole(None, None, None)
def keyword_arguments(compiler):
    m = Keyword()
    m.register_forward_pre_hook(lambda module, args, kwargs: (args, {**kwargs, "shift": 3}), with_kwargs=True)
    m.register_forward_hook(lambda module, args, kwargs, output: output * kwargs["scale"], with_kwargs=True)
    m.register_forward_hook(lambda module, args, output: (output, args))
    f = compiler(lambda x, s: m(x, scale=s))
    yield f(X, 2.0)
    yield f(X + 1, 2.0)
    yield f(X, 2.0)


@whole(None, "hooks", "hooks")
def becomes_one_with_keywords(compiler):
    """The same hook function, told apart only by the dictionaries beside that of the hooks."""
    log = []
    m = Keyword()
    f = compiler(lambda x: m(x, scale=2.0))

    def hook(module, *rest):
        log.append(len(rest))

    m.register_forward_hook(hook)
    handle = m.register_forward_hook(hook)
    yield f(X), list(log)
    m._forward_hooks_with_kwargs[handle.id] = True
    yield f(X), list(log)
    handle = m.register_forward_pre_hook(hook, with_kwargs=True)
    yield f(X), list(log)


@hooks(None, ANY, BACK)
def always_called(compiler):
    log = []
    m = nn.Sequential(linear(), nn.ReLU())
    m[0].register_forward_hook(lambda module, args, output: log.append(output is None), always_call=True)
    m.register_forward_hook(lambda module, args, output: log.append("outer") or output, always_call=True)
    f = compiler(m)
    yield f(X), list(log)
    try:
        f(torch.ones(5))
    except RuntimeError as error:
        yield str(error), list(log)
    yield f(X), list(log)


@hooks(None, None)
def always_called_after_a_hook_that_raises(compiler):
    log = []
    m = linear()

    def breaks(module, args, output):
        raise ValueError("no")

    m.register_forward_hook(lambda module, args, output: log.append("first"), always_call=True)
    m.register_forward_hook(breaks)
    m.register_forward_hook(lambda module, args, output: log.append("last"), always_call=True)
    m.register_forward_hook(lambda module, args, output: log.append("never"))
    f = compiler(m)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            f(X)
        yield list(log)


@whole(None, HOOK, HOOK)
def results_of_any_kind(compiler):
    m = Affine()
    handle = m.register_forward_hook(lambda module, args, output: (output, args[0], "text", {"k": output + 1}))
    f = compiler(m)
    yield f(X)
    m._forward_hooks[handle.id] = lambda module, args, output: [7, None]
    yield f(X)
    m._forward_hooks[handle.id] = nothing
    yield f(X)


# -- where modules are ----------------------------------------------------------------------------------------------


@whole(None, HOOK, HOOK, HOOK, BACK)
def deep_inside(compiler):
    m = Outer()
    f = compiler(m)
    yield f(X)
    m.table["a"].register_forward_hook(double)
    yield f(X)
    shared = m.first.register_forward_hook(plus_one)  # called twice
    yield f(X)
    last = m.steps[1].register_forward_hook(double)
    yield f(X)
    last.remove()
    yield f(X)
    assert shared.id in m.sequence[0]._forward_hooks


@whole(None, None, HOOK, BACK)
def one_class_many_instances(compiler):
    """Instances share what was compiled; a hook on one is a hook on one."""
    a, b = linear(), linear()
    f = compiler(lambda m, x: m(x))
    yield f(a, X)
    yield f(b, X)
    b.register_forward_hook(double)
    yield f(b, X)
    yield f(a, X)


@whole(None, HOOK, HOOK)
def on_a_module_in_a_plain_list(compiler):
    modules = [Affine(), linear()]
    f = compiler(lambda x: modules[1](modules[0](x)))
    yield f(X)
    modules[0].register_forward_hook(double)
    yield f(X)
    modules[1].register_forward_hook(double)
    yield f(X)


@whole(None, HOOK, BACK)
def around_explicit_calls(compiler):
    """``__call__`` runs hooks; ``forward`` does not."""
    m = linear()
    f = compiler(lambda x: (m.__call__(x), m.forward(x), nn.Module.__call__(m, x)))
    yield f(X)
    handle = m.register_forward_hook(double)
    yield f(X)
    handle.remove()
    yield f(X)


class Parallel(nn.Module):
    """Wraps a module and passes calls on, as DataParallel does."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


@whole(None, HOOK, PRE_HOOK)
def through_a_wrapper(compiler):
    inner = Keyword()
    f = compiler(Parallel(Parallel(inner)))
    yield f(X, scale=2.0)
    inner.register_forward_hook(lambda module, args, kwargs, output: (output, kwargs), with_kwargs=True)
    yield f(X, scale=2.0)
    inner.register_forward_pre_hook(lambda module, args, kwargs: (args, {"shift": 1}), with_kwargs=True)
    yield f(X, scale=2.0)


@hooks(None, None, HOOK)
def data_parallel_without_devices(compiler):
    m = nn.DataParallel(linear())
    f = compiler(m)
    yield f(X)
    yield f(X)
    m.module.register_forward_hook(double)
    yield f(X)


# -- on the compiled module -----------------------------------------------------------------------------------------


@whole(None, None, HOOK, BACK)
def on_the_compiled_module(compiler):
    """They run around what is compiled, which does not notice; they are not those of the original module."""
    log = []
    m = linear()
    f = compiler(m)
    yield f(X)
    outer = f.register_forward_hook(lambda module, args, output: log.append("outer") or output + 1)
    yield f(X), list(log)
    if f is not m:  # in eager there is but one module
        assert not m._forward_hooks
        m.register_forward_hook(double)
    else:
        m.register_forward_hook(double, prepend=True)
    yield f(X), list(log)
    outer.remove()
    yield f(X), list(log)


@whole(None, None, None)
def pre_hooks_and_keywords_on_the_compiled_module(compiler):
    f = compiler(Keyword())
    f.register_forward_pre_hook(lambda module, args, kwargs: (args, {"scale": 3.0}), with_kwargs=True)
    f.register_forward_hook(lambda module, args, kwargs, output: (output, kwargs), with_kwargs=True)
    yield f(X)
    yield f(X)
    f._forward_hooks.clear()
    yield f(X)


@whole(None, None, HOOK)
def on_a_compiled_module_inside_another(compiler):
    inner = compiler(Affine())
    outer = compiler(nn.Sequential(inner, nn.ReLU()))
    yield outer(X)
    yield inner(X)
    inner.register_forward_hook(double)
    yield outer(X)


# -- what hooks do --------------------------------------------------------------------------------------------------


@whole(None, None, None)
def saves_activations_in_a_dictionary(compiler):
    saved = {}

    def save(name, module, args, output):
        saved[name] = output

    m = Outer()
    for name, module in m.named_modules():
        module.register_forward_hook(functools.partial(save, name))
    f = compiler(m)
    for k in range(3):
        saved.clear()
        yield f(X + k), dict(saved), list(saved)


@whole(None, None)
def saves_activations_in_a_list(compiler):
    saved = []
    m = Outer()
    for module in m.modules():
        module.register_forward_hook(lambda module, args, output: saved.append(args))
    f = compiler(m)
    for _ in range(2):
        saved.clear()
        yield f(X), list(saved)


@whole(None, None)
def saves_activations_in_globals(compiler):
    global LATEST
    m = nn.Sequential(linear(), nn.ReLU())
    m[0].register_forward_hook(remember_globally)
    f = compiler(m)
    for k in range(2):
        SEEN.clear()
        LATEST = None
        yield f(X + k), list(SEEN), LATEST


class Recorder:
    """Bound methods as hooks, on objects with state of their own."""

    def __init__(self):
        self.calls = 0
        self.outputs = {}
        self.factor = 2.0

    def hook(self, module, args, output):
        self.calls += 1
        self.outputs[type(module).__name__] = output
        return output * self.factor

    def __call__(self, module, args):
        return args[0] + self.calls


@whole(None, ANY, ANY)
def bound_methods_and_callable_objects(compiler):
    recorder = Recorder()
    m = nn.Sequential(linear(), nn.ReLU())
    m[0].register_forward_hook(recorder.hook)
    m[1].register_forward_hook(recorder.hook)
    m.register_forward_pre_hook(recorder)
    f = compiler(m)
    yield f(X), recorder.calls, dict(recorder.outputs)
    recorder.factor = 3.0
    yield f(X), recorder.calls, dict(recorder.outputs)
    yield f(X), recorder.calls, dict(recorder.outputs)


@whole(None, HOOK, BACK)
def closures_over_what_changes(compiler):
    factor = "a"
    m = linear()
    m.register_forward_hook(lambda module, args, output: output + len(factor))
    f = compiler(m)
    yield f(X)
    factor = "abc"
    yield f(X)
    factor = "a"
    yield f(X)


@whole(None, None, None)
def on_the_module_itself(compiler):
    """A hook that changes the module that it is called for."""
    m = linear()

    def count(module, args, output):
        module.calls = module.calls + 1
        module.last = output.detach()

    m.register_forward_hook(count)
    m.calls = m.last = torch.zeros(1)
    f = compiler(m)
    yield f(X), m.calls, m.last
    m.last = torch.zeros(2, 3)
    yield f(X), m.calls, m.last
    yield f(X + 1), m.calls, m.last


@whole(None, None)
def calls_other_modules(compiler):
    other = linear(0.3)
    other.register_forward_hook(double)
    m = Outer()
    m.first.register_forward_hook(lambda module, args, output: output + other(args[0]))
    f = compiler(m)
    yield f(X)
    yield f(X)


@whole(None, None)
def in_place(compiler):
    m = Affine()

    def shift(module, args, output=None):
        (args[0] if output is None else output).add_(1)

    m.register_forward_pre_hook(shift)
    m.register_forward_hook(shift)
    m.register_forward_hook(lambda module, args, output: output.mul_(3))
    f = compiler(m)
    for _ in range(2):
        x = X.clone()
        yield f(x), x


@whole(None, None, None)
def with_gradients(compiler):
    m = Outer()
    m.first.register_forward_hook(lambda module, args, output: output * args[0])
    m.sequence.register_forward_pre_hook(lambda module, args: (args[0] * module[0].weight.sum(),))
    f = compiler(m)
    for k in range(3):
        x = (X + k).requires_grad_()
        f(x).sum().backward()
        yield gradients(m, x)


@whole(None, HOOK)
def runs_under_no_grad(compiler):
    """A hook whose work is not recorded by autograd, as feature extractors write them."""
    features = {}
    m = nn.Sequential(linear(), nn.ReLU())

    @torch.no_grad()
    def extract(module, args, output):
        features["norm"] = (output / output.norm()).detach()

    f = compiler(m)
    yield f(X), dict(features)
    m[0].register_forward_hook(extract)
    yield f(X), dict(features)


# -- registered inside ----------------------------------------------------------------------------------------------


@hooks(ANY, ANY, ANY)
def registered_and_removed_inside(compiler):
    m = Affine()

    def program(x):
        handle = m.register_forward_hook(double)
        a = m(x)
        handle.remove()
        return a, m(x), len(m._forward_hooks)

    f = compiler(program)
    yield f(X)
    yield f(X)
    yield m(X)


@hooks(ANY, ANY, ANY)
def registered_inside_and_kept(compiler):
    m = Affine()

    def program(x):
        m.register_forward_hook(double)
        return m(x)

    f = compiler(program)
    yield f(X)
    yield f(X)
    yield m(X), len(m._forward_hooks)


@hooks(ANY, ANY, ANY)
def registered_in_forward(compiler):
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear()
            self.handle = None

        def forward(self, x):
            if self.handle is None:
                self.handle = self.inner.register_forward_hook(double)
            else:
                self.handle.remove()
            return self.inner(x)

    m = Once()
    f = compiler(m)
    yield f(X)
    yield f(X), len(m.inner._forward_hooks)
    yield f(X)


@hooks(ANY, ANY, ANY)
def removes_itself(compiler):
    log = []
    m = nn.Sequential(linear(), nn.ReLU())

    def once(module, args, output):
        log.append("once")
        handle.remove()
        return output + 1

    handle = m[0].register_forward_hook(once)
    f = compiler(m)
    yield f(X), list(log)
    yield f(X), list(log)
    yield f(X), list(log)


@hooks(ANY, ANY, ANY)
def on_modules_made_inside(compiler):
    def program(x):
        m = Affine()
        m.register_forward_hook(double)
        m.register_forward_pre_hook(negate_input)
        return m(x)

    f = compiler(program)
    yield f(X)
    yield f(X + 1)
    yield f(X)


# -- backward hooks -------------------------------------------------------------------------------------------------


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


# -- hooks that Kiln leaves alone -----------------------------------------------------------------------------------


@hooks(None, None, None)
def state_dict_hooks(compiler):
    """They are torch's business, before and after compiling, on either module."""
    log = []
    m = linear()
    m.register_state_dict_pre_hook(lambda module, prefix, keep: log.append("before"))
    m.register_state_dict_post_hook(
        lambda module, state, prefix, local: log.append(sorted(k.split(".")[-1] for k in state))
    )
    f = compiler(m)
    yield f(X), [value for value in f.state_dict().values()], list(log)
    m.register_load_state_dict_post_hook(lambda module, keys: log.append(keys.missing_keys))
    m.register_load_state_dict_pre_hook(lambda module, state, *rest: state.update(bias=torch.ones(3)))
    m.load_state_dict({"weight": torch.eye(3)})
    yield f(X), list(log)
    yield f(X + 1), list(log)


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
