"""Chooses the layout of convolutions on a GPU: channels last, in which cuDNN computes products of low types.

In any other layout cuDNN converts the operands and the result of each convolution. Here the operands are converted in
the graph, where that is mostly part of the kernel that computes them, and the result stays as it is: operators that
compute elements, normalize, pool or reduce take any layout. Before an operator that reads strides (a view, a product,
a random operator, a result of the graph) values get the layout back that they had. Graphs that normalize groups of
channels keep their layout.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ... import operator_functions as operator
from ...program.operators.operator_table import Operator, find_operator
from ...program.shapes import shape_cache
from ..graph_nodes import Node, add_call, value_of

aten = torch.ops.aten
LOW_TYPES = (torch.float16, torch.bfloat16)
CONVOLUTIONS = {aten.convolution.default: (0, 1), aten.convolution_backward.default: (0, 1, 2)}  # operands
FEWEST_CHANNELS = 8  # and multiples of it: what one load of cuDNN's kernels takes

# Operators besides those on single elements whose results only depend on the elements, whatever their layout.
ANY_LAYOUT = frozenset(
    "_to_copy cat stack constant_pad_nd native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward "
    "_native_batch_norm_legit_functional _native_batch_norm_legit native_batch_norm max_pool2d_with_indices "
    "max_pool2d_with_offsets max_pool2d_with_offsets_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d "
    "upsample_bilinear2d_backward sum mean var amax amin native_layer_norm".split()
)
# Operators that sum over places and a few channels: channels last they read some bytes here and there (on an H200 90
# times slower). A graph with one of them stays as it is.
BY_PLACES = frozenset({aten.native_group_norm.default, aten.native_group_norm_backward.default})
VIEWS_OF_ANY_LAYOUT = frozenset("slice split split_with_sizes select narrow detach alias expand".split())


def lay_out_convolutions(module: torch.fx.GraphModule) -> None:
    """Brings the convolutions of a joint graph, and what is between them, into channels last."""
    convolutions = [node for node in module.graph.nodes if gains(node)]
    if any(module.graph.find_nodes(op="call_function", target=target) for target in BY_PLACES):
        return
    if any(not is_last(operand.meta["val"]) for node in convolutions for operand in operands_of(node)):
        Layouts(module).run()


def gains(node: Node) -> bool:
    """Whether a convolution is one that cuDNN would convert the operands of."""
    if node.target not in CONVOLUTIONS:
        return False
    operands = [operand.meta["val"] for operand in operands_of(node)]
    if any(one.dim() != 4 or one.device.type != "cuda" or one.dtype not in LOW_TYPES for one in operands):
        return False
    is_transposed, _, groups = node.args[6:9] if node.target is aten.convolution.default else node.args[7:10]
    channels = operands[-1].shape[:2]
    if groups != 1 or is_transposed or not all(isinstance(size, int) for size in channels):
        return False
    return all(size % FEWEST_CHANNELS == 0 for size in channels)


def operands_of(node: Node) -> list[Node]:
    target: Any = node.target
    return [operand for place in CONVOLUTIONS[target] if isinstance(operand := node.args[place], Node)]


def is_last(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


def in_last(value: Any) -> Any:
    """Results of a convolution as cuDNN gives them. (Where fake tensors say otherwise, and are right, a program copies
    the result: its layout is looked at in every call.)"""
    if isinstance(value, (list, tuple)):
        return type(value)([in_last(one) for one in value])
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or is_last(value):
        return value
    with shape_cache.mode_of(value):
        return torch.empty_like(value, memory_format=torch.channels_last)


class Layouts:
    """One pass over a graph. Nodes get new values where their strides change."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.before: dict[Node, Any] = {}  # the old values of nodes whose layout is another one now
        self.restored: dict[Node, Node] = {}
        self.converted: dict[Node, Node] = {}

    def run(self) -> None:
        for node in list(self.module.graph.nodes):
            if node.op not in ("call_function", "output"):
                continue
            if gains(node):
                self.convert(node)
            elif not any(one in self.before for one in node.all_input_nodes):
                continue
            elif node.op == "output" or not self.keep(node):
                self.restore_arguments(node)

    def convert(self, node: Node) -> None:
        """The convolution with all operands in channels last."""
        args = list(node.args)
        target: Any = node.target
        for place in CONVOLUTIONS[target]:
            args[place] = self.in_channels_last(args[place], node)
        node.args = tuple(args)
        self.change(node, in_last(value_of(node.target, node.args, node.kwargs)))

    def in_channels_last(self, operand: Any, reader: Node) -> Node:
        if is_last(operand.meta["val"]):
            found: Node = operand
            return found
        known = self.converted.get(operand)
        if known is None:
            with operand.graph.inserting_before(reader):
                layout, name = torch.channels_last, f"{operand.name}_last"
                known = add_call(reader, aten.clone.default, operand, memory_format=layout, name=name)
            self.converted[operand] = known
        return known

    def keep(self, node: Node) -> bool:
        """Compute a node from what has another layout now; False where it needs the old one."""
        if node.target is operator.getitem:
            source: Any = node.args[0]
            if source not in self.before:
                return False
            self.change(node, source.meta["val"][node.args[1]])
            return True
        called = find_operator(node.target)
        if node.target is aten.max_pool2d_with_indices.default and any(user.args[1] == 1 for user in node.users):
            return False  # which maximum a window of only minus infinity has depends on the layout
        if called is None or called.random or not takes_any_layout(called):
            return False
        try:
            self.renew(node)
        except Exception:  # of torch's rules for shapes, of any kind
            return False
        return True

    def renew(self, node: Node) -> None:
        self.change(node, value_of(node.target, node.args, node.kwargs))

    def change(self, node: Node, value: Any) -> None:
        old = node.meta["val"]
        if strides_in(old) != strides_in(value):
            self.before[node] = old
            node.meta["val"] = value

    # ---- back --------------------------------------------------------------------------------------------------------

    def restore_arguments(self, node: Node) -> None:
        replaced = {one: self.old_layout(one, node) for one in node.all_input_nodes if one in self.before}
        node.args = torch.fx.node.map_arg(node.args, lambda one: replaced.get(one, one))
        node.kwargs = torch.fx.node.map_arg(node.kwargs, lambda one: replaced.get(one, one))

    def old_layout(self, node: Node, reader: Node) -> Node:
        """The value with the strides that it had: a copy, or the same view of a copy."""
        if node not in self.before:
            return node
        if node in self.restored:
            return self.restored[node]
        called, like = find_operator(node.target), node if reader.op == "output" else reader
        with node.graph.inserting_before(reader):
            if called is not None and called.is_view:
                args = torch.fx.node.map_arg(node.args, lambda one: self.old_layout(one, reader))
                found = add_call(like, node.target, *args, **node.kwargs, name=f"{node.name}_old")
            elif node.target is operator.getitem and find_is_view(node.args[0]):
                source = self.old_layout(node.args[0], reader)  # type: ignore[arg-type]
                found = add_call(like, operator.getitem, source, node.args[1], name=f"{node.name}_old")
            else:
                found = copy_with_strides(like, node, self.before[node])
        self.restored[node] = found
        return found


