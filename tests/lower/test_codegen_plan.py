"""The memory plan and the order of steps: what shares memory, what must not, and random programs beside eager."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from kiln.codegen.graph_compiler import compile_graph
from kiln.loops.steps import Launch, uses_of
from kiln.lower import ops  # noqa: F401  (fills the table of lowerings)
from kiln.lower.lowering import Lowering
from kiln.lower.schedule.memory_plan import LARGEST_IN_SCRATCH, bytes_of, live_ranges, plan_memory
from kiln.lower.schedule.scheduling import schedule
from kiln.lower.schedule.step_order import delay_launches


def scheduled(function, *inputs):
    return schedule(Lowering(make_fx(function, tracing_mode="fake")(*inputs)).run())


def donors(function, *inputs):
    """Which buffer's memory each allocated one is to take, by kind of the donor."""
    plan = plan_memory(scheduled(function, *inputs))
    return [one.donor.kind if one.donor else None for many in plan.allocations.values() for one in many]


LARGE = 300, 300  # beyond what lies in the scratch block


def test_what_dies_in_a_kernel_gives_its_memory():
    x, w = torch.randn(LARGE), torch.randn(LARGE)
    assert donors(lambda x, w: (torch.mm(x, w).tanh().exp(),), x, w) == ["called"]
    assert donors(lambda x, w: (torch.softmax(torch.mm(x, w), -1),), x, w) == ["called"]
    assert donors(lambda x, w: (torch.mm(x.sin(), w),), x, w) == ["input"]


def test_what_is_read_elsewhere_or_afterwards_does_not():
    x, w = torch.randn(LARGE), torch.randn(LARGE)
    assert "called" not in donors(lambda x, w: (torch.mm(x, w).t().contiguous(),), x, w)
    assert "called" not in donors(lambda x, w: (torch.flip(torch.mm(x, w), [0]) + 1,), x, w)
    product = lambda x, w: (lambda y: (y.sin(), y))(torch.mm(x, w))
    assert "called" not in donors(product, x, w)
    assert "called" not in donors(lambda x, w: (torch.mm(x, w).to(torch.float64),), x, w)
    moved = lambda x, w: (lambda y: (y + y.t(),))(torch.mm(x, w))
    assert "called" not in donors(moved, x, w)


def test_memory_of_the_dead_is_used_again():
    x, w = torch.randn(LARGE), torch.randn(LARGE)

    def function(x, w):
        for _ in range(4):
            x = torch.mm(torch.sort(torch.mm(x, w), 1)[0], w)
        return (x + 1,)

    plan = plan_memory(scheduled(function, x, w))
    assert len(plan.out_variants) >= 3
    found = compile_graph(make_fx(function, tracing_mode="fake")(x, w))([x, w])[0]
    torch.testing.assert_close(found, function(x, w)[0])


def test_small_values_lie_in_one_block_without_meeting():
    def function(x):
        rows = [torch.softmax(x * scale, -1).sum(0) for scale in range(1, 6)]
        return (torch.stack([row.cumsum(0) for row in rows]).sum(0) + sum(row.max() for row in rows),)

    steps = scheduled(function, torch.randn(40, 50))
    plan = plan_memory(steps)
    lives = live_ranges(plan.runs, steps.outputs)
    assert plan.scratch and plan.scratch_bytes <= sum((bytes_of(one) or 0) + 64 for one in plan.scratch)
    placed = [(place, place + (bytes_of(one) or 0), lives[one]) for one, place in plan.scratch.items()]
    for start, end, life in placed:
        assert start % 64 == 0 and end <= plan.scratch_bytes
        for other_start, other_end, other in placed:
            if other is not life and not (other.last < life.first or life.last < other.first):
                assert end <= other_start or other_end <= start
    assert all(not lives[one].is_result and (bytes_of(one) or 0) <= LARGEST_IN_SCRATCH for one in plan.scratch)


def test_results_are_never_memory_of_others():
    x, w = torch.randn(LARGE), torch.randn(LARGE)
    program = compile_graph(make_fx(lambda x, w: (lambda y: (y.sin(), y.cos(), y))(torch.mm(x, w)))(x, w))
    found = program([x, w])
    storages = {one.untyped_storage().data_ptr() for one in (*found, x, w)}
    assert len(storages) == 5
    assert all(one.untyped_storage().nbytes() == one.numel() * 4 for one in found)


def test_steps_move_down_to_those_that_need_them():
    def function(x, w):
        early = (x * 2).sin()  # not needed before the end
        for _ in range(3):
            w = torch.mm(w, w)
        return (torch.mm(early, w),)

    steps = scheduled(function, torch.randn(LARGE), torch.randn(LARGE)).steps
    kinds = [isinstance(step, Launch) for step in steps]
    assert kinds == [False, False, False, True, False]


def test_an_order_keeps_what_depends():
    x = torch.randn(30, 40)

    def function(x):
        out = torch.zeros(60, 40).index_copy(0, torch.arange(30), x.sin())
        return (torch.cat([out.softmax(1), x.cos(), out + 1]).sort(0)[0].sum(1), out.index_add(0, torch.arange(30), x))

    found = scheduled(function, x)
    again = delay_launches(found.steps, found.outputs)
    seen = {step: place for place, step in enumerate(again)}
    assert set(seen) == set(found.steps)
    for place, step in enumerate(found.steps):
        reads, writes = uses_of(step)
        for later in found.steps[place + 1 :]:
            later_reads, later_writes = uses_of(later)
            if writes & (later_reads | later_writes) or reads & later_writes:
                assert seen[step] < seen[later]


# ---- random programs -------------------------------------------------------------------------------------------------

UNARY = [
    torch.sin,
    torch.relu,
    lambda x: torch.softmax(x, -1),
    lambda x: torch.softmax(x, 0),
    lambda x: x.t().contiguous(),
    lambda x: x.t(),
    lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: x - x.mean(0, keepdim=True),
    lambda x: torch.sort(x, 0)[0],
    lambda x: torch.cumsum(x, 1) / 9,
    lambda x: torch.flip(x, [1]),
    lambda x: torch.roll(x, 3, 0),
]
BINARY = [torch.add, torch.mul, torch.maximum, lambda x, y: torch.mm(x, y) / 16, lambda x, y: x * y.sum(0)]


def random_program(seed):
    chosen = random.Random(seed)

    def function(*inputs):
        values = list(inputs)
        for _ in range(14):
            if chosen.random() < 0.5:
                values.append(chosen.choice(UNARY)(chosen.choice(values[-5:])))
            else:
                values.append(chosen.choice(BINARY)(chosen.choice(values[-5:]), chosen.choice(values)))
        return tuple(chosen.sample(values[3:], 2) + [values[-1]])

    def anew(*inputs):
        chosen.seed(seed)
        return function(*inputs)

    return anew


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [12, 140])
def test_random_programs(seed, size):
    torch.manual_seed(seed)
    function = random_program(seed)
    inputs = [torch.randn(size, size, dtype=torch.float64) for _ in range(3)]
    copies = [one.clone() for one in inputs]
    with kiln.config.patch(raise_internal_errors=True, cache=False):
        program = compile_graph(make_fx(function)(*inputs))
    for _ in range(2):
        found = program(list(inputs))
        for one, other in zip(found, function(*inputs), strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
    assert all(torch.equal(one, other) for one, other in zip(inputs, copies, strict=True))
    given_away = [one.clone() for one in inputs]  # which the program may write over
    for one, other in zip(program(given_away), function(*inputs), strict=True):
        torch.testing.assert_close(one, other)
