"""Launches that run together: which do, that none touches memory of another, and that results are eager's."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from kiln.loops import ir
from kiln.loops.steps import Call, estimated_bytes, uses_of
from kiln.lower import ops  # noqa: F401  (fills the table of lowerings)
from kiln.lower.lowering import Lowering
from kiln.lower.schedule import concurrency
from kiln.lower.schedule.memory_plan import bytes_of, plan_memory
from kiln.lower.schedule.scheduling import schedule

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@pytest.fixture
def threads():
    """Two threads, and work is shared however little it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def planned(function, *inputs, changed=None):
    with ir.interned_in({}):
        scheduled = schedule(Lowering(make_fx(function, tracing_mode="fake")(*inputs)).run())
        return plan_memory(scheduled, changed)


def lengths(plan):
    return [len(run) for run in plan.runs if not isinstance(run[0], Call)]


def memory_of(plan):
    """What each buffer lies in: something, and a range of it."""
    donors = {one.buffer: one.donor for many in plan.allocations.values() for one in many if one.donor is not None}

    def of(buffer):
        if buffer in plan.scratch:
            return "scratch", plan.scratch[buffer], plan.scratch[buffer] + (bytes_of(buffer) or 0)
        buffer = plan.written.get(buffer, buffer)
        while buffer in donors:
            buffer = donors[buffer]
        return buffer, 0, 1

    return of


def check_memory(plan):
    """In a run, no launch writes memory that another one reads or writes."""
    of = memory_of(plan)
    for run in plan.runs:
        for one in run:
            for other in run:
                if one is other:
                    continue
                reads, writes = uses_of(other)
                for mine in map(of, uses_of(one)[1]):
                    for theirs in map(of, reads | writes):
                        assert mine[0] != theirs[0] or mine[2] <= theirs[1] or theirs[2] <= mine[1]


def test_what_needs_nothing_of_another_runs_at_once():
    x, y, z = torch.randn(100), torch.randn(40, 30), torch.randn(7)
    plan = planned(lambda x, y, z: (x.sin(), y.sum(0), z * 2), x, y, z)
    assert lengths(plan) == [3]
    plan = planned(lambda x: (x.sum(0).cumsum(0).sum(),), y)
    assert all(length == 1 for length in lengths(plan))


def test_small_launches_are_moved_up():
    """Chains of three kernels each, one chain after another, are three runs."""
    xs = [torch.randn(40 + n, 30) for n in range(5)]
    plan = planned(lambda *xs: tuple((lambda rows: rows / rows.sum())(x.softmax(1).sum(0)) for x in xs), *xs)
    assert max(lengths(plan)) == 5 and len(lengths(plan)) < 5
    check_memory(plan)


def test_large_launches_stay_where_they_are_read():
    xs = [torch.randn(1000, 1000 + n) for n in range(3)]
    plan = planned(lambda *xs: tuple(torch.mm(x.relu(), x.t()) for x in xs), *xs)
    assert all(length == 1 for length in lengths(plan))
    plan = planned(lambda *xs: tuple(x.relu() for x in xs), *xs)
    assert lengths(plan) == [3]


def test_no_more_memory_is_held(monkeypatch):
    """Large results are not made earlier than others need the memory."""
    monkeypatch.setattr(concurrency, "SMALL_LAUNCH", 1 << 40)
    x = torch.randn(600, 600)

    def function(x):
        found = torch.mm(x, x)
        for _ in range(4):
            found = torch.mm(found, x.flip(0))  # the same one is made once
            found = torch.mm(found, (x * float(found.shape[0])).flip(1))
        return (found, x.flip(0).sin().flip(1))

    runs = planned(function, x).runs
    monkeypatch.setattr(concurrency, "MOST_STEPS_MOVED", 0)
    assert held_by(runs) <= max(held_by(planned(function, x).runs), concurrency.FREE_BYTES)


def held_by(runs):
    """The most that is alive at once."""
    used = [[buffer for step in run for part in uses_of(step) for buffer in part] for run in runs]
    last = {buffer: place for place, buffers in enumerate(used) for buffer in buffers}
    alive, most = set(), 0
    for place, buffers in enumerate(used):
        alive |= {buffer for buffer in buffers if buffer.kind != "input"}
        most = max(most, sum(map(estimated_bytes, alive)))
        alive = {buffer for buffer in alive if last[buffer] > place}
    return most


def busy(x, y, z):
    rows = torch.softmax(x, -1)
    columns = rows.sum(0)
    other = torch.mm(y, z)
    parts = [(other * scale).amax(1) for scale in (1.0, 2.0, 3.0)]
    back = torch.cat([part / part.sum() for part in parts])
    return rows * columns, back, (other + columns.sum()).tanh(), columns.cumsum(0), x.t().contiguous()


@pytest.mark.parametrize("small", [0, 1 << 40])
def test_results_and_memory_of_a_busy_program(monkeypatch, threads, small):
    monkeypatch.setattr(concurrency, "SMALL_LAUNCH", small)
    monkeypatch.setattr(kiln.config, "cache", False)
    inputs = torch.randn(70, 50), torch.randn(300, 40), torch.randn(40, 60)
    check_memory(planned(busy, *inputs))
    compiled = kiln.compile(busy, backend="kiln")
    for _ in range(3):
        torch.testing.assert_close(compiled(*inputs), busy(*inputs))


def test_an_input_is_not_overwritten_beside_its_reader(threads):
    def function(p, q):
        total = (p * 3).sum(0)  # another launch reads p, small enough to run with what changes it
        p.copy_(q.t() + 1)
        q.mul_(2)
        return total

    for shape in ((8, 8), (200, 200)):
        p, q = torch.randn(shape), torch.randn(shape)
        mine, own = p.clone(), q.clone()
        compiled = kiln.compile(function, backend="kiln")
        torch.testing.assert_close(compiled(mine, own), function(p, q), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close((mine, own), (p, q))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_an_optimizer_is_one_or_two_steps(name, how, threads, monkeypatch):
    monkeypatch.setattr(kiln.config, "cache", False)
    shapes = [(7,), (300, 200), (64,), (1,), (128, 64), (5, 3), (33,), (1000,)]

    def made():
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        more = {"momentum": 0.9} if name == "sgd" else {}
        return parameters, OPTIMIZERS[name](parameters, lr=0.01, weight_decay=0.1, **more, **{how: True})

    expected, eager = made()
    found, optimizer = made()
    step = kiln.compile(optimizer.step, backend="kiln")
    for _ in range(4):
        eager.step()
        step()
    torch.testing.assert_close(found, expected)
    program = kiln.explain(optimizer.step)().programs[-1].program
    lines = [line.strip() for line in program.splitlines()]
    launches = [line for line in lines if line.startswith("kiln_")]
    assert lines.count("with together:") <= 2 and len(launches) >= len(shapes)
    assert all(line.startswith(("def", "with", "kiln_", "r", "return")) for line in lines if line)
