"""The native walk: the engine's order, what it depends on, calling its nodes, running inside a task of the engine."""

from __future__ import annotations

import gc
import struct
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, register_multi_grad_hook, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from kiln import _native

Roots = list[Any]


def leaf(*size: int, value: float = 1.0) -> Tensor:
    return torch.full(size or (3,), value, requires_grad=True)


def walk(
    roots: Any, inputs: Any = (), accumulate: bool | None = None, gradients: Any = None, retain_graph: bool = True
) -> _native.Walk:
    """As `torch.autograd.backward` or, with inputs, `grad` would ask for it."""
    roots = (roots,) if isinstance(roots, Tensor) else tuple(roots)
    gradients = tuple(torch.ones_like(root) for root in roots) if gradients is None else tuple(gradients)
    accumulate = not inputs if accumulate is None else accumulate
    found = _native.walk(roots, gradients, tuple(inputs), retain_graph, accumulate)
    return found


def followed(roots: Any, **how: Any) -> _native.Walk:
    found = walk(roots, **how)
    assert found.refusal is None
    return found


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x - y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0] + gradients[1], gradients[0] - gradients[1]


# ---- order -----------------------------------------------------------------------------------------------------------
# Each gives roots, and the inputs that gradients are asked for.


def chain() -> tuple[Roots, Roots]:
    return [leaf().sin().cos().exp().sum()], []


def shared() -> tuple[Roots, Roots]:
    x = leaf()
    y = x.sin()
    return [(y * y.cos() + y.exp() * x).sum()], []


def network() -> tuple[Roots, Roots]:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])
    return [model(torch.ones(2, 4)).relu().sum()], []


def many_leaves() -> tuple[Roots, Roots]:
    leaves = [leaf(value=float(i)) for i in range(9)]
    return [torch.stack(leaves).sum() + sum((one * 2).sum() for one in leaves[3:7])], []


def concatenation() -> tuple[Roots, Roots]:
    leaves = [leaf() for _ in range(13)]
    return [torch.cat(leaves + leaves[:4]).sum()], []


def several_roots() -> tuple[Roots, Roots]:
    x, y = leaf(), leaf()
    z = x * y
    return [z.sum(), (z.sin() + x).sum(), y.exp().sum()], []


def one_node_twice() -> tuple[Roots, Roots]:
    first, second = leaf(6).split(3)
    return [first, second, first], []


def root_in_the_middle() -> tuple[Roots, Roots]:
    y = leaf().sin()
    return [y.cos().sum(), y.sum()], []


def a_leaf_as_root() -> tuple[Roots, Roots]:
    x = leaf()
    return [x, (x * 2).sum()], []


def views() -> tuple[Roots, Roots]:
    x = leaf(4, 6)
    return [(x.view(6, 4).t()[1:] * x[:3].reshape(3, 6)[:, :1]).sum() + x.diagonal().sum()], []


def in_place() -> tuple[Roots, Roots]:
    x = leaf()
    y = x * 2
    y.add_(x.sin())
    y.mul_(3)
    return [y.sum()], []


def in_place_on_a_view() -> tuple[Roots, Roots]:
    x, w = leaf(4), leaf(2)
    base = x.clone()
    base[:2].mul_(w)
    base[1:3].add_(1)
    return [base.sum()], []


def python_functions() -> tuple[Roots, Roots]:
    x, y = leaf(), leaf()
    first, second = Pair.apply(Twice.apply(x), y.sin())
    return [(first * Twice.apply(second)).sum()], []


def unused_output() -> tuple[Roots, Roots]:
    x = leaf(6)
    values, _ = torch.sort(x)
    _, mean = torch.std_mean(values * x)
    return [mean], []


def asked_for_leaves() -> tuple[Roots, Roots]:
    x, y, z = leaf(), leaf(), leaf()
    return [((x * y).sin() + z * x).sum()], [y, x]


def asked_for_a_middle() -> tuple[Roots, Roots]:
    x, y = leaf(), leaf()
    z = x.sin()
    u = z * y
    return [(u.exp() + z).sum()], [z, y]


def asked_for_both_ends() -> tuple[Roots, Roots]:
    x = leaf()
    y = x.sin()
    z = y.cos()
    return [z.sum(), (y * x).sum()], [y, x, z]


def asked_for_the_root() -> tuple[Roots, Roots]:
    y = leaf().sum()
    return [y], [y]


def asked_for_an_edge() -> tuple[Roots, Roots]:
    x = leaf()
    y = Twice.apply(x)
    return [get_gradient_edge((y * x).sum())], [get_gradient_edge(y), get_gradient_edge(x)]


