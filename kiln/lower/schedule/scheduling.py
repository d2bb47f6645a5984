"""The schedule of a lowered graph: launches of kernels and calls of ATen, in an order in which they can run.

Writes to no elements and values that nothing reads are dropped first. Then fusion (fusion.py) makes groups of writes,
kernels.py makes a kernel of each group, and step_order.py moves steps to where they hold the least memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from kiln.loops import ir
from kiln.loops.ir import Buffer, Write
from kiln.loops.kernel import Kernel
from kiln.loops.sizes import is_empty, is_one
from kiln.loops.steps import Call, Launch, Lowered, Scheduled, View

from .fusion import Group, fuse
from .kernel_arguments import with_arguments
from .kernel_names import kernel_name
from .kernels import KernelMaker, own_sizes, signature
from .recomputation import without_cheap_values
from .split_reductions import split_reductions
from .step_order import delay_launches
from .whole_reductions import shorten_reductions


def schedule(lowered: Lowered, device: str = "cpu") -> Scheduled:
    """Fuse the writes of a lowered graph, and make kernels of them, for a kind of device."""
    items = [without_reduction(item) for item in lowered.items if not writes_nothing(item)]
    if device == "cuda":
        items = drop_unused(without_cheap_values(items, lowered.outputs), lowered.outputs)
    shorten = shorten_reductions if device == "cuda" else split_reductions
    items = drop_unused(shorten(items, device), lowered.outputs)
    groups = fuse(items, device)
    readers = readers_of(groups, lowered.outputs)
    known: dict[Any, Kernel] = {}
    places = {node: place for place, node in enumerate(lowered.origins)}
    made_for = {item.buffer: item.node for item in items if isinstance(item, Write)}
    steps: list[Launch | Call] = []
    for group in groups:
        if group.call is not None:
            steps.append(group.call)
            continue
        origins = origins_of(group, lowered, places, made_for)
        kernel, sizes = with_arguments(KernelMaker(group, readers).make(kernel_name(origins, len(known))), device)
        same_kernel = known.setdefault((signature(kernel), own_sizes(kernel) if device == "cuda" else ()), kernel)
        steps.append(Launch(same_kernel, kernel.buffers, sizes, kernel.nodes, origins))
    steps = delay_launches(steps, lowered.outputs)
    return Scheduled(lowered.inputs, steps, lowered.outputs, lowered.called, lowered.aligned)


def origins_of(group: Group, lowered: Lowered, places: dict[Any, int], made_for: dict[Any, Any]) -> tuple[Any, ...]:
    """The nodes that a group computes, in the graph's order. ``made_for``: the nodes that buffers are written for."""
    found: dict[Any, None] = {}
    for write in (member.write for member in group.members):
        is_rest = all(made_for.get(buffer) is write.node for buffer in write.reads)  # of a computation in several parts
        found.update(dict.fromkeys((write.node,) if is_rest else lowered.origins.get(write.node, (write.node,))))
    return tuple(sorted(found, key=lambda node: places.get(node, len(places))))


def writes_nothing(item: Write | Call) -> bool:
    """Whether it is a write to no elements."""
    if isinstance(item, Call):
        return False
    kept = [size for axis, size in enumerate(item.shape) if item.is_scan or axis not in item.axes]
    return is_empty(kept)


def without_reduction(item: Write | Call) -> Write | Call:
    """A reduction along axes of one element becomes a plain write: otherwise fusion would reduce along longer axes."""
    if isinstance(item, Call) or item.reduce is None or not all(is_one(item.shape[axis]) for axis in item.axes):
        return item
    value = ir.constant(0, torch.int64) if item.reduce.startswith("arg") else item.value
    return Write(item.target, item.shape, value, node=item.node)


def drop_unused(items: Sequence[Write | Call], outputs: Sequence[Any]) -> list[Write | Call]:
    """Drops writes that nothing reads. Calls stay: they may have effects."""
    wanted = {output.buffer for output in outputs if isinstance(output, View)}
    kept: list[Write | Call] = []
    for item in reversed(items):
        if isinstance(item, Write) and item.buffer not in wanted:
            continue
        wanted.update(buffer for buffer in item.reads if isinstance(buffer, Buffer))
        kept.append(item)
    return kept[::-1]


def readers_of(groups: Iterable[Group], outputs: Sequence[Any]) -> dict[Any, set[int]]:
    """The groups that read each buffer, or add to it; -1 is the caller."""
    found: dict[Any, set[int]] = {}
    for group in groups:
        if group.call is not None:
            for buffer in group.call.reads:
                found.setdefault(buffer, set()).add(group.number)
        for member in group.members:
            for buffer in member.write.reads:
                found.setdefault(buffer, set()).add(group.number)
            if member.write.accumulate:
                found.setdefault(member.write.buffer, set()).add(-1)
    for output in outputs:
        if isinstance(output, View):
            found.setdefault(output.buffer, set()).add(-1)
    return found
