"""Threads in one graph that is kept: none meets what a trace in another thread has put into the nodes."""

import contextlib
import sys
import threading

import pytest
import torch

import kiln
from kiln.engine.walk import exclusion
from kiln.engine.walk.refusal import Busy


@pytest.fixture
def frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def chain(count):
    leaves = [torch.full((3,), 0.5 + place * 0.1, requires_grad=True) for place in range(count)]
    y = torch.ones(3)
    for leaf in leaves:
        y = (y * leaf).sin() + leaf.exp() * y.tanh()
    return leaves, y.sum()


def blocks(kind, thread):
    if kind == "some" and thread % 2:
        return contextlib.nullcontext()
    return kiln.compiled_autograd.enable(lambda graph: graph)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("kind", ["all", "some"])
def test_threads_in_one_graph(kind, create_graph, frequent_switches):
    """Each asks for other gradients, so that each has its passes traced."""
    count = 10
    leaves, loss = chain(count)
    expected = torch.autograd.grad(loss, leaves, retain_graph=True)
    wrong = []

    def work(thread):
        with blocks(kind, thread):
            for turn in range(count - 2):
                chosen = [(turn + place * (thread + 1)) % count for place in range(3)]
                with_graph = create_graph and turn % 2 == 0
                try:
                    found = torch.autograd.grad(
                        loss, [leaves[place] for place in chosen], retain_graph=True, create_graph=with_graph
                    )
                except Exception as error:
                    wrong.append(error)
                else:
                    wrong.extend(
                        place for place, one in zip(chosen, found, strict=True) if not one.equal(expected[place])
                    )

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    with kiln.compiled_autograd.enable(lambda graph: graph):  # so that passes of torch's are seen from the beginning
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert not exclusion.exclusion.passes


def test_a_hook_of_torchs_pass_waits_for_a_thread():
    """That thread cannot have its turn, and so torch does its pass: nobody waits for ever."""
    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    handed = kiln.report.counters["engine handed over"]

    def work():
        with kiln.compiled_autograd.enable(lambda graph: graph):
            (w * w).sum().backward()

    def hook(gradient):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    y = x * 2
    y.register_hook(hook)
    with kiln.compiled_autograd.enable(lambda graph: graph):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    assert w.grad.equal(torch.full((3,), 2.0))
    assert kiln.report.counters["engine handed over"] == handed + 2
    with kiln.compiled_autograd.enable(lambda graph: graph):
        (w * w).sum().backward()
    assert w.grad.equal(torch.full((3,), 4.0))
    assert kiln.report.counters["engine handed over"] == handed + 2, "another time it is traced"


def test_tracing_waits_a_moment_only():
    own = exclusion.TraceExclusion()
    inside, leave = threading.Event(), threading.Event()

    def work():
        with own.torch_pass():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    with pytest.raises(Busy), own.tracing():
        raise AssertionError("not its turn")
    with own.torch_pass():  # of this thread
        pass
    leave.set()
    thread.join()
    with own.tracing(), own.tracing(), own.torch_pass():
        pass
    assert not own.passes