def asked_in_vain() -> tuple[Roots, Roots]:
    return [leaf().sum(), leaf().exp().sum()], [leaf()]


def asked_below_an_in_place_view() -> tuple[Roots, Roots]:
    x, w = leaf(4), leaf(2)
    base = x.clone()
    view = base[:2]
    view.mul_(w)
    return [(view * 2).sum()], [x]


GRAPHS = [
    chain,
    shared,
    network,
    many_leaves,
    concatenation,
    several_roots,
    one_node_twice,
    root_in_the_middle,
    a_leaf_as_root,
    views,
    in_place,
    in_place_on_a_view,
    python_functions,
    unused_output,
    asked_for_leaves,
    asked_for_a_middle,
    asked_for_both_ends,
    asked_for_the_root,
    asked_for_an_edge,
    asked_in_vain,
    asked_below_an_in_place_view,
]


def nodes_behind(roots: Roots) -> list[Any]:
    found: dict[int, Any] = {}
    pending = [root.node if isinstance(root, GradientEdge) else get_gradient_edge(root).node for root in roots]
    while pending:
        node = pending.pop()
        if id(node) not in found:
            found[id(node)] = node
            pending += [following for following, _ in node.next_functions if following is not None]
    return list(found.values())


def gradients_for(roots: Roots) -> list[Tensor]:
    return [torch.ones(()) if isinstance(root, GradientEdge) else torch.ones_like(root) for root in roots]


def run_eager(roots: Roots, inputs: Roots, accumulate: bool) -> Any:
    gradients = gradients_for(roots)
    if accumulate:
        return torch.autograd.backward(roots, gradients, retain_graph=True, inputs=inputs or None)
    return torch.autograd.grad(roots, inputs, gradients, retain_graph=True, allow_unused=True)


@pytest.mark.parametrize("accumulate", [True, False], ids=["backward", "grad"])
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.__name__)
def test_order_is_that_of_the_engine(graph: Callable[[], tuple[Roots, Roots]], accumulate: bool) -> None:
    roots, inputs = graph()
    if not accumulate and not inputs:
        inputs = [node.variable for node in nodes_behind(roots) if hasattr(node, "variable")]
    nodes = nodes_behind(roots)
    number = {id(node): place for place, node in enumerate(nodes)}
    seen: list[int] = []
    for place, node in enumerate(nodes):
        node.register_prehook(lambda gradients, place=place: seen.append(place))
    found = followed(roots, inputs=inputs, accumulate=accumulate, gradients=gradients_for(roots))
    run_eager(roots, inputs, accumulate)
    assert [number[id(call.node)] for call in found.calls[1:] if call.needed] == seen


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.__name__)
def test_calling_the_nodes_in_order_is_a_backward_pass(graph: Callable[[], tuple[Roots, Roots]]) -> None:
    """With the edges and captures of the walk, on the real tensors and on what the walk collected of them."""
    roots, inputs = graph()
    inputs = inputs or [node.variable for node in nodes_behind(roots) if hasattr(node, "variable")]
    found = followed(roots, inputs=inputs, accumulate=False, gradients=gradients_for(roots))
    tensors = found.inputs()
    expected = run_eager(roots, inputs, accumulate=False)
    for replaced in (False, True):
        assert_all_close(simulate(found, tensors, replaced, len(inputs)), expected)


def simulate(found: _native.Walk, tensors: list[Tensor], replaced: bool, count: int) -> list[Any]:
    waiting: dict[int, list[Any]] = {}
    results: list[Any] = [None] * count
    for call in found.calls:
        values = waiting.pop(call.index, [None] * call.input_count)
        for place, position in call.captures:
            results[position] = values[place]
        if not call.needed:
            continue
        saved = [None if slot is None else tensors[slot] for slot in call.saved]
        if call.kind == "root":
            outputs = tuple(saved)
        elif call.traceable and replaced:
            outputs = found.apply(call.index, values, saved, found.sizes)
        else:
            outputs = found.apply(call.index, values)
        assert len(outputs) == len(call.edges)
        for edge, output in zip(call.edges, outputs, strict=True):
            if edge is None or output is None:
                assert output is None
                continue
            held = waiting.setdefault(edge[0], [None] * found.calls[edge[0]].input_count)
            held[edge[1]] = output if held[edge[1]] is None else held[edge[1]] + output
    return results


