"""``kiln.compiled_autograd``: who does a backward pass, in which block and thread, and that torch is left as it was."""

import gc
import sys
import threading
import types

import pytest
import torch

import kiln
from kiln import compiled_autograd
from kiln.engine.run import scopes
from kiln.report import engine_events
from kiln.testing import CompileCounter

REAL = torch.autograd.Variable._execution_engine


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Backward passes that come to Kiln: the compiler of each. Torch's engine does them."""
    made = []

    def run_backward(compiler, engine, *args, **kwargs):
        assert engine is REAL
        made.append(compiler)
        return engine.run_backward(*args, **kwargs)

    stub = types.ModuleType("kiln.engine.run.backward_pass")
    stub.run_backward = run_backward
    monkeypatch.setitem(sys.modules, "kiln.engine.run.backward_pass", stub)
    yield made
    assert torch.autograd.Variable._execution_engine is REAL
    assert not compiled_autograd.enabled()


def one(graph):
    return graph


def other(graph):
    return graph


def backward():
    x = torch.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_every_way_to_start_a_backward_pass(calls):
    x = torch.ones(2, requires_grad=True)
    with compiled_autograd.enable(one):
        (x * 2).sum().backward()
        torch.autograd.backward([(x * 2).sum()], inputs=[x])
        (found,) = torch.autograd.grad((x * x).sum(), x)
        torch.autograd.grad((x * x).sum(), x, create_graph=True)
    assert calls == [one] * 4
    assert x.grad.tolist() == [4, 4] and found.tolist() == [2, 2]
    backward()
    assert calls == [one] * 4


def test_blocks_nest(calls):
    with compiled_autograd.enable(one):
        with compiled_autograd.enable(other):
            backward()
            with compiled_autograd.disable():
                assert not compiled_autograd.enabled()
                backward()
                with compiled_autograd.enable(one):
                    backward()
            backward()
        backward()
    assert calls == [other, one, other, one]


def test_disable_alone_replaces_nothing(calls):
    with compiled_autograd.disable():
        assert torch.autograd.Variable._execution_engine is REAL
        backward()
    assert calls == []


def test_decorators_and_blocks_entered_again(calls):
    block = compiled_autograd.enable(one)

    @block
    def decorated(depth):
        if depth:
            decorated(depth - 1)
        backward()

    @compiled_autograd.disable()
    def left_alone():
        backward()

    with block:
        decorated(2)
        left_alone()
        backward()
    assert calls == [one] * 4


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_nothing_stays_after_an_exception(calls, error):
    def hook(gradient):
        raise error

    x = torch.ones(2, requires_grad=True)
    product = x * 2
    product.register_hook(hook)
    with pytest.raises(error):
        with compiled_autograd.enable(one), compiled_autograd.enable(other):
            product.sum().backward()
    assert calls == [other]


def test_generators_leave_blocks_in_any_order(calls):
    def suspended(compiler):
        with compiled_autograd.enable(compiler):
            yield

    first, second = suspended(one), suspended(other)
    next(first)
    next(second)
    backward()
    first.close()
    backward()
    with compiled_autograd.disable():
        second.close()
        backward()
    backward()
    assert calls == [other, other]


def test_generator_that_is_collected_in_another_thread(calls):
    def suspended():
        with compiled_autograd.enable(one):
            yield

    kept = [suspended()]
    next(kept[0])

    def drop():
        kept.clear()
        gc.collect()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert not compiled_autograd.enabled()


def test_other_threads_are_left_alone(calls):
    entered, leave = threading.Event(), threading.Event()
    seen = []

    def work():
        with compiled_autograd.enable(other):
            entered.set()
            leave.wait(30)
            backward()
            seen.append(compiled_autograd.enabled())

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(30)
    assert not compiled_autograd.enabled()
    backward()
    assert calls == []
    with compiled_autograd.enable(one):
        backward()
    assert torch.autograd.Variable._execution_engine is not REAL  # the other thread is still in its block
    leave.set()
    thread.join()
    assert calls == [one, other] and seen == [True]


