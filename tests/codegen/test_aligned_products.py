"""Products whose rows are filled up to whole 16 bytes: which, how often operands are copied, what readers get."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kiln.codegen.rewrites import aligned_products
from kiln.codegen.rewrites.aligned_products import align_products
from kiln.loops import reference
from kiln.lower.lowering import Lowering
from kiln.lower.schedule.scheduling import schedule
from tests.support.cuda_programs import cuda_graph_of

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def all_products_are_worth_it(monkeypatch):
    monkeypatch.setattr(aligned_products, "SECONDS_SAVED", 1.0)


def made(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def aligned(function, inputs):
    """The graph with aligned products. Its values are consistent, and it computes what the function does."""
    graph = cuda_graph_of(function, inputs)
    align_products(graph)
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    found = reference.run(schedule(Lowering(graph).run(), "cuda"), inputs)
    wanted = function(*inputs)
    exact = function(*(one.double() if one.is_floating_point() else one for one in inputs))
    many = isinstance(wanted, (list, tuple))
    for one, other, better in zip(found, *((wanted, exact) if many else ([wanted], [exact])), strict=True):
        assert one.dtype is other.dtype and one.shape == other.shape and one.stride() == other.stride()
        torch.testing.assert_close(one.double(), better.double(), rtol=3e-2, atol=float(better.abs().max()) / 50)
    return graph


def nodes(graph, *targets):
    return [node for node in graph.graph.nodes if node.target in targets]


def products(graph):
    found = nodes(graph, aten.mm.default, aten.addmm.default)
    return [tuple(tuple(arg.meta["val"].shape) for arg in node.all_input_nodes[-2:]) for node in found]


FORMS = {
    "depth": (lambda x, w: F.linear(x, w), [(16, 13), (24, 13)], [((16, 16), (16, 24))]),
    "columns": (lambda x, w: F.linear(x, w), [(16, 32), (27, 32)], [((16, 32), (32, 32))]),
    "columns, of a matrix": (lambda x, w: x @ w, [(16, 32), (32, 27)], [((16, 32), (32, 32))]),
    "both": (lambda x, w: F.linear(x, w), [(16, 13), (27, 13)], [((16, 16), (16, 32))]),
    "rows": (lambda x, w: x.t() @ w, [(32, 27), (32, 16)], [((32, 32), (32, 16))]),
    "rows and columns": (lambda x, w: x.t() @ w, [(32, 27), (32, 13)], [((32, 32), (32, 16))]),
    "rows that begin anywhere": (lambda x, w: x @ w, [(27, 32), (32, 16)], [((27, 32), (32, 16))]),
    "a depth along which nothing lies": (lambda x, w: x.t() @ w, [(13, 16), (13, 24)], [((16, 13), (13, 24))]),
    "a bias": (lambda x, w, b: F.linear(x, w, b), [(16, 13), (27, 13), (27,)], [((16, 16), (16, 32))]),
    "a matrix that is added": (
        lambda x, w, b: torch.addmm(b, x, w.t()),
        [(16, 13), (27, 13), (16, 27)],
        [((16, 13), (13, 27))],
    ),
    "whole rows": (lambda x, w: F.linear(x, w), [(16, 32), (24, 32)], [((16, 32), (32, 24))]),
    "few": (lambda x, w: F.linear(x, w), [(16, 5), (24, 5)], [((16, 5), (5, 24))]),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products(name, dtype):
    function, shapes, wanted = FORMS[name]
    graph = aligned(function, [made(*shape, dtype=dtype) for shape in shapes])
    assert products(graph) == wanted


def test_float32_stays():
    graph = aligned(lambda x, w: F.linear(x, w), [made(16, 13, dtype=torch.float32), made(24, 13, dtype=torch.float32)])
    assert products(graph) == [((16, 13), (13, 24))]


def test_small_products_stay(monkeypatch):
    monkeypatch.undo()
    assert products(aligned(lambda x, w: F.linear(x, w), [made(16, 13), made(24, 13)])) == [((16, 13), (13, 24))]


def test_an_operand_of_several_products_is_filled_up_once():
    """A weight and its gradient's operands, forward and backward; the features get one more part."""

    def step(x, y, w, g):
        features = torch.cat([x, y], 1)
        return F.linear(features, w), g @ w, g.t() @ features

    graph = aligned(step, [made(32, 8), made(32, 5), made(24, 13), made(32, 24)])
    assert len(products(graph)) == 3 and not any(13 in shape for pair in products(graph) for shape in pair)
    assert len(nodes(graph, aten.constant_pad_nd.default)) == 1
    assert [len(node.args[0]) for node in nodes(graph, aten.cat.default)] == [3]


def test_readers_that_take_any_strides_get_a_view():
    def loss(x, w):
        logits = F.linear(x, w).view(2, 8, 27).float()
        return logits - logits.amax(-1, keepdim=True)

    graph = aligned(loss, [made(16, 32), made(27, 32)])
    assert products(graph) == [((16, 32), (32, 32))] and not nodes(graph, aten.clone.default)
    (view,) = nodes(graph, aten.view.default)
    assert view.meta["val"].stride() == (256, 32, 1)


READERS = {
    "a result": lambda y: y,
    "a flat view": lambda y: y.view(-1) * 2,
    "a flat view of a view": lambda y: y.view(2, 8, 27).view(-1) * 2,
    "strides": lambda y: torch.as_strided(y, (4, 27), (27, 1)) * 2,
    "a product of batches": lambda y: torch.bmm(y.view(2, 8, 27), y.view(2, 27, 8)),
}


@pytest.mark.parametrize("name", READERS)
def test_other_readers_get_a_contiguous_copy(name):
    graph = aligned(lambda x, w: READERS[name](F.linear(x, w)), [made(16, 32), made(27, 32)])
    assert products(graph) == [((16, 32), (32, 32))] and nodes(graph, aten.clone.default)