def assert_all_close(seen: Any, expected: Any) -> None:
    for one, other in zip(seen, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


# ---- key and sizes ---------------------------------------------------------------------------------------------------


def linear(rows: int = 3, columns: int = 4, activation: Any = torch.relu) -> Tensor:
    return activation(torch.ones(rows, columns) @ torch.ones(columns, 5, requires_grad=True)).sum()


@pytest.mark.parametrize(
    "first, second, alike",
    [
        (linear, linear, True),
        (linear, lambda: linear(7, 9), True),
        (linear, lambda: linear(activation=torch.sigmoid), False),
        (lambda: leaf().sum(), lambda: leaf(3, 1).sum(), False),
        (lambda: leaf().sum(), lambda: leaf().double().sum(), False),
        (lambda: (leaf() * 2.0).sum(), lambda: (leaf() * 3.0).sum(), True),
        (lambda: (leaf() * 2.0).sum(), lambda: (leaf() * 2).sum(), False),
        (lambda: (leaf() * 2j).abs().sum(), lambda: (leaf() * 3j).abs().sum(), False),
        (lambda: (leaf() * 2.0).sum(), lambda: (leaf() * torch.tensor(2.0, dtype=torch.double)).sum(), False),
        (lambda: leaf(3, 4).sum(0).sum(), lambda: leaf(3, 4).sum(1).sum(), False),
        (lambda: (leaf(4, 4) * torch.ones(4, 4)).sum(), lambda: (leaf(4, 4) * torch.ones(4, 4).t()).sum(), False),
        (lambda: (leaf(2, 3) * torch.ones(3, 2).t()).sum(), lambda: (leaf(5, 7) * torch.ones(7, 5).t()).sum(), True),
        (lambda: (leaf() * torch.ones(3)).sum(), lambda: (leaf() * torch.ones(1).expand(3)).sum(), False),
        (lambda: (leaf() * leaf().detach()).sum(), lambda: (leaf() * leaf()).sum(), False),
        (lambda: same_twice(True), lambda: same_twice(False), False),
        (lambda: overlapping(True), lambda: overlapping(False), False),
        (lambda: Twice.apply(leaf()).sum(), lambda: Twice.apply(leaf(5)).sum(), True),
        (lambda: Twice.apply(leaf()).sum(), lambda: type("Twice", (Twice,), {}).apply(leaf()).sum(), False),
        (lambda: with_grad(False), lambda: with_grad(True), False),
        (lambda: hooked(0), lambda: hooked(1), False),
        (lambda: hooked(1), lambda: hooked(2), False),
        (lambda: hooked(2), lambda: hooked(3, removed=True), True),
    ],
)
def test_key(first: Callable[[], Tensor], second: Callable[[], Tensor], alike: bool) -> None:
    assert (followed(first()).key == followed(second()).key) == alike


def same_twice(same: bool) -> Tensor:
    first = torch.ones(3)
    return (leaf() * first + leaf() * (first if same else torch.ones(3))).sum()


def overlapping(shared: bool) -> Tensor:
    first = torch.ones(4)
    return (leaf() * first[:3] + leaf() * (first if shared else torch.ones(4))[1:]).sum()


def with_grad(given: bool) -> Tensor:
    x = leaf()
    if given:
        x.grad = torch.ones(3)
    return x.sum()


def hooked(count: int, removed: bool = False) -> Tensor:
    x = leaf().sin()
    handles = [x.register_hook(lambda gradient: None) for _ in range(count)]
    if removed:
        handles[1].remove()
    return x.sum()


def test_key_has_what_is_asked_for() -> None:
    x, y = leaf(), leaf()
    z = (x * y).sum()
    keys = [
        walk(z, inputs=inputs, accumulate=accumulate).key
        for inputs, accumulate in [((), True), ((x,), True), ((x,), False), ((y,), False), ((x, y), False)]
    ]
    keys.append(walk(z, inputs=(y, x)).key)
    assert len(set(keys)) == len(keys)


def test_sizes_and_what_tensors_look_like() -> None:
    x = leaf(3, 4)
    other = torch.empty_strided((3, 4), (1, 3))
    odd = torch.empty_strided((3, 4), (9, 2))
    found = followed((x * other + x * odd + x * x.detach()[:1]).sum(), gradients=[torch.ones(())])
    sizes, tensors = found.sizes, found.inputs()
    assert len(found.size_bytes) == 8 * len(sizes)
    kinds = set()
    for tensor, described in zip(tensors, found.tensors, strict=True):
        assert (described.dtype, described.device) == (tensor.dtype, tensor.device)
        assert (described.requires_grad, described.is_leaf) == (tensor.requires_grad, tensor.is_leaf)
        shape = [sizes[place] for place in described.sizes]
        assert shape == list(tensor.shape)
        kind, details = described.strides
        kinds.add(kind)
        strides = [sizes[place] for place in details] if kind == "given" else permuted_strides(shape, details)
        assert strides == list(tensor.stride())
    assert kinds == {"contiguous", "permuted", "given"}
    for call in found.calls[1:]:
        for (places, dtype, _, _), known in zip(call.metadata, call.node._input_metadata, strict=True):
            assert ([sizes[place] for place in places], dtype) == (list(known.shape), known.dtype)


def permuted_strides(shape: list[int], order: Any) -> list[int]:
    strides, step = [0] * len(shape), 1
    for dimension in reversed(range(len(shape)) if order is None else order):
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return strides


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.empty(2, 1, 4, 5).to(memory_format=torch.channels_last),
        torch.empty(1, 3, 1, 1).to(memory_format=torch.channels_last),
        torch.empty_strided((1, 5), (7, 1)),
        torch.empty_strided((4, 1, 3), (3, 3, 1)),
        torch.empty_strided((1, 1), (1, 1)),
        torch.empty_strided((1, 1), (9, 4)),
        torch.empty(3, 0, 4),
        torch.empty_strided((3, 0), (1, 3)),
        torch.empty(1).expand(3, 4),
        torch.empty(()),
        torch.empty(6, 6)[::2, 1:4],
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)}{tensor.stride()}",
)
def test_strides_are_exact(tensor: Tensor) -> None:
    """Of what is saved, a stand-in can be made with the very same strides, also where a size of 1 lets them vary."""
    found = followed((torch.ones_like(tensor, requires_grad=True) * tensor).sum())
    described = next(
        described
        for described, given in zip(found.tensors, found.inputs(), strict=True)
        if given.data_ptr() == tensor.data_ptr() and given.shape == tensor.shape and not given.requires_grad
    )
    kind, details = described.strides
    shape = [found.sizes[place] for place in described.sizes]
    strides = [found.sizes[place] for place in details] if kind == "given" else permuted_strides(shape, details)
    assert strides == list(tensor.stride())