def takes_any_layout(called: Operator) -> bool:
    if not called.is_own:
        return False
    if called.is_view:
        return called.name in VIEWS_OF_ANY_LAYOUT
    return torch.Tag.pointwise in called.overload.tags or called.name in ANY_LAYOUT


def find_is_view(node: Any) -> bool:
    called = find_operator(node.target)
    return called is not None and called.is_view


def copy_with_strides(like: Node, node: Node, old: torch.Tensor) -> Node:
    name, layout = f"{node.name}_old", torch.contiguous_format
    if old.is_contiguous():
        return add_call(like, aten.clone.default, node, memory_format=layout, name=name)
    order = sorted(range(old.dim()), key=lambda dim: -int(old.stride()[dim]))
    inverse = [order.index(dim) for dim in range(old.dim())]
    moved = add_call(like, aten.permute.default, node, order, name=f"{name}_moved")
    copied = add_call(like, aten.clone.default, moved, memory_format=layout, name=f"{name}_copied")
    return add_call(like, aten.permute.default, copied, inverse, name=name)


def strides_in(value: Any) -> Any:
    """Strides, where they mean something."""
    if isinstance(value, (list, tuple)):
        return [strides_in(one) for one in value]
    if not isinstance(value, torch.Tensor):
        return None
    return [str(stride) for size, stride in zip(value.shape, value.stride(), strict=True) if size != 1]
