"""Equal nodes of a graph are computed once, where that cannot be seen."""

from __future__ import annotations

import torch

from kiln.aot.partition.graph_cleanup import eliminate_dead
from kiln.codegen.rewrites.equal_nodes import FARTHEST, merge_equal_nodes
from tests.support.codegen_programs import graph_of

aten = torch.ops.aten
X = torch.randn(8, 8)


def counted(function, *inputs):
    """How often each operator is called after merging; results must be the same."""
    module = graph_of(lambda *given: list(function(*given)), inputs)
    expected = module(*inputs)
    merge_equal_nodes(module)
    eliminate_dead(module.graph)
    module.recompile()
    torch.testing.assert_close(module(*inputs), expected)
    found = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            found[str(node.target)] = found.get(str(node.target), 0) + 1
    return found


def test_a_conversion_for_each_reader_is_made_once():
    found = counted(lambda x: [x.to(torch.bfloat16) @ x.to(torch.bfloat16).t(), x.to(torch.bfloat16) * 2], X)
    assert found["aten._to_copy.default"] == 1


def test_chains_are_merged():
    assert counted(lambda x: [(x.exp() + 1) * (x.exp() + 1)], X) == {
        "aten.exp.default": 1,
        "aten.add.Tensor": 1,
        "aten.mul.Tensor": 1,
    }


def test_other_arguments_are_another_value():
    found = counted(lambda x: [(x + 1) * (x + 1.0) * (x + True) * torch.add(x, 1, alpha=2)], X)
    assert found["aten.add.Tensor"] == 4
    assert counted(lambda x: [(x * 0.0) + (x * -0.0)], X)["aten.mul.Tensor"] == 2


def test_results_have_memory_of_their_own():
    assert counted(lambda x: [x.exp(), x.exp()], X)["aten.exp.default"] == 2
    assert counted(lambda x: [x.exp().t(), x.exp() * 2], X)["aten.exp.default"] == 2
    assert counted(lambda x: [x.exp().unbind(0)[0], x.exp() * 2], X)["aten.exp.default"] == 2


def test_random_numbers_are_drawn_each_time():
    module = graph_of(lambda x: [torch.rand_like(x) - torch.rand_like(x)], [X])
    merge_equal_nodes(module)
    assert len(module.graph.find_nodes(op="call_function", target=aten.rand_like.default)) == 2
    (subtraction,) = module.graph.find_nodes(op="call_function", target=aten.sub.Tensor)
    assert subtraction.args[0] is not subtraction.args[1]


def test_regions_stay_apart():
    module = graph_of(lambda x: [x.exp() * x.exp()], [X])
    first, second, product = (node for node in module.graph.nodes if node.op == "call_function")
    first.meta["region"], second.meta["region"] = "forward", "backward"
    merge_equal_nodes(module)
    assert product.args == (first, second)
    second.meta["region"] = "forward"
    merge_equal_nodes(module)
    assert product.args == (first, first)


def test_values_are_not_kept_over_many_calls():
    def function(x, calls):
        y = x.exp() @ x
        for _ in range(calls):
            y = y @ x
        return [y + x.exp()]

    near = counted(lambda x: function(x, FARTHEST - 1), X / 10)
    far = counted(lambda x: function(x, FARTHEST + 1), X / 10)
    assert near["aten.exp.default"] == 1 and far["aten.exp.default"] == 2
