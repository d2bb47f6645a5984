"""Convolutions on GPUs: without bias, and channels last. The graphs are made and compared without a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kiln.aot.partition.graph_cleanup import eliminate_dead
from kiln.codegen.convolutions.bias import split_bias
from kiln.codegen.convolutions.layouts import lay_out_convolutions
from tests.support.codegen_programs import graph_of
from tests.support.cuda_programs import CUDA
from tests.support.cuda_training import TrainingGraphs, generated_of, move_to_gpu

aten = torch.ops.aten
LAST = torch.channels_last


def low(*shape):
    return torch.randn(*shape).bfloat16()


X, W, V, B = low(2, 16, 8, 8), low(24, 16, 3, 3), low(16, 24, 1, 1), low(24)
conv = F.conv2d

PROGRAMS = {
    "a convolution": lambda x, w, v, b: conv(x, w, padding=1),
    "a chain": lambda x, w, v, b: conv(F.relu(conv(x, w, padding=1)), v) + x,
    "with bias": lambda x, w, v, b: conv(x, w, b, padding=1).sigmoid(),
    "two results": lambda x, w, v, b: (lambda y: (y, y.relu()))(conv(x, w)),
    "pooled": lambda x, w, v, b: conv(F.max_pool2d(conv(x, w), 2), v),
    "pooled by means": lambda x, w, v, b: conv(F.adaptive_avg_pool2d(conv(x, w), 3), v),
    "batch norm": lambda x, w, v, b: conv(F.batch_norm(conv(x, w), None, None, training=True), v),
    "concatenated": lambda x, w, v, b: conv(torch.cat([conv(x, w)[:, :12], conv(x, w)[:, 12:] * 2], 1), v),
    "reshaped": lambda x, w, v, b: conv(x, w).flatten(1) * 2,
    "a view between": lambda x, w, v, b: conv(conv(x, w).view(2, 24, 6, 6).transpose(2, 3), v),
    "a product between": lambda x, w, v, b: conv(x, w).flatten(2) @ w.flatten(1)[:, :36].t(),
    "a slice": lambda x, w, v, b: (conv(x, w)[:, 4:12], conv(x, w)[:, :4].exp()),
    "summed": lambda x, w, v, b: conv(x, w).float().mean((2, 3)),
    "upsampled": lambda x, w, v, b: conv(F.interpolate(conv(x, w), scale_factor=2.0), v),
    "padded": lambda x, w, v, b: conv(F.pad(conv(x, w), (1, 1, 1, 1)), v),
    "broadcast": lambda x, w, v, b: conv(x, w) + b[None, :, None, None] * conv(x, w).mean((0, 2), keepdim=True),
}


def on_gpu(function):
    """The graph of a function, its values said to be on a GPU."""

    def listed(*given):
        found = function(*given)
        return list(found) if isinstance(found, tuple) else [found]

    module = graph_of(listed, [X, W, V, B])
    expected = module(X, W, V, B)
    value = next(iter(module.graph.nodes)).meta["val"]
    move_to_gpu(module, value.fake_mode)
    return module, expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_channels_last_computes_the_same(name):
    module, expected = on_gpu(PROGRAMS[name])
    split_bias(module)
    lay_out_convolutions(module)
    eliminate_dead(module.graph)
    convolutions = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    for node in convolutions:
        assert all(one.meta["val"].is_contiguous(memory_format=LAST) for one in node.all_input_nodes)
        assert node.args[2] is None
    results = next(node for node in module.graph.nodes if node.op == "output").args[0]
    for node, one in zip(results, expected, strict=True):  # results have eager's strides
        assert node.meta["val"].stride() == one.stride(), name
    module.recompile()
    found = module(X, W, V, B)
    assert [one.stride() for one in found] == [one.stride() for one in expected]
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_say_what_they_are(name):
    """Every node has the strides that its value says, on the CPU at least where it keeps channels last."""
    module, _ = on_gpu(PROGRAMS[name])
    lay_out_convolutions(module)
    for node in module.graph.nodes:
        for user in node.users:
            if user.target is aten.view.default:
                assert node.meta["val"].is_contiguous()


def test_what_is_left_alone():
    for function in (
        lambda x, w, v, b: conv(x.float(), w.float()),
        lambda x, w, v, b: conv(x, w[:, :8], groups=2),
        lambda x, w, v, b: conv(x[:, :3], w[:, :3]),
        lambda x, w, v, b: conv(F.group_norm(conv(x, w), 4), v),
    ):
        module, _ = on_gpu(function)
        before = len(module.graph.nodes)
        lay_out_convolutions(module)
        assert len(module.graph.nodes) == before


def test_inputs_in_channels_last_are_not_copied():
    module = graph_of(lambda x, w, v: [conv(F.relu(conv(x, w)), v)], [one.to(memory_format=LAST) for one in (X, W, V)])
    move_to_gpu(module, next(iter(module.graph.nodes)).meta["val"].fake_mode)
    before = len(module.graph.nodes)
    lay_out_convolutions(module)
    assert len(module.graph.nodes) == before


def test_names_do_not_depend_on_the_rest_of_the_graph():
    """Saved values are found in another joint graph of the same forward by the names of their nodes."""

    def names(function):
        module, _ = on_gpu(function)
        split_bias(module)
        lay_out_convolutions(module)
        eliminate_dead(module.graph)
        kinds = (aten.convolution.default, aten.clone.default, aten.add.Tensor)
        return [node.name for node in module.graph.nodes if node.target in kinds]

    def function(x, w, v, b):
        return conv(F.relu(conv(x, w, b, padding=1)), v).flatten(1)

    def with_more(x, w, v, b):
        y = function(x, w, v, b)
        return y, (y.clone() + 1).clone() + (x + 2).clone().sum() + conv(x, w).sum()

    alone = names(function)
    assert len(alone) > 4 and names(with_more)[: len(alone) - 1] == alone[:-1] and alone[-1] in names(with_more)


# ---- training --------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.two, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 4)

    def forward(self, x):
        y = F.relu(self.norm(self.one(x)))
        return self.last((y + self.two(y)).mean((2, 3))).float().square().mean()


def graphs(layout):
    torch.manual_seed(0)
    return TrainingGraphs(Net().to(memory_format=layout), (torch.randn(4, 8, 16, 16).to(memory_format=layout),))


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST], ids=str)
def test_training_in_channels_last(layout):
    """All convolutions and their gradients are channels last, biases are no part of them."""
    made = graphs(layout)
    for module in (made.forward, made.backward):
        for target in (aten.convolution.default, aten.convolution_backward.default):
            for node in module.graph.find_nodes(op="call_function", target=target):
                operands = [one for one in node.all_input_nodes if one.meta["val"].dim() == 4]
                assert all(one.meta["val"].is_contiguous(memory_format=LAST) for one in operands)
                if target is aten.convolution_backward.default:
                    assert node.args[-1][2] is False
    kernels = generated_of(made.backward)
    assert not any("sum" in reason for reason in kernels.called.values())


def test_no_copies_where_all_is_channels_last():
    """But for the gradient of the mean, which is computed into that layout: no kernel only copies."""
    made = graphs(LAST)
    assert not made.forward.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert len(made.backward.graph.find_nodes(op="call_function", target=aten.clone.default)) == 1
    for module in (made.forward, made.backward):
        for kernel in generated_of(module).kernels:
            roots = kernel.kernel.roots()
            assert any(expr.kind != "load" for expr in roots), kernel.text


def test_gradients_have_the_layout_of_their_parameters():
    made = graphs(torch.contiguous_format)
    results = next(node for node in made.backward.graph.nodes if node.op == "output").args[0]
    four = [node.meta["val"] for node in results if isinstance(node, torch.fx.Node) and node.meta["val"].dim() == 4]
    assert four and all(one.is_contiguous() for one in four)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST], ids=str)
def test_a_net_on_a_gpu(layout):
    import kiln

    torch.manual_seed(0)
    net = Net().cuda().to(memory_format=layout)
    x = torch.randn(4, 8, 16, 16, device=CUDA).to(memory_format=layout)
    other = copy.deepcopy(net)

    def step(module, call):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = call(x)
        loss.backward()
        return [loss, *(one.grad for one in module.parameters()), *module.buffers()]

    found, expected = step(net, kiln.compile(net, backend="kiln")), step(other, other)
    assert [one.stride() for one in found] == [one.stride() for one in expected]
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=1e-2)
