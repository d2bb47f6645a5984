"""Writing through views: for each view operation a function that puts a view's new value into its base.

``inverse(graph, step, base, new, base_value)`` gives the node of the base with the view's elements replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ...platform.torch_operators import schema_of
from ...program.memory import has_overlap
from ...program.unsupported import Unsupported

if TYPE_CHECKING:
    from .functional_graph import FunctionalGraph, Step, View

aten = torch.ops.aten
Node = torch.fx.Node
Inverse = Callable[["FunctionalGraph", "Step", Node, Node, torch.Tensor], Node]


def arguments_of(step: Step) -> dict[str, Any]:
    """The arguments of a view operation by name, defaults filled in."""
    arguments = schema_of(step.function).arguments[1:]
    found = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    found.update(zip([argument.name for argument in arguments], step.rest, strict=False))
    return {**found, **step.keywords}


def reshaped(graph: FunctionalGraph, step: Step, base: Node, new: Node, value: torch.Tensor) -> Node:
    return reshape(graph, new, list(value.shape))


def reshape(graph: FunctionalGraph, node: Node, sizes: list[Any]) -> Node:
    """A node with another shape; copied first where its layout does not allow a view."""
    try:
        return graph.compute(aten.view.default, node, sizes)
    except RuntimeError:
        dense = graph.compute(aten.clone.default, node, memory_format=torch.contiguous_format)
        return graph.compute(aten.view.default, dense, sizes)


def transposed(graph: FunctionalGraph, step: Step, base: Node, new: Node, value: torch.Tensor) -> Node:
    given = arguments_of(step)
    return graph.compute(aten.transpose.int, new, given["dim0"], given["dim1"])


def permuted(graph: FunctionalGraph, step: Step, base: Node, new: Node, value: torch.Tensor) -> Node:
    dims = [dim % value.dim() for dim in arguments_of(step)["dims"]]
    return graph.compute(aten.permute.default, new, [dims.index(place) for place in range(len(dims))])


def unsqueezed(graph: FunctionalGraph, step: Step, base: Node, new: Node, value: torch.Tensor) -> Node:
    return graph.compute(aten.squeeze.dim, new, arguments_of(step)["dim"])


def sliced(graph: FunctionalGraph, step: Step, base: Node, new: Node, value: torch.Tensor) -> Node:
    given = arguments_of(step)
    return graph.compute(
        aten.slice_scatter.default, base, new, given["dim"], given["start"], given["end"], given["step"]
    )


def selected(graph: FunctionalGraph, step: Step, base: Node, new: Node, value: torch.Tensor) -> Node:
    given = arguments_of(step)
    index = given["index"] if step.index is None else step.index  # of select, or of unbind
    return graph.compute(aten.select_scatter.default, base, new, given["dim"], index)


def diagonal(graph: FunctionalGraph, step: Step, base: Node, new: Node, value: torch.Tensor) -> Node:
    given = arguments_of(step)
    return graph.compute(aten.diagonal_scatter.default, base, new, given["offset"], given["dim1"], given["dim2"])


def strided(graph: FunctionalGraph, step: Step, base: Node, new: Node, value: torch.Tensor) -> Node:
    given = arguments_of(step)
    where = given["storage_offset"]
    if where is None:
        where = value.storage_offset()
    return graph.compute(aten.as_strided_scatter.default, base, new, given["size"], given["stride"], where)


def split(graph: FunctionalGraph, step: Step, base: Node, new: Node, value: torch.Tensor) -> Node:
    given = arguments_of(step)
    size: Any = given.get("split_size", given.get("split_sizes"))
    index = step.index or 0
    if isinstance(size, (list, tuple)):
        start, length = sum(size[:index]), size[index]
    else:
        start, length = size * index, size
    return graph.compute(aten.slice_scatter.default, base, new, given["dim"], start, start + length)


def inverse_operator(function: Any) -> Inverse:
    """An operator of one argument that undoes the view."""
    return lambda graph, step, base, new, value: graph.compute(function, new)


INVERSES: dict[Any, Inverse] = {
    aten.detach.default: lambda graph, step, base, new, value: new,
    aten.alias.default: lambda graph, step, base, new, value: new,
    aten.lift_fresh.default: lambda graph, step, base, new, value: new,
    aten.view.default: reshaped,
    aten._unsafe_view.default: reshaped,
    aten._reshape_alias.default: reshaped,
    aten.squeeze.default: reshaped,
    aten.squeeze.dim: reshaped,
    aten.squeeze.dims: reshaped,
    aten.expand.default: reshaped,  # where nothing was repeated
    aten.transpose.int: transposed,
    aten.t.default: inverse_operator(aten.t.default),
    aten.permute.default: permuted,
    aten.unsqueeze.default: unsqueezed,
    aten.slice.Tensor: sliced,
    aten.select.int: selected,
    aten.diagonal.default: diagonal,
    aten.as_strided.default: strided,
    aten.unbind.int: selected,
    aten.split.Tensor: split,
    aten.split_with_sizes.default: split,
    aten.view.dtype: lambda graph, step, base, new, value: graph.compute(aten.view.dtype, new, value.dtype),
    aten.view_as_real.default: inverse_operator(aten.view_as_complex.default),
    aten.view_as_complex.default: inverse_operator(aten.view_as_real.default),
    aten._conj.default: inverse_operator(aten._conj.default),
    aten._neg_view.default: inverse_operator(aten._neg_view.default),
}


def write_overlapping(graph: FunctionalGraph, root: View, view: View, new: Node) -> Node:
    """Write through a view of an expanded tensor: by the positions of its elements in the first tensor's memory."""
    first, target = root.value, view.value
    if not first.is_contiguous() or has_overlap(target):
        raise Unsupported("a change of an expanded tensor whose memory is not contiguous")
    count = graph.compute(aten.arange.default, first.numel(), device=first.device)
    start = target.storage_offset() - first.storage_offset()
    places = graph.compute(aten.as_strided.default, count, list(target.shape), list(target.stride()), start)
    flat = reshape(graph, graph.current(root), [first.numel()])
    put = graph.compute(aten.index_put.default, flat, [places], new)
    return reshape(graph, put, list(first.shape))