def test_wrapped_numbers_are_among_the_sizes() -> None:
    found = followed((leaf() * 2.5 + leaf() * 3).sum())
    first, second = (one for one in found.tensors if one.constant is not None)
    assert (first.constant, second.constant) == (3, 2.5)
    assert found.sizes[first.position] == 3
    assert struct.unpack_from("d", found.size_bytes, 8 * second.position) == (2.5,)
    assert [one.position for one in followed((leaf() * 2j).abs().sum()).tensors] == [None] * 4


# ---- inputs ----------------------------------------------------------------------------------------------------------


def test_inputs_are_the_objects_that_were_saved_and_each_only_once() -> None:
    x, other = leaf(), torch.ones(3)
    z = (x * other + x * other).exp()
    found = followed(z.sum())
    inputs = found.inputs()
    assert sum(one is x for one in inputs) == 1
    assert sum(one is other for one in inputs) == 1
    assert sum(one.data_ptr() == z.data_ptr() for one in inputs) == 1
    with pytest.raises(RuntimeError, match="gone"):
        found.inputs()


def test_released_tensors_die_with_the_list() -> None:
    x = leaf()
    y = x.sin() * x.cos()
    saved = [weakref.ref(one) for one in (y.grad_fn._saved_self, y.grad_fn._saved_other)]
    found = followed(y.sum())
    inputs = found.inputs()
    found.release()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    del y
    assert all(one() is not None for one in saved)
    inputs.clear()
    assert all(one() is None for one in saved)
    assert found.count == 6


def test_a_walk_keeps_its_nodes_and_nothing_of_python() -> None:
    x = leaf()
    y = x.sin()
    hook = lambda gradient: None
    y.register_hook(hook)
    found = followed(y.sum())
    held = weakref.ref(hook)
    del y, hook
    found.inputs()
    assert found.calls[2].node.name() == "SinBackward0"
    del found
    gc.collect()
    assert held() is None


def test_what_is_lent_can_be_restored() -> None:
    x = leaf()
    y = x.sin()
    z = y.exp()
    found = followed((z * y).sum(), retain_graph=False)
    inputs = found.inputs()
    result = weakref.ref(next(one for one in inputs if one.data_ptr() == z.data_ptr() and one is not z))
    found.release(True)
    with pytest.raises(RuntimeError, match="second time"):
        _ = z.grad_fn._saved_result
    found.restore(1)
    torch.autograd.grad((z * y).sum(), [x], retain_graph=True)
    assert torch.equal(z.grad_fn._saved_result, z)
    found.release(True)
    inputs.clear()
    assert result() is None
    with pytest.raises(RuntimeError, match="gone"):
        found.restore(1)
    found.release()


