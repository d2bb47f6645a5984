"""What differentiating a graph gave, for those who ask (``kiln.explain``, ``KILN_LOG=aot``): graphs, and bytes saved.

What eager would save is found by running the program on fakes once more, and looking at what autograd keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ..program.quiet import quiet
from ..program.shapes.fake_tensors import without_torch_compiler
from ..report import events
from .partition.partitioners import line_of, saved_bytes
from .partition.recompute_cost import hint_of
from .trace.graph_runner import Runner
from .trace.input_specs import InputSpec
from .trace.recording import Recorder

Modules = dict[str, torch.fx.GraphModule]


def report(program: Any, specs: Sequence[Any], mode: Any, modules: Modules, forward_count: int) -> None:
    """Tell of a graph that was differentiated, if anybody listens."""
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
    """Tell of a graph that no gradient flows through."""
    if events.is_asked_about_gradients():
        nothing = events.Saved(0, 0, 0)
        found = events.Differentiated(name_of(program, module), {"inference": module}, nothing, nothing)
        events.differentiated(found)


def name_of(program: Any, module: torch.fx.GraphModule) -> str:
    """The line that a graph begins at, or the name of what it was traced from."""
    lines = (line_of(node) for node in module.graph.nodes)
    return next((line for line in lines if line), getattr(program, "__name__", type(program).__name__))


def saved_in_eager(program: Any, specs: Sequence[Any], mode: Any) -> events.Saved:
    """What autograd keeps of a program's forward pass; several views of one memory count once."""
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    inputs = [spec.make(mode) if isinstance(spec, InputSpec) else spec for spec in specs]
    given = {each.untyped_storage()._cdata for each in inputs if isinstance(each, torch.Tensor)}
    before = torch.is_grad_enabled()
    try:
        with (
            quiet(),
            without_torch_compiler(),
            mode,
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        ):
            Runner(Recorder({})).run(program, inputs)
    finally:
        torch._C._set_grad_enabled(before)
    sizes = {key: hint_of(storage.nbytes()) for key, storage in kept.items()}
    own = [size for key, size in sizes.items() if key not in given]
    return events.Saved(sum(own), sum(sizes.values()), len(own))
