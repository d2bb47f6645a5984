"""Gives products of float16 and bfloat16 operands whose rows begin at multiples of 16 bytes, on a GPU.

cuBLAS loads 16 bytes at once if all rows of operands and result begin at such places; otherwise its kernels take up to
five times as long. So sizes that are no multiple of eight are filled up with zeros: a vocabulary of 50,257, features of
several kinds side by side. An operand is filled up where it is computed, once for all of its products, forward and
backward. Of the result the part that is wanted is a view.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ...program.graph_device import device_of_graph
from ...program.operators.operator_table import find_operator
from ..graph_nodes import Node, add_call, value_of

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default)
LOW_TYPES = (torch.float16, torch.bfloat16)
STEP = 8  # elements in 16 bytes
SECONDS_SAVED = 7e-15  # for each operation: on an H200, products of unaligned rows run at 105 TFLOP/s instead of 550
SECONDS_OF_BYTE = 1 / 2e12  # to copy an operand, with a margin of two
SECONDS_OF_LAUNCH = 5e-6
TRANSPOSES = (aten.t.default, aten.transpose.int, aten.permute.default)
VIEWS = frozenset("slice select permute t transpose expand unsqueeze squeeze view _unsafe_view".split())
READS_ANY_STRIDES = frozenset("_to_copy mm addmm sum amax amin cat".split())


def align_products(module: torch.fx.GraphModule) -> None:
    if device_of_graph(module).type != "cuda":
        return
    padding = Padding()
    for target in PRODUCTS:
        for node in module.graph.find_nodes(op="call_function", target=target):
            axes = axes_to_pad(node)
            if axes:
                rewrite(node, axes, padding)


def axes_to_pad(node: Node) -> str:
    """Those of the product's axes, "m", "k" and "n", that are to be filled up: (m, k) times (k, n)."""
    operands = [arg.meta.get("val") if isinstance(arg, Node) else None for arg in node.args]
    a, b = operands[-2:]
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.device.type != "cuda":
        return ""
    if any(not isinstance(one, torch.Tensor) or one.dtype not in LOW_TYPES for one in operands):
        return ""
    (m, k), n = a.shape, b.shape[1]
    if not all(type(size) is int and size >= STEP for size in (m, k, n)):
        return ""
    axes = "m" if a.stride(0) == 1 and a.stride(1) != 1 else ""
    axes += "k" if a.stride(1) == 1 or b.stride(0) == 1 else ""
    is_one_bias = len(operands) == 2 or (operands[0] is not None and operands[0].shape == (n,))
    axes = "".join(axis for axis in axes + "n" if {"m": m, "k": k, "n": n}[axis] % STEP)
    if not axes or (not is_one_bias and axes != "k"):
        return ""
    copied = sum(one.numel() * one.itemsize for one in (a, b))
    is_worth_it = 2 * m * k * n * SECONDS_SAVED > copied * SECONDS_OF_BYTE + SECONDS_OF_LAUNCH
    return axes if is_worth_it else ""


def rewrite(node: Node, axes: str, padding: Padding) -> None:
    *bias, a, b = node.args
    assert isinstance(a, Node) and isinstance(b, Node)
    rows, columns = node.meta["val"].shape
    for axis, place in (("m", 0), ("k", 1)):
        a = padding.padded(a, place) if axis in axes else a
    for axis, place in (("k", 0), ("n", 1)):
        b = padding.padded(b, place) if axis in axes else b
    if bias and "n" in axes:
        assert isinstance(bias[0], Node)
        bias = [padding.padded(bias[0], 0)]
    target: Any = node.target
    with node.graph.inserting_before(node):
        found = add_call(node, target, *bias, a, b, name=f"{node.name}_aligned", **node.kwargs)
        for axis, place, size in (("m", 0, rows), ("n", 1, columns)):
            if axis in axes:
                found = add_call(node, aten.slice.Tensor, found, place, 0, size, name=f"{node.name}_part_{axis}")
    replace(node, found)
    node.graph.erase_node(node)


class Padding:
    """Operands that are filled up with zeros, each once."""

    def __init__(self) -> None:
        self.known: dict[tuple[Node, int], Node] = {}

    def padded(self, node: Node, axis: int) -> Node:
        found = self.known.get((node, axis))
        if found is None:
            inner = self.padded(node.all_input_nodes[0], 1 - axis) if is_transpose(node) else None
            with node.graph.inserting_before(after(node)):
                found = self.known[node, axis] = write(node, axis, inner)
        return found


def is_transpose(node: Node) -> bool:
    is_swap = node.target is not aten.permute.default or node.args[1] == [1, 0]
    return node.target in TRANSPOSES and is_swap and node.all_input_nodes[0].meta["val"].dim() == 2


def write(node: Node, axis: int, inner: Node | None) -> Node:
    """A node's value filled up along an axis: ``inner`` transposed, or a concatenation with more at its end."""
    value, name = node.meta["val"], f"{node.name}_filled_{axis}"
    more = -value.shape[axis] % STEP
    if inner is not None:
        return add_call(node, aten.t.default, inner, name=name)
    dim = node.args[1] if node.target is aten.cat.default and len(node.args) > 1 else 0
    if node.target is aten.cat.default and isinstance(dim, int) and dim % value.dim() == axis:
        parts: Any = node.args[0]
        shape = [more if place == axis else size for place, size in enumerate(value.shape)]
        zeros = add_call(node, aten.new_zeros.default, parts[0], shape, name=f"{name}_zeros")
        return add_call(node, aten.cat.default, [*parts, zeros], dim, name=name)
    pads = [0, more] if axis == value.dim() - 1 else [0, 0, 0, more]
    return add_call(node, aten.constant_pad_nd.default, node, pads, name=name)


def after(node: Node) -> Node:
    """The node before which something is inserted that follows a node."""
    following = node.next
    while following.op in ("placeholder", "get_attr"):
        following = following.next
    return following


# ---- readers of the result -------------------------------------------------------------------------------------------


def replace(node: Node, part: Node) -> None:
    """Gives a node's readers the part of a larger tensor; a contiguous copy to those to which strides may matter."""
    copy: Node | None = None
    for reader in list(node.users):
        views: dict[Node, Any] = {node: part.meta["val"]}
        if takes_strides(reader, views):
            reader.replace_input_with(node, part)
            for view in views.keys() - {node}:
                view.meta["val"] = views[view]
            continue
        if copy is None:
            with node.graph.inserting_before(node):
                how = {"memory_format": torch.contiguous_format}
                copy = add_call(node, aten.clone.default, part, name=f"{node.name}_copy", **how)
        reader.replace_input_with(node, copy)


def takes_strides(reader: Node, views: dict[Node, Any]) -> bool:
    """Whether a node gives the same for values with other strides. ``views`` has these; the views of them are added."""
    called = find_operator(reader.target)
    if called is None:
        return False
    if called.name not in VIEWS:
        return called.name in READS_ANY_STRIDES or torch.Tag.pointwise in called.overload.tags
    try:
        views[reader] = value_of(reader.target, reader.args, reader.kwargs, views)
    except (RuntimeError, ValueError):  # a view that these strides do not allow
        return False
    return all(takes_strides(user, views) for user in reader.users)