def test_only_what_is_used_is_lent() -> None:
    """A tensor that the borrower has done with before a node's call, or never uses, stays with the node."""
    first, second = torch.ones(3), torch.ones(3)
    y = leaf() * first * second * 2.0
    found = followed(y.sum())
    calls = found.calls[2:5]
    assert [call.name for call in calls] == ["MulBackward0"] * 3
    slots = [next(slot for slot in call.saved if slot is not None) for call in calls]
    last_uses = [-1] * len(found.tensors)
    last_uses[slots[1]] = 3
    last_uses[slots[2]] = 3
    inputs = found.inputs()
    found.release(last_uses)
    assert [call.node._saved_other for call in (calls[0], calls[2])] == [inputs[slots[0]], first]
    with pytest.raises(RuntimeError, match="second time"):
        _ = calls[1].node._saved_other
    inputs.clear()
    found.restore(1)
    assert calls[1].node._saved_other is second
    found.release(True)
    assert calls[0].node._saved_other == 2, "a number is not lent"


def test_restored_tensors_have_the_version_that_they_were_saved_with() -> None:
    x, other = leaf(), torch.ones(3)
    found = followed((x * other).sum())
    inputs = found.inputs()
    found.release(True)
    other.add_(1)
    found.restore(0)
    assert len(inputs) == 3
    with pytest.raises(RuntimeError, match="inplace operation"):
        found.apply(2, [torch.ones(3)])


def test_python_functions_are_released_apart() -> None:
    y = Twice.apply(leaf().sin()).sum()
    found = followed(y)
    found.release()
    context = found.hooks()[1]
    assert len(context.saved_tensors) == 1
    found.release_rest()
    with pytest.raises(RuntimeError, match="second time"):
        _ = context.saved_tensors


def test_a_long_chain_dies_without_recursion() -> None:
    x = leaf()
    y = x
    for _ in range(60_000):
        y = y + 1
    found = followed(y.sum())
    del y
    assert found.count > 60_000
    del found


# ---- hooks -----------------------------------------------------------------------------------------------------------


def test_hooks_are_listed_with_their_places() -> None:
    x = leaf()
    y = x.sin()
    functions = [lambda *gradients, number=number: None for number in range(8)]
    y.register_hook(functions[0])
    y.register_hook(functions[1])
    y.retain_grad()
    y.grad_fn.register_prehook(functions[2])
    y.grad_fn.register_hook(functions[3])
    x.register_hook(functions[4])
    x.register_post_accumulate_grad_hook(functions[5])
    accumulator = get_gradient_edge(x).node
    accumulator.register_prehook(functions[6])
    accumulator.register_hook(functions[7])
    found = followed(Twice.apply(y).sum())
    hooks = found.hooks()
    sin, accumulate = found.calls[3:5]
    assert hooks[0] is None
    assert [hooks[slot] for _, slot in sin.tensor_hooks] == functions[:2]
    assert [place for place, _ in sin.tensor_hooks + sin.retains] == [0, 0, 0]
    assert [hooks[slot] for slot in sin.pre_hooks + sin.post_hooks] == functions[2:4]
    places = [
        accumulate.tensor_hooks[0][1],
        *accumulate.accumulate_hooks,
        *accumulate.pre_hooks,
        *accumulate.post_hooks,
    ]
    assert [hooks[slot] for slot in places] == functions[4:8]
    python = found.calls[2]
    assert (python.kind, hooks[python.object]) == ("python", python.node)
    retain = hooks[sin.retains[0][1]]
    assert retain(torch.full((3,), 5.0)) is None
    assert torch.equal(y.grad, torch.full((3,), 5.0))


def test_a_hook_of_one_of_several_outputs_has_its_number() -> None:
    first, second = Pair.apply(leaf(), leaf())
    second.register_hook(lambda gradient: None)
    second.retain_grad()
    call = followed((first * second).sum()).calls[3]
    assert [place for place, _ in call.tensor_hooks + call.retains] == [1, 1]


def test_hooks_of_what_only_gives_a_gradient() -> None:
    """Of a node that is asked for and not run, those of its tensors run and its own do not."""
    x = leaf()
    y = x.sin()
    y.register_hook(lambda gradient: None)
    y.grad_fn.register_prehook(lambda gradients: None)
    call = followed(y.sum(), inputs=[y]).calls[-1]
    assert (call.needed, call.captures, len(call.tensor_hooks), call.pre_hooks) == (False, [(0, 0)], 1, [])


