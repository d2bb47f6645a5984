"""Stand-ins in the place of what nodes save: `walk.apply` uses them, and the node is afterwards as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kiln import _native
from tests.engine.saved_programs import PROGRAMS

StandIn = Callable[[torch.Tensor], torch.Tensor]


def leaf() -> torch.Tensor:
    return torch.rand(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()


def roots_of(output: Any) -> tuple[torch.Tensor, ...]:
    outputs = [output] if isinstance(output, torch.Tensor) else list(output)
    return tuple(one for one in outputs if one.grad_fn is not None)


def walk_over(*roots: torch.Tensor) -> _native.Walk:
    walk = _native.walk(roots, tuple(torch.ones_like(root) for root in roots), (), True, True)
    assert walk.refusal is None
    return walk


def added(total: torch.Tensor | None, gradient: torch.Tensor | None) -> torch.Tensor | None:
    return gradient if total is None else total if gradient is None else total + gradient


def gradients_by_call(walk: _native.Walk, inputs: list[torch.Tensor]) -> Iterator[tuple[_native.NodeCall, list[Any]]]:
    """The walk as an engine would run it, on the nodes as they are."""
    coming: dict[tuple[int, int], torch.Tensor | None] = {}
    for call in walk.calls:
        gradients = [coming.get((call.index, number)) for number in range(call.input_count)]
        if call.kind == "root":
            results = [inputs[slot] for slot in call.saved]
        else:
            yield call, gradients
            results = [] if call.kind == "accumulate" else walk.apply(call.index, gradients)
        for edge, result in zip(call.edges, results, strict=False):
            if edge is not None:
                coming[edge] = added(coming.get(edge), result)


def like(tensor: torch.Tensor, stand_in: StandIn) -> torch.Tensor:
    """Formulas ask whether what was saved requires grad."""
    return stand_in(tensor.detach()).requires_grad_(tensor.requires_grad)


def with_stand_ins(walk, call, inputs, gradients, stand_in: StandIn) -> Any:
    saved = [None if slot is None else like(inputs[slot], stand_in) for slot in call.saved]
    return walk.apply(call.index, gradients, saved, walk.sizes)


def same(left: Any, right: Any) -> bool:
    """Exactly: the operators are the same ones on the same values."""
    return len(left) == len(right) and all(
        one is other or torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
        for one, other in zip(left, right, strict=True)
    )


def eager_gradient(program: Callable[..., Any], arguments: tuple[Any, ...]) -> torch.Tensor:
    torch.manual_seed(0)
    x = leaf()
    roots = roots_of(program(x, *arguments))
    torch.autograd.backward(roots, tuple(torch.ones_like(root) for root in roots))
    return x.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_nodes_compute_with_stand_ins_and_get_their_own_back(name):
    program, arguments, *_ = PROGRAMS[name]
    torch.manual_seed(0)
    x = leaf()
    roots = roots_of(program(x, *arguments))
    walk = walk_over(*roots)
    inputs = walk.inputs()
    for call, gradients in gradients_by_call(walk, inputs):
        if call.kind != "builtin":
            continue
        expected = walk.apply(call.index, gradients)
        assert same(with_stand_ins(walk, call, inputs, gradients, torch.clone), expected)
        # Other values, of which the node may complain: an index out of range.
        with contextlib.suppress(RuntimeError, IndexError):
            with_stand_ins(walk, call, inputs, gradients, torch.ones_like)
        assert same(walk.apply(call.index, gradients), expected), call.name
    torch.autograd.backward(roots, tuple(torch.ones_like(root) for root in roots))
    assert same([x.grad], [eager_gradient(program, arguments)])


def only_call(walk: _native.Walk, name: str) -> _native.NodeCall:
    [call] = [call for call in walk.calls if call.name == name]
    return call


def test_stand_ins_are_used():
    x = leaf()
    walk = walk_over(x.sin())
    call = only_call(walk, "SinBackward0")
    [result] = walk.apply(call.index, [torch.ones(4, 6)], [torch.zeros(4, 6)], None)
    assert torch.equal(result, torch.ones(4, 6))
    [result] = walk.apply(call.index, [torch.ones(4, 6)])
    assert torch.equal(result, x.cos())


@pytest.mark.parametrize(
    "operation, made",
    [
        (lambda x: x.sin(), "input"),
        (lambda x: x.exp(), "output"),
        (lambda x: x[torch.tensor([0])], "list"),
        (lambda x: torch.cat([x.exp(), x]).sin(), "after others"),
    ],
)
def test_versions_are_checked_afterwards(operation, made):
    x = leaf() * 1
    y = operation(x)
    walk = walk_over(y)
    call = walk.calls[1]
    inputs = walk.inputs()
    with_stand_ins(walk, call, inputs, [torch.ones_like(y)], torch.ones_like)
    for slot in call.saved:
        inputs[slot].add_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_error_in_the_node_leaves_it_as_it_was():
    x = leaf()
    y = x.sin()
    walk = walk_over(y)
    with pytest.raises(RuntimeError, match="must match the size"):
        walk.apply(1, [torch.ones(4, 6)], [torch.zeros(5)], None)
    y.sum().backward()
    assert torch.equal(x.grad, x.detach().cos())


def test_none_stands_for_an_undefined_tensor():
    x, y = leaf(), torch.rand(4, 6)
    walk = walk_over(x * y)
    call = walk.calls[1]
    inputs = walk.inputs()
    assert None in call.saved
    saved = [None if slot is None else inputs[slot] * 2 for slot in call.saved]
    assert torch.equal(walk.apply(1, [torch.ones(4, 6)], saved, walk.sizes)[0], y * 2)
    assert torch.equal(walk.apply(1, [torch.ones(4, 6)])[0], y)


def test_pack_hooks_of_the_program_do_not_see_stand_ins():
    packed = []
    walk = walk_over(leaf().sin())
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: packed.append(tensor) or tensor, lambda tensor: tensor
    ):
        walk.apply(1, [torch.ones(4, 6)], [torch.zeros(4, 6)], None)
    assert packed == []


def test_sizes_of_the_base_of_a_view_are_replaced_with_its_number_of_elements():
    y = leaf() * 1
    y[0].mul_(2)
    walk = walk_over(y)
    call = only_call(walk, "torch::autograd::CopySlices")
    # The base, then the view: sizes, strides, offset.
    assert [walk.sizes[index] for index in call.saved_sizes] == [4, 6, 6, 1, 0, 6, 1, 0]
    for rows in (8, 3):
        sizes = [rows if size == 4 else size for size in walk.sizes]
        [result] = [one for one in walk.apply(call.index, [torch.ones(rows, 6)], None, sizes) if one is not None]
        assert torch.equal(result, torch.cat([torch.full((1, 6), 2.0), torch.ones(rows - 1, 6)]))
    y.sum().backward()
