"""Reports of differentiated graphs, for ``kiln.explain`` and ``KILN_LOG=aot``: the graphs, and bytes saved.

What eager would save is found by running the program on fakes once more, with hooks on saved tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ..platform.torch_autograd import set_grad_enabled
from ..platform.torch_fake import without_torch_compiler
from ..platform.torch_tensors import address_of, storage_address
from ..program.quiet import quiet
from ..report import events
from .partition.node_values import hint_of, line_of
from .partition.saved_report import saved_bytes
from .trace.graph_runner import GraphRunner
from .trace.input_specs import InputSpec
from .trace.recording import Recorder

Modules = dict[str, torch.fx.GraphModule]


def report(program: Any, specs: Sequence[Any], mode: Any, modules: Modules, forward_count: int) -> None:
    """Report a differentiated graph, if anybody listens."""
    if not events.is_asked_about_gradients():
        return
    found = saved_bytes(modules["forward"], forward_count)
    own = [saved for saved in found.tensors if not saved.is_input]
    lines = [
        f"{saved.name}: {str(saved.dtype).removeprefix('torch.')}{list(saved.shape)}, "
        f"{events.in_bytes(saved.bytes)}{f', {saved.where}' if saved.where else ''}"
        for saved in own
    ]
    name = name_of(program, modules["joint"])
    saved = events.Saved(found.activation_bytes, found.total_bytes, len(own))
    events.differentiated(events.Differentiated(name, modules, saved, saved_in_eager(program, specs, mode), lines))


def report_inference(program: Any, module: torch.fx.GraphModule) -> None:
    """Report a graph that no gradient flows through."""
    if events.is_asked_about_gradients():
        nothing = events.Saved(0, 0, 0)
        found = events.Differentiated(name_of(program, module), {"inference": module}, nothing, nothing)
        events.differentiated(found)


def name_of(program: Any, module: torch.fx.GraphModule) -> str:
    """The line of the user's code that a graph begins at, or the name of the traced program."""
    lines = (line_of(node) for node in module.graph.nodes)
    return next((line for line in lines if line), getattr(program, "__name__", type(program).__name__))


def saved_in_eager(program: Any, specs: Sequence[Any], mode: Any) -> events.Saved:
    """What autograd saves in a program's forward pass; several views of one memory count once."""
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[address_of(storage)] = storage
        return tensor

    inputs = [spec.make(mode) if isinstance(spec, InputSpec) else spec for spec in specs]
    given = {storage_address(each) for each in inputs if isinstance(each, torch.Tensor)}
    before = torch.is_grad_enabled()
    try:
        with (
            quiet(),
            without_torch_compiler(),
            mode,
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        ):
            GraphRunner(Recorder({})).run(program, inputs)
    finally:
        set_grad_enabled(before)
    sizes = {key: hint_of(storage.nbytes()) for key, storage in kept.items()}
    own = [size for key, size in sizes.items() if key not in given]
    return events.Saved(sum(own), sum(sizes.values()), len(own))