def add_and_remove(x: Tensor, y: Tensor) -> None:
    y.register_hook(lambda gradient: None).remove()


def exchange(x: Tensor, y: Tensor) -> None:
    y._backward_hooks.popitem()
    y.register_hook(lambda gradient: None)


@pytest.mark.parametrize(
    "change, seen",
    [
        (lambda x, y: y.register_hook(lambda gradient: None), True),
        (lambda x, y: y._backward_hooks.popitem(), True),
        (exchange, True),
        (add_and_remove, False),
        (lambda x, y: y.retain_grad(), True),
        (lambda x, y: y.grad_fn.register_hook(lambda *gradients: None), True),
        (lambda x, y: y.grad_fn.register_prehook(lambda gradients: None), True),
        (lambda x, y: x.register_hook(lambda gradient: None), True),
        (lambda x, y: x.register_post_accumulate_grad_hook(lambda variable: None), True),
        (lambda x, y: None, False),
    ],
)
def test_changes_of_hooks(change: Callable[[Tensor, Tensor], Any], seen: bool) -> None:
    x = leaf()
    y = x.sin()
    y.register_hook(lambda gradient: None)
    found = followed(y.sum())
    found.watch()
    change(x, y)
    assert found.changed(1) == seen
    assert not found.changed(4)


def test_changes_that_calls_still_to_come_would_see() -> None:
    x, other = leaf(), torch.ones(3)
    y = x * other
    found = followed(y.sin().sum())
    found.watch()
    assert not found.changed(0)
    handle = y.register_hook(lambda gradient: None)
    assert (found.changed(3), found.changed(4)) == (True, False)
    handle.remove()
    assert not found.changed(0)
    with torch.no_grad():
        x.add_(1)
    assert not found.changed(0), "nobody saved it"
    other.add_(1)
    assert (found.changed(3), found.changed(4)) == (True, False)


def test_hooks_as_they_are_by_now() -> None:
    x = leaf()
    y = x.sin()
    functions = [lambda *gradients, number=number: None for number in range(4)]
    handle = y.register_hook(functions[0])
    found = followed(y.sum())
    assert found.hooks_now(2) == ([(0, functions[0])], [], [], [])
    handle.remove()
    y.register_hook(functions[1])
    y.retain_grad()
    y.grad_fn.register_prehook(functions[2])
    y.grad_fn.register_hook(functions[3])
    tensor, retains, before, after = found.hooks_now(2)
    assert (tensor, before, after) == ([(0, functions[1])], functions[2:3], functions[3:])
    retains[0][1](torch.full((3,), 5.0))
    assert torch.equal(y.grad, torch.full((3,), 5.0))


def test_to_accumulate_into_what_is_no_leaf_it_is_retained() -> None:
    y = leaf().sin()
    call = followed(y.sum(), inputs=[y], accumulate=True).calls[-1]
    assert (call.name, call.needed, len(call.retains), call.edges) == ("SinBackward0", True, 1, [None])
    assert y.retains_grad


# ---- refusals --------------------------------------------------------------------------------------------------------


def freed() -> Tensor:
    y = leaf().sin().sum()
    y.backward()
    return y


def changed_in_place() -> Tensor:
    x = leaf().sin()
    y = x.exp()
    y.add_(1)
    return (y * x).exp().sum() + x.exp().mul_(x.add_(1)).sum()


def with_multi_grad_hook() -> Tensor:
    x, y = leaf(), leaf()
    register_multi_grad_hook([x, y], lambda gradients: None)
    return (x * y).sum()


def sparse() -> Tensor:
    return torch.nn.functional.embedding(torch.tensor([1]), leaf(3, 2), sparse=True).sum() + leaf().to_sparse().sum()


class Sub(Tensor):
    pass


def subclass() -> Tensor:
    x = torch.ones(3).as_subclass(Sub).requires_grad_()
    return (x * x).sum().as_subclass(Tensor)


def asked_by_a_hook() -> Tensor:
    x = leaf()
    x.register_hook(lambda gradient: [torch._C._will_engine_execute_node(None) for _ in ()] and None)
    return x.sum()


def asked_by_a_backward() -> Tensor:
    class Asking(Twice):
        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            torch._C._current_autograd_node()
            return gradient

    return Asking.apply(leaf()).sum()


