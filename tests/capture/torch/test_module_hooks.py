"""Hooks on modules: whatever kind, wherever registered, removed or replaced, they are noticed and run as in eager.

Each scenario is played in eager and compiled (``scenarios.py``): results of each step are compared, and whether it
recompiled, and for what reason. ``fullgraph`` says that the hooks are captured, not left to Python.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import kiln
from tests.support.hooked_modules import (
    Affine,
    Keyword,
    Outer,
    Parallel,
    X,
    double,
    gradients,
    linear,
    negate_input,
    nothing,
    plus_one,
)
from tests.support.scenarios import ANY, BACK, Scenarios, play

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


SEEN: list = []
LATEST = None


def remember_globally(module, args, output):
    global LATEST
    SEEN.append(output.detach())
    LATEST = output


# -- forward hooks and pre-hooks, one module ------------------------------------------------------------------------


@whole(None, HOOK, BACK, HOOK, BACK)
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


# -- numbers of hooks, which are new ones each time -----------------------------------------------------------------


@whole(None, HOOK, *([BACK] * 8))
def registered_again_and_again(compiler):
    """As extractors of features do it; more often than entries are allowed."""
    saved = {}
    m = nn.Sequential(linear(), nn.ReLU())
    f = compiler(m)
    for k in range(5):
        yield f(X + k), dict(saved)
        saved.clear()
        with (
            m[0].register_forward_hook(lambda module, args, output: saved.update(first=output)),
            m[0].register_forward_hook(lambda module, args, kwargs, output: output + len(kwargs), with_kwargs=True),
            m[1].register_forward_pre_hook(negate_input, prepend=True),
        ):
            yield f(X + k), dict(saved)


@whole(None, "hooks", BACK)
def another_one_with_keywords(compiler):
    """The same hooks in the same order; which of them takes keywords is what is different."""
    log = []
    m = Keyword()

    def hook(module, *rest):
        log.append(len(rest))

    f = compiler(lambda x: m(x, scale=2.0))
    for kinds in ((True, False), (False, True), (True, False)):
        handles = [m.register_forward_hook(hook, with_kwargs=kind) for kind in kinds]
        yield f(X), list(log)
        log.clear()
        for handle in handles:
            handle.remove()


@hooks(None, ANY, ANY)
def the_program_looks_at_numbers(compiler):
    m = linear()
    f = compiler(m)

    def hook(module, args, output):
        return output + min(module._forward_hooks)

    for number in (100, 100, 300):
        m._forward_hooks[number] = hook
        yield f(X)
        del m._forward_hooks[number]


@hooks(ANY, ANY, ANY)
def removed_by_number(compiler):
    log = []
    m = linear()
    f = compiler(m)

    def once(module, args, output):
        log.append(len(module._forward_hooks))
        handle.remove()
        return output * 2

    for _ in range(3):
        m.register_forward_hook(plus_one)
        handle = m.register_forward_hook(once)
        yield f(X), list(log), len(m._forward_hooks)


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


# -- hooks that change what runs ------------------------------------------------------------------------------------


@hooks(None, None, HOOK)
def raises_and_the_program_handles_it(compiler):
    m = linear()

    def fail(module, args, output):
        raise ValueError("from the hook")

    def program(x):
        try:
            return m(x)
        except ValueError as error:
            return x, str(error)

    handle = m.register_forward_hook(fail)
    f = compiler(program)
    yield f(X)
    yield f(X)
    handle.remove()
    yield f(X)


@hooks(ANY, ANY, ANY)
def looks_at_values(compiler):
    log = []
    m = nn.Sequential(linear(), nn.ReLU())
    m[0].register_forward_hook(lambda module, args, output: log.append(output.sum().item()))
    m[1].register_forward_hook(lambda module, args, output: log.append(float(output.detach().numpy().max())))
    f = compiler(m)
    for k in range(3):
        yield f(X + k), list(log)


@hooks(ANY, ANY, ANY)
def registers_another(compiler):
    log = []
    m = nn.Sequential(linear(), nn.ReLU())

    def register(module, args, output):
        if not m[1]._forward_hooks:
            m[1].register_forward_hook(lambda module, args, output: log.append("second") or output + 1)

    m[0].register_forward_hook(register)
    f = compiler(m)
    for k in range(3):
        yield f(X + k), list(log)


@hooks(ANY, ANY)
def clears_the_dictionary(compiler):
    m = nn.Sequential(linear(), nn.ReLU())

    def clear(module, args, output):
        module._forward_hooks.clear()
        return output * 2

    m[0].register_forward_hook(clear)
    f = compiler(m)
    yield f(X), len(m[0]._forward_hooks)
    yield f(X)


@whole(None, HOOK, BACK, HOOK)
def dictionary_replaced(compiler):
    m = linear()
    f = compiler(m)
    yield f(X)
    m._forward_hooks = type(m._forward_hooks)({0: double})
    yield f(X)
    m._forward_hooks = type(m._forward_hooks)()
    yield f(X)
    m._forward_hooks = {5: plus_one}
    yield f(X)


@hooks(ANY, ANY, ANY)
def puts_another_module_in_place(compiler):
    m = nn.Sequential(linear(), nn.ReLU())

    def swap(module, args, output):
        m[1] = nn.Tanh()

    m[0].register_forward_hook(swap)
    f = compiler(m)
    for _ in range(3):
        yield f(X), type(m[1]).__name__


@whole(None, None, None)
def keeps_a_moving_average(compiler):
    m = linear()
    m.register_buffer("average", torch.zeros(3))

    def update(module, args, output):
        with torch.no_grad():
            module.average.mul_(0.9).add_(output.mean(0), alpha=0.1)

    m.register_forward_hook(update)
    f = compiler(m)
    for k in range(3):
        yield f(X + k), m.average.clone()


@whole(None, None)
def sees_the_very_objects(compiler):
    log, latest = [], [None]
    m = nn.Sequential(linear(), nn.ReLU())
    m[0].register_forward_hook(lambda module, args, output: latest.__setitem__(0, output))
    m[1].register_forward_hook(lambda module, args, output: log.append((args[0] is latest[0], module is m[1], output)))
    f = compiler(m)
    for _ in range(2):
        result = f(X)
        yield [(same_input, same_module, output is result) for same_input, same_module, output in log]
        log.clear()


@hooks(ANY, ANY)
def asks_for_gradients_of_activations(compiler):
    kept = []
    m = nn.Sequential(linear(), nn.ReLU())

    def retain(module, args, output):
        output.retain_grad()
        kept.append(output)

    m[0].register_forward_hook(retain)
    f = compiler(m)
    for k in range(2):
        x = (X + k).requires_grad_()
        f(x).sum().backward()
        yield x.grad, [activation.grad for activation in kept]


@whole(None, None, None)
def copied_with_the_module(compiler):
    m = nn.Sequential(linear(), nn.ReLU())
    m[0].register_forward_hook(double)
    f = compiler(m)
    yield f(X)
    yield compiler(copy.deepcopy(m))(X)
    yield copy.deepcopy(f)(X)


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
