"""Compiled functions called from many threads at once, first call included, give eager's results."""

import threading

import pytest
import torch

import kiln
from kiln.testing import CompileCounter, same

THREADS = 8


def at_once(*jobs, timeout=120):
    """Run each job in a thread, all starting together; re-raises the first error."""
    barrier = threading.Barrier(len(jobs))
    errors, results = [], [None] * len(jobs)

    def work(index):
        try:
            barrier.wait(timeout)
            results[index] = jobs[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


X = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("attempt", range(3))
def test_first_call_together(attempt):
    counter = CompileCounter()

    def f(x, n):
        for i in range(4):
            x = torch.sin(x) + i
        return x * n

    compiled = kiln.compile(f, backend=counter)
    results = at_once(*[lambda: compiled(X, 3) for _ in range(THREADS)])
    assert all(same(result, f(X, 3)) for result in results)
    assert counter.frame_count == 1


def test_many_functions_with_recompiles():
    def make(k):
        def f(x, how, items):
            y = x * k + len(how)
            items.append(y)
            if how == "ccc":
                kiln.graph_break()
            return y @ y.t() + len(items)

        return f

    plain = [make(k) for k in range(6)]
    compiled = [kiln.compile(f, backend=CompileCounter()) for f in plain]

    def job(seed):
        def run():
            order = torch.randperm(6, generator=torch.Generator().manual_seed(seed)).tolist()
            for step, index in enumerate(order * 3):
                size = 2 + (step + seed) % 4
                x = torch.arange(float(size * 3)).reshape(size, 3)
                how = "abc"[step % 3] * (1 + step % 3)
                ours, theirs = [], []
                assert same(compiled[index](x, how, ours), plain[index](x, how, theirs))
                assert same(ours, theirs)

        return run

    with kiln.config.patch(recompile_limit=64):
        at_once(*[job(seed) for seed in range(THREADS)])


def test_modes_are_of_a_thread():
    def f(x):
        with torch.no_grad():
            y = x * 2
        return y + x if torch.is_grad_enabled() else y - x

    compiled = kiln.compile(f, backend=CompileCounter())

    def job(number):
        def run():
            for _ in range(20):
                with torch.set_grad_enabled(number % 2 == 0):
                    x = X.clone().requires_grad_()
                    expected, result = f(x), compiled(x)
                    assert same(expected, result)
                    assert result.requires_grad == expected.requires_grad == (number % 2 == 0)

        return run

    at_once(*[job(number) for number in range(THREADS)])


def test_training_in_threads():
    """Modules of one class, one per thread, sharing what is compiled."""

    class Net(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.one = torch.nn.Linear(3, 4)
            self.two = torch.nn.Linear(4, 1)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.two(torch.tanh(self.one(x)))

    def train(net, model):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(10):
            optimizer.zero_grad()
            model(X).pow(2).mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in net.parameters()], net.calls

    counter = CompileCounter()
    nets = [Net(seed) for seed in range(THREADS)]
    models = [kiln.compile(net, backend=counter) for net in nets]
    results = at_once(*[lambda n=n, m=m: train(n, m) for n, m in zip(nets, models, strict=True)])
    for seed, result in enumerate(results):
        net = Net(seed)
        assert same(result, train(net, net))
    assert counter.frame_count <= 4


def test_disabled_in_one_thread_only():
    counter = CompileCounter()
    compiled = kiln.compile(lambda x: x + 1, backend=counter)
    inside, done = threading.Event(), threading.Event()

    def off():
        with kiln.disable():
            inside.set()
            assert done.wait(60)
            return compiled(X)

    def on():
        assert inside.wait(60)
        try:
            return compiled(X)
        finally:
            done.set()

    assert all(same(result, X + 1) for result in at_once(off, on))
    assert counter.frame_count == 1


def test_backend_that_calls_compiled_code_from_another_thread():
    """Compiling must not hold up a thread that the compiler itself waits for, where that thread compiles nothing."""
    helper = kiln.compile(lambda x: x + 1, backend="eager")
    helper(X)

    def backend(graph_module, example_inputs):
        (result,) = at_once(lambda: helper(X))
        assert same(result, X + 1)
        return graph_module.forward

    assert same(kiln.compile(lambda x: x * 2, backend=backend)(X), X * 2)


def test_reset_while_others_call():
    def f(x):
        return torch.cos(x) * 2

    compiled = kiln.compile(f, backend="eager")
    expected = f(X)

    def call():
        for _ in range(60):
            assert same(compiled(X), expected)

    def reset():
        for _ in range(5):
            kiln.reset()

    at_once(reset, *[call] * (THREADS - 1))


def test_events_are_heard_by_the_thread_that_listens():
    from kiln.report import events

    compiled = [kiln.compile(lambda x, k=k: x + k, backend=CompileCounter()) for k in range(THREADS)]

    def job(function):
        def run():
            with events.listen() as heard:
                function(X)
            return len(heard.graphs)

        return run

    assert at_once(*[job(function) for function in compiled]) == [1] * THREADS
