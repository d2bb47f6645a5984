"""Kernels of attention that are loaded while a graph is compiled (`codegen/library_loads.py`)."""

from __future__ import annotations

import contextlib

import pytest
import torch

from kiln.codegen import library_loads
from tests.support.cuda_programs import cuda_graph_of

aten = torch.ops.aten
CPU = torch.device("cpu")
FLASH, BACKWARD = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_backward
Q = torch.randn(2, 3, 8, 16, dtype=torch.bfloat16)


def attention(q, k, v):
    return FLASH(q, k, v, 0.5, True, scale=0.25)[0]


def training(q, k, v, gradient):
    out, sums, _, _, longest_q, longest_k, seed, offset, _ = FLASH(q, k, v, 0.1, True)
    return BACKWARD(gradient, q, k, v, out, sums, None, None, longest_q, longest_k, 0.1, True, seed, offset)


def calls(function, *given, **how):
    return [call for call, _ in library_loads.calls_of(cuda_graph_of(function, given, **how))]


@pytest.fixture
def loads(monkeypatch):
    """What threads are told to load, on a machine without a GPU."""
    found = []
    monkeypatch.setattr(library_loads, "_loaded", set())
    monkeypatch.setattr(library_loads, "load", found.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    return found


def test_a_call_is_as_in_the_graph_but_for_dropout():
    ((target, arguments),) = calls(attention, Q, Q.transpose(1, 2).contiguous().transpose(1, 2), Q)
    q, k, v, dropout, is_causal = [library_loads.value_of(argument, CPU) for argument in arguments]
    assert (target, dropout, is_causal) == (FLASH.default, 0.0, True)
    for made in (q, k, v):
        assert made.shape == Q.shape and made.dtype is Q.dtype and made.stride(-1) == 1
        assert made.untyped_storage().nbytes() == 16 * 2  # one row


def test_calls_of_a_training_step():
    (forward, _), (backward, arguments) = calls(training, Q, Q, Q, Q)
    assert (forward, backward) == (FLASH.default, BACKWARD.default)
    names = [argument.name for argument in BACKWARD.default._schema.arguments]
    values = {name: library_loads.value_of(argument, CPU) for name, argument in zip(names, arguments, strict=False)}
    assert values["dropout_p"] == 0.0 and values["cum_seq_q"] is None and values["max_q"] == 8
    assert values["logsumexp"].shape == (2, 3, 8) and values["logsumexp"].is_contiguous()
    assert values["out"].shape == values["grad_out"].shape == Q.shape


def test_large_batches_become_smaller():
    large = torch.empty(1000, 1, 1, 1, dtype=torch.bfloat16).expand(1000, 12, 1024, 64)
    for argument in calls(attention, large, large, large)[0][1][:3]:
        size = argument[0]
        assert 1 <= size[0] < 1000 and size[1:] == (12, 1024, 64)
        assert torch.Size(size).numel() * 2 <= library_loads.MOST_BYTES


def test_graphs_of_other_calls_and_devices():
    assert calls(lambda q: q.exp() @ q.transpose(2, 3), Q) == []
    assert calls(attention, Q, Q, Q, stay=(0, 1, 2)) == []


def test_a_process_loads_once(loads):
    for layers in (1, 2):
        module = cuda_graph_of(lambda q, layers=layers: [attention(q, q, q) for _ in range(layers)], [Q])
        thread = library_loads.load_ahead(module)
        if thread is not None:
            thread.join()
    assert len(loads) == 1 and len(loads[0]) == 1


@pytest.mark.parametrize("reason", ["capturing", "deterministic", "threads"])
def test_nothing_is_loaded(loads, monkeypatch, reason):
    def fail(self):
        raise RuntimeError("can't start new thread")

    module = cuda_graph_of(attention, [Q, Q, Q])
    with contextlib.ExitStack() as stack:
        if reason == "capturing":
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        elif reason == "deterministic":
            stack.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            torch.use_deterministic_algorithms(True)
        else:
            monkeypatch.setattr(library_loads.threading.Thread, "start", fail)
        assert library_loads.load_ahead(module) is None
    assert loads == []


def test_what_fails_is_left_to_the_program(monkeypatch):
    made = []

    def failing(*arguments):
        made.append(arguments)
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())

    class Stream:
        device = CPU

    library_loads.load([((failing, (1, 0.0)), Stream()), ((failing, (2,)), Stream())])
    assert made == [(1, 0.0), (2,)]
