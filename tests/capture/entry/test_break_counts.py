"""How often the compiler is at work: a break of the program counts once, however many frames it goes through."""

from __future__ import annotations

import gc
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from kiln.capture.entry import caller_breaks, routing
from kiln.capture.entry.dispatchers import FrameCache
from kiln.capture.interpreter import frame
from kiln.report import events
from kiln.testing import CompileCounter, check, same

X = torch.arange(10.0) / 10


@kiln.disable
def unsupported(a, b):
    return a


class Basic(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 10)
        self.scale = torch.randn(1, 10)

    def forward(self, x):
        return F.relu(self.linear(x)) * self.scale


class BreaksInMethod(nn.Module):
    """forward, a method, then the break."""

    def __init__(self):
        super().__init__()
        self.layer = Basic()
        self.scale = torch.randn(1, 10)

    def call_and_scale(self, module, x):
        x = module(x) * self.scale
        return unsupported(x, x)

    def forward(self, x):
        return x + self.call_and_scale(self.layer, x)


class BreaksInModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Basic()
        self.scale = torch.randn(1, 10)

    def forward(self, x):
        x = self.layer(x) * self.scale
        return unsupported(x, x)


class CallsBreakingModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = BreaksInModule()

    def forward(self, x):
        return 1 + self.module(x * 1.5)


class Wrapped(nn.Module):
    """Many modules around the one that breaks."""

    def __init__(self, depth):
        super().__init__()
        self.inner = nn.Sequential(Wrapped(depth - 1) if depth else BreaksInModule())

    def forward(self, x):
        return self.inner(x) + 1


# name -> (module, graphs, operations, frames compiled)
COUNTED = {
    "method": (BreaksInMethod, 2, 5, 6),
    "module": (CallsBreakingModule, 3, 6, 6),
    "nested": (lambda: Wrapped(3), 2, 5, 9),  # what goes on after the break is one piece of code in all levels
}


@pytest.mark.covers("test_modules::test_unsupportedmethod", "test_modules::test_unsupportedmodule")
@pytest.mark.parametrize("name", COUNTED)
def test_break_inside_modules(name):
    make, graphs, operations, frames = COUNTED[name]
    before = events.counters["frames"]
    report = check(make(), X, graphs=graphs, ops=operations, breaks=1, recompiles=0)
    assert events.counters["frames"] - before == frames
    assert report.returned is not None


@pytest.mark.parametrize("hooked", [False, True])
def test_modules_of_many_classes_do_not_recompile_each_other(hooked):
    """``Module.__call__`` is one function for all of them: where it is not inlined it is Python's, and calls them."""

    def layer(number):
        def forward(self, x):
            kiln.graph_break()
            return x + number

        own = types.FunctionType(forward.__code__.replace(), globals(), closure=forward.__closure__)
        return type(f"Layer{number}", (nn.Module,), {"forward": own})()

    model = nn.Sequential(*(layer(number) for number in range(12)))
    for module in model.modules() if hooked else ():
        module.register_forward_hook(lambda module, args, output: output * 2)
    counter = CompileCounter()
    compiled = kiln.compile(model, backend=counter)
    with events.listen() as heard:
        assert same(compiled(X), model(X))
        assert same(compiled(X + 1), model(X + 1))
    assert heard.recompiles == [] and heard.skips == []
    assert counter.frame_count == 12 + hooked  # the hook is compiled by itself, once


def test_hooks_after_a_break():
    """Hooks that come later are seen by a call that was not inlined; so are others of what the call looks at."""
    model = CallsBreakingModule()
    compiled = kiln.compile(model, backend="eager")
    log = []
    assert same(compiled(X), model(X))
    hook = model.module.register_forward_hook(lambda module, args, output: log.append("hook") or output * 2)
    assert same(compiled(X), model(X)) and log == ["hook"] * 2
    hook.remove()
    assert same(compiled(X), model(X)) and log == ["hook"] * 2
    with nn.modules.module.register_module_forward_pre_hook(lambda module, args: log.append("all")):
        assert same(compiled(X), model(X))
    assert log.count("all") == 2 * sum(1 for _ in model.modules())
    model.module.forward = lambda x: x * 7
    assert same(compiled(X), model(X))
    del model.module.forward
    model.module._call_impl = lambda x: x * 9
    assert same(compiled(X), model(X))


def test_a_break_in_a_hook_counts_once():
    """Another frame is compiled before the one that breaks: the module's own ``forward``."""
    model = Basic()
    model.register_forward_hook(lambda module, args, output: unsupported(output * 2, output))
    check(model, X, breaks=1, recompiles=0)


# -- what is kept, and what is not ----------------------------------------------------------------------------------


def makes_callee(x):
    def inner(y):
        kiln.graph_break()
        return y + x

    return inner(x * 2) * 2


def test_functions_made_anew_are_compiled_once():
    """Also if the garbage collector has taken the one they were compiled for."""
    counter = CompileCounter()
    compiled = kiln.compile(makes_callee, backend=counter)
    compiled(X)
    before = counter.frame_count, events.counters["frames"]
    for _ in range(2):
        gc.collect()
        assert same(compiled(X), makes_callee(X))
    assert (counter.frame_count, events.counters["frames"]) == before