def test_one_block_in_several_threads(calls):
    block = compiled_autograd.enable(one)
    barrier = threading.Barrier(4)

    def work():
        for _ in range(20):
            with block:
                barrier.wait(30)
                backward()
                barrier.wait(30)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [one] * 80


def test_reset_leaves_the_blocks_of_this_thread(calls, monkeypatch):
    dropped = []
    monkeypatch.setattr(scopes, "forget_graphs", lambda: dropped.append(True))
    with compiled_autograd.enable(one), compiled_autograd.enable(other):
        compiled_autograd.reset()
        assert torch.autograd.Variable._execution_engine is REAL
        backward()
    assert calls == [] and dropped == [True]


def test_everything_else_is_torchs_own_engine(calls):
    done = []

    class Callback(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            torch.autograd.Variable._execution_engine.queue_callback(lambda: done.append(True))
            return gradient

    with compiled_autograd.enable(one):
        Callback.apply(torch.ones(2, requires_grad=True)).sum().backward()
        assert torch.autograd.Variable._execution_engine.is_checkpoint_valid()
        with pytest.raises(AttributeError):
            torch.autograd.Variable._execution_engine.no_such_name
        kept = torch.autograd.Variable._execution_engine
    assert done == [True]
    assert kept.is_checkpoint_valid()


def test_somebody_in_front_of_the_stand_in(calls, monkeypatch):
    class Front:
        def __init__(self, behind):
            self.behind = behind

        def __getattr__(self, name):
            return getattr(self.behind, name)

    owner = torch.autograd.Variable
    with compiled_autograd.enable(one):
        inner = owner._execution_engine
        owner._execution_engine = Front(inner)
        backward()
    backward()
    with compiled_autograd.enable(one):
        backward()
        owner._execution_engine = inner
    backward()
    assert calls == [one, one]


def test_backward_passes_inside_backward_passes(calls):
    @torch.enable_grad()
    def hook(gradient):
        backward()
        return gradient * 2

    x = torch.ones(2, requires_grad=True)
    product = x * 2
    product.register_hook(hook)
    with compiled_autograd.enable(one):
        product.sum().backward()
    assert calls == [one, one] and x.grad.tolist() == [4, 4]


def test_what_runs_while_kiln_compiles_is_left_to_torch(calls):
    def backend(module, inputs):
        backward()
        return module.forward

    with compiled_autograd.enable(one):
        assert kiln.compile(lambda x: x + 1, backend=backend)(torch.ones(1)).item() == 2
        assert calls == []
        backward()
    assert calls == [one]


def test_a_compiler_must_be_callable():
    with pytest.raises(kiln.exc.NotCallable, match="enable"):
        compiled_autograd.enable("eager")


# -- the setting ----------------------------------------------------------------------------------------------------


def step():
    """A backward pass inside a function to compile."""
    backward()


@pytest.mark.parametrize("disabled", [False, True])
def test_setting_is_read_by_compile(calls, disabled):
    function = kiln.disable(step) if disabled else step
    without = kiln.compile(function)
    with kiln.config.patch(compiled_autograd=True):
        with_engine, decorator = kiln.compile(function), kiln.compile(dynamic=True)
        without()
        assert calls == []
    with_engine()
    decorator(function)()
    assert len(calls) == 2
    kiln.compile(with_engine)()
    kiln.disable(with_engine)()
    without()
    assert len(calls) == 2


def test_setting_for_methods_modules_and_what_is_compiled_already(calls):
    class Model(torch.nn.Linear):
        def method(self):
            backward()

        def forward(self, x):
            backward()
            return super().forward(x)

    model = Model(2, 2)
    with kiln.config.patch(compiled_autograd=True):
        module, method, function = kiln.compile(model), kiln.compile(model.method), kiln.compile(step)
        assert kiln.compile(module) is module and kiln.compile(function) is function
    module(torch.ones(2))
    method()
    function()
    assert len(calls) == 3
    assert function.__name__ == "step" and function.__doc__ == step.__doc__


def test_functions_with_the_same_options_have_one_compiler(calls):
    with kiln.config.patch(compiled_autograd=True):
        functions = [kiln.compile(step), kiln.compile(lambda: backward())]
        different = kiln.compile(step, fullgraph=True)
    for function in functions:
        function()
    assert calls[0] is calls[1]
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    assert calls[0](graph)(torch.ones(1)).item() == 2
    with pytest.raises(kiln.exc.Unsupported):
        different()


def test_compiled_function_inside_another_is_part_of_its_graph(calls):
    counter = CompileCounter()
    with kiln.config.patch(compiled_autograd=True):
        inner = kiln.compile(lambda x: x * 2)
        model = kiln.compile(torch.nn.Linear(2, 2))
        outer = kiln.compile(lambda x: inner(model(x)) + 1, backend=counter, fullgraph=True)
    outer(torch.ones(2))
    assert counter.frame_count == 1


# -- events ---------------------------------------------------------------------------------------------------------


class Hearer:
    def __init__(self):
        self.on, self.heard = False, []

    def is_interested(self):
        return self.on

    def receive(self, kind, text):
        self.heard.append((kind, text))


def tell_everything():
    engine_events.cache_miss("SumBackward0", 0, 7, [1, 2])
    engine_events.dynamic_size(3, "SumBackward0", 1)
    engine_events.handed_over("a test of telling")
    engine_events.handed_over("a test of telling")
    engine_events.captured(torch.fx.symbolic_trace(lambda x: x + 1))


LINES = [
    "Cache miss due to new autograd node: SumBackward0 (NodeCall 0) with key size 7, previous key sizes=[1, 2]",
    "Cache miss due to changed shapes: marking size idx 3 of SumBackward0 (NodeCall 1) as dynamic",
    "a backward pass is left to torch's engine: a test of telling",
]


@pytest.mark.parametrize(("log", "graph", "lines"), [("engine", 1, 3), ("backward", 1, 0), ("graph", 0, 0)])
def test_logs(capsys, log, graph, lines):
    engine_events.reset()
    with kiln.config.patch(log={log}):
        tell_everything()
    text = capsys.readouterr().err
    assert [line for line in text.splitlines() if line.removeprefix(f"[kiln {log}] ") in LINES] == [
        f"[kiln {log}] {line}" for line in LINES[:lines]
    ]
    assert text.count("def forward") == graph


@pytest.mark.covers("test_compiled_autograd::test_snapshot_verbose_logs_flag")
def test_listeners_are_asked_when_a_block_is_entered(monkeypatch):
    hearer = Hearer()
    monkeypatch.setattr(engine_events, "listeners", [hearer])
    engine_events.reset()
    sys.modules["kiln.engine.run.backward_pass"].run_backward = lambda *args, **kwargs: tell_everything()
    with compiled_autograd.enable(one):
        hearer.on = True
        torch.ones(1, requires_grad=True).backward()
    assert hearer.heard == []
    with compiled_autograd.enable(one):
        hearer.on = False
        torch.ones(1, requires_grad=True).backward()
    tell_everything()
    assert [text for _, text in hearer.heard[:3]] == LINES
    assert [kind for kind, _ in hearer.heard] == ["cache", "cache", "handed over", "graph"]


def test_counters():
    before = dict(kiln.report.counters)
    engine_events.captured(torch.fx.symbolic_trace(lambda x: x + 1))
    engine_events.handed_over("for a test")
    engine_events.handed_over("for a test")
    assert kiln.report.counters["engine captures"] - before.get("engine captures", 0) == 1
    assert kiln.report.counters["engine handed over"] - before.get("engine handed over", 0) == 2
