"""Graphs for a GPU that compute much on the CPU: the host part and the rest together do what the graph does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import kiln
from kiln.codegen.graph_compiler import compile_whole
from kiln.codegen.host_part import FEWEST_CALLS, Parts, TwoPrograms, parts_of
from kiln.program import graph_meta
from kiln.program.graph_modules import placeholders
from tests.support.cuda_programs import cuda_graph_of

COUNT = FEWEST_CALLS + 4
CONSTANT = torch.tensor(0.25)


def counts() -> list[torch.Tensor]:
    return [torch.tensor(float(i)) for i in range(COUNT)]


def vectors() -> list[torch.Tensor]:
    return [torch.arange(3.0) + i for i in range(COUNT)]


def split(given: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    return given[:COUNT], given[COUNT:]


def counters(*given: torch.Tensor) -> list[Any]:
    """As an optimizer counts: new counters, and what is done to vectors by them."""
    on_gpu, steps = split(given)
    new = torch._foreach_add(list(steps), 1.0)
    return [*(vector * (1 - 0.9**step) for vector, step in zip(on_gpu, new, strict=True)), *new]


def a_stack(*given: torch.Tensor) -> list[Any]:
    on_gpu, steps = split(given)
    new = torch._foreach_add(list(steps), 1.0)
    factors = torch.stack(new).double().sqrt()
    return [*new, None, factors, *(vector + one for vector, one in zip(on_gpu, factors.unbind(), strict=True))]


def old_and_new(*given: torch.Tensor) -> list[Any]:
    """The rest reads what the host reads as well."""
    on_gpu, steps = split(given)
    new = torch._foreach_mul(list(steps), 2.0)
    return [*new, *(vector * step for vector, step in zip(on_gpu, steps, strict=True)), steps[3]]


def a_constant(*given: torch.Tensor) -> list[Any]:
    on_gpu, steps = split(given)
    new = [torch.mul(step, CONSTANT) for step in steps]
    return [*new, *(vector * one * CONSTANT for vector, one in zip(on_gpu, new, strict=True))]


def views(*given: torch.Tensor) -> list[Any]:
    on_gpu, steps = split(given)
    new = torch.stack([step.view(1) + 1 for step in steps])
    return [new, new[2], *(vector + one[0] for vector, one in zip(on_gpu, new.unbind(), strict=True))]


FUNCTIONS = (counters, a_stack, old_and_new, a_constant, views)


def cut(function: Callable[..., Any]) -> Parts:
    parts = parts_of(cuda_graph_of(function, [*vectors(), *counts()], stay=range(COUNT, 2 * COUNT)))
    assert parts is not None
    return parts


def run(parts: Parts, given: Sequence[torch.Tensor], rest: Callable[..., Any] | None = None) -> tuple[Any, ...]:
    """With a compiled host part; the rest runs on the CPU, operator by operator."""
    host = compile_whole(parts.host, False, "host", frozenset(), False)
    arguments = list(given)
    found = TwoPrograms(host, rest or (lambda rest_inputs: parts.rest(*rest_inputs)), parts)(arguments)
    assert not arguments
    return found


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_parts_do_what_the_graph_does(function):
    parts = cut(function)
    assert all(node.meta["val"].device.type == "cpu" for node in placeholders(parts.host))
    found, wanted = run(parts, [*vectors(), *counts()]), function(*vectors(), *counts())
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def test_the_rest_computes_nothing_of_the_host_part():
    parts = cut(counters)
    left = [node for node in parts.rest.graph.nodes if node.op == "call_function"]
    assert {node.meta["val"].device.type for node in left} == {"cuda"}
    assert len(placeholders(parts.rest)) == 2 * COUNT and len(parts.host_inputs) == COUNT


def test_inputs_that_the_host_part_reads_are_not_written_by_the_rest():
    module = cuda_graph_of(old_and_new, [*vectors(), *counts()], stay=range(COUNT, 2 * COUNT))
    changed = {place: COUNT + place for place in range(COUNT)} | {COUNT + place: place for place in range(COUNT)}
    graph_meta.set_changed_inputs(module, changed)
    parts = parts_of(module)
    assert parts is not None
    assert graph_meta.changed_inputs(parts.host) == {}
    noted = graph_meta.changed_inputs(parts.rest)
    assert {parts.rest_inputs[index] for index in noted.values()} == set(range(COUNT))

    class Rest:
        written_inputs = frozenset(noted)

        def __call__(self, arguments: list[Any]) -> Any:
            return parts.rest(*arguments)

    program = TwoPrograms(lambda arguments: parts.host(*arguments), Rest(), parts)
    assert program.written_inputs == frozenset(range(COUNT, 2 * COUNT))  # places in the whole graph's results


def test_an_error_of_the_rest_leaves_the_counters_as_they_were():
    given = [*vectors(), *counts()]

    def fails(arguments: list[Any]) -> Any:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        run(cut(counters), given, rest=fails)
    assert all(torch.equal(one, other) for one, other in zip(given[COUNT:], counts(), strict=True))


def little(*given: torch.Tensor) -> list[Any]:
    on_gpu, steps = split(given)
    return [on_gpu[0] * (steps[0] + 1)]


def random_numbers(*given: torch.Tensor) -> list[Any]:
    on_gpu, steps = split(given)
    return [vector * torch.bernoulli(step / COUNT) for vector, step in zip(on_gpu, steps, strict=True)]


def from_the_gpu(*given: torch.Tensor) -> list[Any]:
    on_gpu, steps = split(given)
    return [vector.cpu() + 1 for vector in on_gpu]


def test_what_is_left_in_one_program():
    for function in (little, from_the_gpu):
        module = cuda_graph_of(function, [*vectors(), *counts()], stay=range(COUNT, 2 * COUNT))
        assert parts_of(module) is None
    drawn = parts_of(cuda_graph_of(random_numbers, [*vectors(), *counts()], stay=range(COUNT, 2 * COUNT)))
    assert drawn is not None  # the divisions
    names = [str(node.target) for node in drawn.host.graph.nodes]
    assert "aten.bernoulli.default" not in names and "aten.div.Tensor" in names


def test_sizes_that_vary_are_left_to_the_rest():
    inputs = [*vectors(), *(torch.randn(3 + i) for i in range(COUNT))]
    assert parts_of(cuda_graph_of(counters_of_rows, inputs, stay=range(COUNT, 2 * COUNT), dynamic=True)) is None


def counters_of_rows(*given: torch.Tensor) -> list[Any]:
    on_gpu, steps = split(given)
    return [vector * step.sum() for vector, step in zip(on_gpu, torch._foreach_add(list(steps), 1.0), strict=True)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_steps_of_adam_on_a_gpu():
    shapes = [(3 + i, 4) for i in range(COUNT)]
    weights = [torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in shapes]
    twins = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    eager, compiled = (torch.optim.AdamW(given, lr=0.1, foreach=True) for given in (weights, twins))
    step = kiln.compile(compiled.step)
    for _ in range(4):
        for weight, twin in zip(weights, twins, strict=True):
            weight.grad = torch.randn_like(weight)
            twin.grad = weight.grad.clone()
        eager.step()
        step()
    for weight, twin in zip(weights, twins, strict=True):
        torch.testing.assert_close(twin, weight, rtol=1e-5, atol=1e-6)
        assert torch.equal(compiled.state[twin]["step"], eager.state[weight]["step"])
        assert compiled.state[twin]["step"]._version == eager.state[weight]["step"]._version