def test_callees_do_not_keep_what_was_compiled_for_callers_that_are_gone():
    """A function that many others have called through a break has routes of those that are still there."""
    kept = kiln.compile(lambda x: leaf(x) - 1, backend="eager")
    kept(X)
    for _ in range(5):
        kiln.compile(lambda x: leaf(x) + 1, backend="eager", options={})(X)
        kiln.compile(lambda x: leaf(x) + 1, backend=CompileCounter())(X)
        gc.collect()
    assert len(leaf.__dict__[routing.ROUTES]) <= 3
    assert same(kept(X), leaf(X) - 1)


def test_models_that_are_gone_leave_nothing_behind():
    """Hooks and a break: the calls go through code that all modules share, which must not hold on to any."""

    def use():
        model = CallsBreakingModule()
        model.module.register_forward_hook(lambda module, args, output: output * 2)
        kiln.compile(model, backend=CompileCounter())(X)

    def alive():
        gc.collect()
        return sum(issubclass(type(item), FrameCache | nn.Module) for item in gc.get_objects())

    use()
    before = alive()
    for _ in range(5):
        use()
    assert alive() <= before


def test_closures_of_one_code_fall_back_to_themselves():
    """Where a graph raises, eager takes over: the function that was called, not the one that was captured."""

    def make(fallback):
        def look_up(x, index):
            try:
                return x[index] + 1
            except IndexError:
                return fallback

        return kiln.compile(look_up, backend="eager")

    for name in "abc":
        function = make([name])
        assert same(function(X, torch.tensor([1])), X[1:2] + 1)
        assert function(X, torch.tensor([99])) == [name]


# -- functions ------------------------------------------------------------------------------------------------------


def leaf(x):
    y = x.sin()
    kiln.graph_break()
    return y + 1


def middle(x):
    return leaf(x * 2) * 3


def outer(x):
    return middle(x + 1) - 1


def twice(x):
    return leaf(x) + middle(x)


def in_loop(x):
    for _ in range(3):
        x = middle(x)
    return x


def in_inner_loop(x):
    return in_loop(x) + 1


def handled(x):
    try:
        return middle(x)
    except ValueError:
        return x


def by_operator(x):
    class Number:
        def __add__(self, other):
            return leaf(other)

    return Number() + x


def by_generator(x):
    return [value + 1 for value in (leaf(y) for y in (x, x + 1))]


FUNCTIONS = [(outer, 1), (twice, 2), (in_loop, 1), (in_inner_loop, 1), (handled, 1)]


@pytest.mark.parametrize("program, breaks", FUNCTIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_one_break_in_functions(program, breaks):
    check(program, X, calls=2, breaks=breaks, recompiles=0)


@pytest.mark.parametrize("program", [by_operator, by_generator], ids=lambda program: program.__name__)
def test_breaks_in_callees_that_are_not_compiled(program):
    """Operators and generators run natively where they break: the count is that of the frames that were captured."""
    report = check(program, X)
    assert report.breaks


def test_breaks_are_told_once_and_in_full():
    explanation = kiln.explain(outer)(X)
    (told,) = explanation.breaks
    assert [function for _, _, function in told.stack] == ["outer", "middle", "leaf"]


def test_a_break_foretold_does_not_outlive_the_call():
    """The callee breaks for one argument only: later, where it does not, it is captured whole (by itself: its caller
    has an entry that fits, and calls it)."""

    def callee(x, noisy):
        y = x + 1
        if noisy:
            print("noise", end="")
        return y * 2

    counter = CompileCounter()
    compiled = kiln.compile(lambda x, noisy: callee(x, noisy) - 1, backend=counter)
    compiled(X, True)
    assert caller_breaks._latest.reason is None
    counter.clear()
    compiled(X, False)
    assert (counter.frame_count, counter.op_count) == (1, 2)


def level(depth):
    """Modules in modules, each of a class and with code of its own; the innermost breaks."""

    def forward(self, x):
        if self.inner is not None:
            return self.inner(x + 1)
        kiln.graph_break()
        return x

    own = types.FunctionType(forward.__code__.replace(), globals())
    made = type(f"Level{depth}", (nn.Module,), {"forward": own})()
    made.inner = level(depth - 1) if depth else None
    return made


def test_the_callee_is_not_traced_through_again(monkeypatch):
    """Each level knows from its caller where it is going to break: the work grows with the levels, not their square."""
    made = 0
    original = frame.Frame.__init__

    def counted(self, *args):
        nonlocal made
        made += 1
        original(self, *args)

    monkeypatch.setattr(frame.Frame, "__init__", counted)
    counts = []
    for depth in (8, 16, 24):
        made = 0
        kiln.compile(level(depth), backend="eager")(X)
        counts.append(made)
    assert counts[2] - counts[1] == counts[1] - counts[0] < 80, counts
