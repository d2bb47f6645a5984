"""Kernels of attention in torch's libraries are loaded while a graph that calls them is compiled.

The driver loads a kernel at its first call, and compiles it for the GPU if it was not compiled before: half a second
for attention, and as long again for its derivative, outside Python's lock. A thread makes these calls. The rows of the
inputs are all the same one, so that only results take memory; the program's random numbers and tensors are left alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from ..program.operators.operator_table import operator_of

aten = torch.ops.aten
ATTENTION = frozenset(
    {
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_backward.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_efficient_attention_backward.default,
    }
)
MOST_BYTES = 1 << 25  # of one result

Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, str]  # sizes, strides, and the kind of device
Call = tuple[Any, tuple[Any, ...]]
_loaded: set[Call] = set()  # in this process


def load_ahead(module: torch.fx.GraphModule) -> threading.Thread | None:
    """Have a thread load the kernels of attention that a graph for a GPU calls, unless it was done before."""
    found = [(call, device) for call, device in calls_of(module) if call not in _loaded]
    if not found or torch.cuda.is_current_stream_capturing() or torch.are_deterministic_algorithms_enabled():
        return None
    _loaded.update(call for call, _ in found)
    streams = {device: torch.cuda.current_stream(device) for _, device in found}
    work = [(call, streams[device]) for call, device in found]
    thread = threading.Thread(target=load, args=(work,), name="kiln-load")
    try:
        thread.start()
    except RuntimeError:  # no more threads: the program's own calls load them
        return None
    return thread


def load(work: list[tuple[Call, torch.cuda.Stream]]) -> None:
    for (target, arguments), stream in work:
        with contextlib.suppress(Exception), torch.cuda.stream(stream), torch.no_grad():
            target(*[value_of(argument, stream.device) for argument in arguments])


def calls_of(module: torch.fx.GraphModule) -> Iterator[tuple[Call, torch.device]]:
    """The calls of attention in a graph, each kind once, with their device."""
    seen: set[Call] = set()
    for node in module.graph.nodes:
        if node.target not in ATTENTION:
            continue
        value = node.args[0].meta["val"]
        if value.device.type != "cuda" or node.kwargs.keys() - {"scale"}:
            continue
        with contextlib.suppress(TypeError):  # sizes that are no numbers have no hash
            call = node.target, arguments_of(node)
            if call not in seen:
                seen.add(call)
                yield call, value.device


def arguments_of(node: torch.fx.Node) -> tuple[Any, ...]:
    """The arguments of a call without dropout, which would draw random numbers; tensors as forms."""
    target: Any = node.target
    names = [argument.name for argument in operator_of(target).arguments]
    given = dict(zip(names, node.args, strict=False)) | {"dropout_p": 0.0}
    return tuple([form_of(given[name]) if name in given else 0.0 for name in names[: len(node.args)]])


def form_of(value: Any) -> Any:
    if not isinstance(value, torch.fx.Node):
        return tuple(value) if isinstance(value, list) else value
    tensor = value.meta["val"]
    if not isinstance(tensor, torch.Tensor):
        return tensor
    size = list(tensor.shape)
    while len(size) == 4 and size[0] > 1 and tensor.itemsize * torch.Size(size).numel() > MOST_BYTES:
        size[0] = -(-size[0] // 2)
    return (tuple(size), tuple(tensor.stride()), tensor.dtype, tensor.device.type)


def value_of(argument: Any, device: torch.device) -> Any:
    """What a call is made with: for a tensor of rows, one row in place of all of them."""
    if not (isinstance(argument, tuple) and len(argument) == 4 and isinstance(argument[2], torch.dtype)):
        return list(argument) if isinstance(argument, tuple) else argument
    size, _, dtype, kind = argument
    place = device if kind == "cuda" else torch.device(kind)
    if len(size) < 4:
        return torch.zeros(size, dtype=dtype, device=place)
    return torch.zeros(size[-1], dtype=dtype, device=place).expand(size)
