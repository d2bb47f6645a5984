"""Compiled functions on streams, in threads and on devices as eager runs there, with CUDA graphs and without."""

from __future__ import annotations

import threading

import pytest
import torch

import kiln
from kiln.codegen.cuda_graphs import recordable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LONG = 20_000_000  # cycles that a stream sleeps: some milliseconds


@pytest.fixture(autouse=True)
def small_programs(monkeypatch):
    monkeypatch.setattr(recordable, "FEWEST_STEPS", 0)


@pytest.fixture(params=[False, True], ids=["plain", "graphs"])
def compiled(request, small_programs):
    """A function, compiled and called often enough to be recorded."""

    def f(x, w):
        return torch.sin(x) @ w + 1

    made = kiln.compile(f, backend="kiln", dynamic=False, options={"cuda_graphs": request.param})
    made.eager = f
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    for _ in range(4):
        made(x, w)
        made(x.clone(), w)
    torch.cuda.synchronize()
    return made


def test_work_is_on_the_current_stream(compiled):
    x, w = torch.zeros(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    new = torch.randn(64, 64, device="cuda")
    expected = compiled.eager(new, w)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        x.copy_(new)
        found = compiled(x, w)
    stream.synchronize()
    torch.testing.assert_close(found, expected)


def test_streams_in_turns(compiled):
    """Recordings share memory: what runs on another stream waits for the one before."""
    w = torch.randn(64, 64, device="cuda")
    inputs = [torch.randn(64, 64, device="cuda") for _ in range(8)]
    expected = [compiled.eager(x, w) for x in inputs]
    streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()]
    torch.cuda.synchronize()
    found = []
    for number, x in enumerate(inputs):
        with torch.cuda.stream(streams[number % 3]):
            if number % 3 == 1:
                torch.cuda._sleep(LONG)
            found.append(compiled(x, w))
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected)


def test_events_between_streams(compiled):
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(4):
        with torch.cuda.stream(first):
            torch.cuda._sleep(LONG // 10)
            y = compiled(x, w)
            done = torch.cuda.Event()
            done.record()
        with torch.cuda.stream(second):
            second.wait_event(done)
            z = y * 2
        torch.cuda.synchronize()
        torch.testing.assert_close(z, compiled.eager(x, w) * 2)


def test_a_backward_on_the_stream_of_its_forward(compiled):
    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(5):
        x = torch.randn(64, 64, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG // 10)
            loss = compiled(x, w).square().sum()
        loss.backward()  # torch's engine runs it on the forward's stream
        found, w.grad = w.grad, None
        compiled.eager(x, w).square().sum().backward()
        torch.testing.assert_close(found, w.grad, rtol=1e-5, atol=1e-3)  # of sums of 64 products of about 10
        w.grad = None


def test_a_new_thread(compiled):
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    found = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(compiled(x, w)))
        thread.start()
        thread.join()
    torch.testing.assert_close(found, [compiled.eager(x, w)] * 3)


def test_a_graph_of_the_user(compiled):
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(x, w)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(found, compiled.eager(x, w))
        torch.testing.assert_close(compiled(x, w), compiled.eager(x, w))


def test_an_operator_that_waits_for_the_gpu():
    """It cannot be recorded; everything goes on."""

    def f(x):
        return torch.linalg.inv(x) * 2

    compiled = kiln.compile(f, backend="kiln", dynamic=False, options={"cuda_graphs": True})
    other = kiln.compile(lambda x: torch.cos(x) + 1, backend="kiln", dynamic=False, options={"cuda_graphs": True})
    for _ in range(4):
        x = torch.randn(5, 5, device="cuda")
        torch.testing.assert_close(compiled(x), f(x))
        torch.testing.assert_close(other(x), torch.cos(x) + 1)
    torch.empty(1000, 1000, device="cuda").sum().item()


def test_memory_is_freed():
    def f(x):
        return (torch.sin(x) @ x).relu() @ x

    compiled = kiln.compile(f, backend="kiln", dynamic=False, options={"cuda_graphs": True})
    x = torch.randn(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(5):
        compiled(x)
    assert torch.cuda.memory_reserved() > before[1]
    del compiled
    kiln.reset()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before[0] + (40 << 20)  # a workspace of cuBLAS, that of the thread, stays


def test_another_device_is_another_program():
    compiled = kiln.compile(lambda x: torch.sin(x) + 1, backend="kiln", mode="reduce-overhead")
    for _ in range(4):
        for device in ("cuda", "cpu"):
            x = torch.randn(10, device=device)
            found = compiled(x)
            assert found.device == x.device
            torch.testing.assert_close(found, torch.sin(x) + 1)