def subclass_as_grad() -> Tensor:
    x = leaf()
    x.grad = torch.ones(3).as_subclass(Sub)
    return x.sum()


def sparse_grad() -> Tensor:
    x = leaf(3, 2)
    x.grad = torch.ones(3, 2).to_sparse()
    return x.sum()


def grad_that_is_used() -> Tensor:
    x = leaf()
    x.grad = torch.ones(3)
    return (x * x.grad).sum()


def data_of_another_shape() -> Tensor:
    x = leaf()
    y = x.sum()
    x.data = torch.ones(5)
    return y


def conjugate() -> Tensor:
    x = leaf().to(torch.complex64)
    return (x * torch.ones(3, dtype=torch.complex64).conj()).abs().sum()


@pytest.mark.parametrize(
    "make, reason",
    [
        (freed, "second time"),
        (changed_in_place, "inplace operation"),
        (with_multi_grad_hook, "multi-grad hook"),
        (sparse, "not a plain dense"),
        (subclass, "class"),
        (sparse_grad, "not a plain dense"),
        (subclass_as_grad, "subclass"),
        (asked_by_a_hook, "asks the engine"),
        (asked_by_a_backward, "asks the engine"),
        (grad_that_is_used, "shares memory"),
        (data_of_another_shape, "changed its shape"),
        (conjugate, "not a plain dense"),
        (lambda: torch.ones(3).sum(), "requires no gradient"),
    ],
)
def test_refusals(make: Callable[[], Tensor], reason: str) -> None:
    found = walk(make())
    assert reason in (found.refusal or "")
    assert (found.count, found.hooks()) == (0, [None])


def test_refusals_of_arguments() -> None:
    y = leaf().sum()
    assert "anomaly" in with_anomaly(y)
    assert walk(leaf() * 1, gradients=[torch.ones(4)]).refusal is not None
    assert walk(y, gradients=[None]).refusal is not None
    assert walk(y, gradients=[]).refusal is not None
    assert walk(y, inputs=[torch.ones(3)]).refusal is not None
    with pytest.raises(TypeError):
        _native.walk([y], (torch.ones(()),), (), False, True)  # type: ignore[arg-type]


def test_a_checkpoint_asks_whether_all_gradients_are_computed() -> None:
    x = leaf()
    y = checkpoint(torch.sin, x, use_reentrant=True).sum()
    assert walk(y).refusal is None
    assert "asks the engine" in (walk(y, inputs=[x]).refusal or "")


def with_anomaly(y: Tensor) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anomaly = torch.autograd.detect_anomaly(check_nan=False)
    with anomaly:
        return walk(y).refusal or ""


def test_root_gradients_are_cast_as_the_engine_does() -> None:
    found = followed(leaf().sum(), gradients=[torch.ones((), dtype=torch.double)])
    assert found.inputs()[0].dtype == torch.float32


# ---- calling a node --------------------------------------------------------------------------------------------------


def test_stand_ins_are_put_in_and_taken_out() -> None:
    from torch._subclasses import FakeTensorMode

    x, w = leaf(3, 4), leaf(4, 5)
    found = followed((x @ w).exp().sum())
    tensors = [one.detach() for one in found.inputs()]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) for one in tensors]
        gradient: Any = fakes[0]
        for call in found.calls[1:4]:
            saved = [None if slot is None else fakes[slot] for slot in call.saved]
            gradient = found.apply(call.index, [gradient], saved, found.sizes)[0]
            assert type(gradient).__name__ == "FakeTensor"
    assert gradient.shape == (3, 4)
    assert torch.equal(found.calls[2].node._saved_result, (x @ w).exp())
    (x @ w).exp().sum().backward()


def test_symbols_take_the_place_of_sizes() -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    found = followed(leaf(6).sum())
    environment = ShapeEnv()
    size = environment.create_unbacked_symint()
    torch._check(size > 1)
    with FakeTensorMode(shape_env=environment):
        result = found.apply(1, [torch.ones(())], [], [size for _ in found.sizes])[0]
    assert str(result.shape[0]) == str(size)
    assert found.apply(1, [torch.ones(())])[0].shape == (6,)


def test_results_are_checked_as_the_engine_does() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return torch.ones(7)

    y = Wrong.apply(leaf()).sum()
    found = followed(y)
    with pytest.raises(RuntimeError, match="Function WrongBackward returned an invalid gradient at index 0"):
        found.apply(2, [torch.ones(3)])
    with pytest.raises(ValueError, match="saved tensors"):
        found.apply(1, [torch.ones(())], [torch.ones(3)])
    with pytest.raises(IndexError):
        found.apply(17, [])


