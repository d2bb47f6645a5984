"""How a new value of a view gets into what it is a view of: one function for each view operation.

``inverse(graph, step, base, new, base_value)`` gives the node of the base with the view's elements replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ...program.memory import has_overlap
from ...program.unsupported import Unsupported

if TYPE_CHECKING:
    from .functional_graph import FunctionalGraph, Step, View

aten = torch.ops.aten
Inverse = Callable[["FunctionalGraph", "Step", torch.fx.Node, torch.fx.Node, torch.Tensor], torch.fx.Node]


def given(step: Step) -> dict[str, Any]:
    """The arguments of a view operation by name, defaults filled in."""
    arguments = step.function._schema.arguments[1:]
    found = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    found.update(zip([argument.name for argument in arguments], step.rest, strict=False))
    return {**found, **step.keywords}


def same(graph, step, base, new, value):
    return new


def reshaped(graph, step, base, new, value):
    return reshape(graph, new, list(value.shape))


def reshape(graph: FunctionalGraph, node: torch.fx.Node, sizes: list) -> torch.fx.Node:
    """A node with another shape; copied first where its layout does not allow a view."""
    try:
        return graph.compute(aten.view.default, node, sizes)
    except RuntimeError:
        dense = graph.compute(aten.clone.default, node, memory_format=torch.contiguous_format)
        return graph.compute(aten.view.default, dense, sizes)


def transposed(graph, step, base, new, value):
    told = given(step)
    return graph.compute(aten.transpose.int, new, told["dim0"], told["dim1"])


def turned(graph, step, base, new, value):
    return graph.compute(aten.t.default, new)


def permuted(graph, step, base, new, value):
    dims = [dim % value.dim() for dim in given(step)["dims"]]
    return graph.compute(aten.permute.default, new, [dims.index(place) for place in range(len(dims))])


def unsqueezed(graph, step, base, new, value):
    return graph.compute(aten.squeeze.dim, new, given(step)["dim"])


def sliced(graph, step, base, new, value):
    told = given(step)
    return graph.compute(aten.slice_scatter.default, base, new, told["dim"], told["start"], told["end"], told["step"])


def selected(graph, step, base, new, value):
    told = given(step)
    return graph.compute(aten.select_scatter.default, base, new, told["dim"], told["index"])


def diagonal(graph, step, base, new, value):
    told = given(step)
    return graph.compute(aten.diagonal_scatter.default, base, new, told["offset"], told["dim1"], told["dim2"])


def strided(graph, step, base, new, value):
    told = given(step)
    where = told["storage_offset"]
    if where is None:
        where = value.storage_offset()
    return graph.compute(aten.as_strided_scatter.default, base, new, told["size"], told["stride"], where)


def unbound(graph, step, base, new, value):
    return graph.compute(aten.select_scatter.default, base, new, given(step)["dim"], step.index)


def split(graph, step, base, new, value):
    told = given(step)
    size = told.get("split_size", told.get("split_sizes"))
    if isinstance(size, (list, tuple)):
        start, length = sum(size[: step.index]), size[step.index]
    else:
        start, length = size * step.index, size
    return graph.compute(aten.slice_scatter.default, base, new, told["dim"], start, start + length)


def retyped(graph, step, base, new, value):
    return graph.compute(aten.view.dtype, new, value.dtype)


def to_complex(graph, step, base, new, value):
    return graph.compute(aten.view_as_complex.default, new)


def to_real(graph, step, base, new, value):
    return graph.compute(aten.view_as_real.default, new)


def again(graph, step, base, new, value):
    """An operation that undoes itself."""
    return graph.compute(step.function, new)


INVERSES: dict[Any, Inverse] = {
    aten.detach.default: same,
    aten.alias.default: same,
    aten.lift_fresh.default: same,
    aten.view.default: reshaped,
    aten._unsafe_view.default: reshaped,
    aten._reshape_alias.default: reshaped,
    aten.squeeze.default: reshaped,
    aten.squeeze.dim: reshaped,
    aten.squeeze.dims: reshaped,
    aten.expand.default: reshaped,  # where nothing was repeated
    aten.transpose.int: transposed,
    aten.t.default: turned,
    aten.permute.default: permuted,
    aten.unsqueeze.default: unsqueezed,
    aten.slice.Tensor: sliced,
    aten.select.int: selected,
    aten.diagonal.default: diagonal,
    aten.as_strided.default: strided,
    aten.unbind.int: unbound,
    aten.split.Tensor: split,
    aten.split_with_sizes.default: split,
    aten.view.dtype: retyped,
    aten.view_as_real.default: to_complex,
    aten.view_as_complex.default: to_real,
    aten._conj.default: again,
    aten._neg_view.default: again,
}


def write_overlapping(graph: FunctionalGraph, root: View, view: View, new: torch.fx.Node) -> torch.fx.Node:
    """Write through a view of an expanded tensor: by the places of its elements in the memory of the first tensor."""
    first, target = root.value, view.value
    if not first.is_contiguous() or has_overlap(target):
        raise Unsupported("a change of an expanded tensor whose memory is not contiguous")
    count = graph.compute(aten.arange.default, first.numel(), device=first.device)
    start = target.storage_offset() - first.storage_offset()
    places = graph.compute(aten.as_strided.default, count, list(target.shape), list(target.stride()), start)
    flat = reshape(graph, graph.current(root), [first.numel()])
    put = graph.compute(aten.index_put.default, flat, [places], new)
    return reshape(graph, put, list(first.shape))