def test_a_failing_call_leaves_the_node_as_it_was() -> None:
    x = leaf(3, 4)
    y = (x @ leaf(4, 5)).sum()
    found = followed(y)
    call = found.calls[2]
    with pytest.raises(RuntimeError):
        found.apply(2, [torch.ones(3, 5)], [torch.ones(9, 9) if slot is not None else None for slot in call.saved])
    y.backward()
    assert torch.equal(x.grad, torch.full((3, 4), 5.0))


def test_what_is_not_asked_for_is_not_computed() -> None:
    x, y = leaf(), leaf()
    found = followed((x * y).sum(), inputs=[x])
    results = found.apply(2, [torch.ones(3)])
    assert [one is not None for one in results] == [True, False]
    assert [one is not None for one in found.calls[2].node(torch.ones(3))] == [True, True]


def test_another_pass_around_it_does_not_matter() -> None:
    """A node asks the task that runs in its thread what to compute: that is another one here."""
    x, y = leaf(), leaf()
    inner = (x * y).sum()
    seen = []

    def hook(gradient: Tensor) -> None:
        found = followed(inner, inputs=[x, y])
        seen.append([one is not None for one in found.apply(2, [torch.ones(3)])])

    z = leaf()
    u = z * 2
    u.register_hook(hook)
    torch.autograd.grad(u.sum(), [z])
    assert seen == [[True, True]]


def test_the_program_packs_nothing_of_ours() -> None:
    packed: list[Tensor] = []
    found = followed(leaf().exp().sum())
    saved = found.inputs()[1]
    with saved_tensors_hooks(lambda one: packed.append(one) or one, lambda one: one):
        found.apply(2, [torch.ones(3)], [saved])
    assert packed == []


# ---- the rest of a pass ---------------------------------------------------------------------------------------------


def test_the_rest_of_a_pass() -> None:
    x, y = leaf(), leaf()
    found = followed((x.sin() * y).sum())
    sin = next(call.index for call in found.calls if call.name == "SinBackward0")
    assert found.finish([(sin, 0)], [torch.ones(3)], (), True, True) == ()
    assert y.grad is None
    assert torch.equal(x.grad, x.detach().cos())
    given = found.finish([(2, 0)], [torch.ones(3)], (y, leaf(), x), True, False)
    assert [one is not None for one in given] == [True, False, True]
    assert torch.equal(x.grad, x.detach().cos())


def test_what_gets_no_gradient_runs_as_well() -> None:
    x = leaf()
    y = x.sin()
    found = followed(y.sum())
    seen: list[Any] = []
    x.register_hook(lambda gradient: seen.append(gradient))
    y.grad_fn.register_prehook(lambda gradients: seen.append(gradients))
    found.finish([(2, 0)], [None], (), False, True)
    assert seen == [(None,), None]
    assert x.grad is None


# ---- in the engine ---------------------------------------------------------------------------------------------------


def test_run_in_engine() -> None:
    seen: list[Any] = []

    def work() -> str:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append("callback"))
        seen.append((torch._C._current_graph_task_id() >= 0, torch.is_grad_enabled(), threading.get_ident()))
        return "result"

    assert _native.run_in_engine(work) == "result"
    assert seen == [(True, False, threading.get_ident()), "callback"]
    assert torch._C._current_graph_task_id() == -1


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_errors_in_the_engine_come_through_unchanged(kind: type[BaseException]) -> None:
    error = kind("told")

    def fail() -> None:
        raise error

    with pytest.raises(kind) as caught:
        _native.run_in_engine(fail)
    assert caught.value is error
    assert caught.traceback[-1].name == "fail"


def test_run_in_engine_within_a_pass_and_the_other_way_round() -> None:
    x = leaf()
    x.register_hook(lambda gradient: _native.run_in_engine(lambda: gradient * 3))
    x.sin().sum().backward()
    assert torch.allclose(x.grad, 3 * x.detach().cos())
    x.grad = None
    with torch.enable_grad():
        y = x.cos().sum()
    _native.run_in_engine(lambda: y.backward())
    assert torch.allclose(x.grad, -3 * x.detach().sin())


def test_threads_walk_at_once() -> None:
    def graph() -> Tensor:
        x = leaf(4, 4)
        return (x @ x).exp().sum() + (x * 2).sum()

    expected = followed(graph()).key
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(200):
            found = followed(graph())
            if found.key != expected or len(found.inputs()) == 0:
                wrong.append(found.key)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
