"""Changes in place, by a program's hooks, of what a backward pass has saved and reads later: eager's error.

The graph of a pass was traced when all that it saved was as it should be. Eager notices at each node what was changed
since the forward pass; a compiled pass has the hooks' code inside. Where capture sees that a hook has changed a tensor
that the graph itself reads after that, the pass is left to torch: as a whole, if nothing has run yet; else from where
the pass asks, after the hook, whether everything is as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...program.call_markers import marker_of
from ...program.memory import storage_key
from ..state.values import Restart
from .tensor_effects import changed_inputs

if TYPE_CHECKING:
    from ..state.trace import Trace


def note_change_by_hook(trace: Trace, leaves: list[torch.Tensor], changed: list[torch.Tensor]) -> None:
    """An operation has run on these tensors, and changed some of them."""
    inside = len(trace.frames) > 1
    if inside and changed:
        touched = changed_inputs(trace, changed).values()
        trace.hooks.changed_memory |= {storage_key(info.real): len(trace.hooks.read_properties) for info in touched}
    elif not inside and trace.hooks.changed_memory:
        for leaf in leaves:
            info = trace.fakes.infos.get(id(leaf))
            if info is None or info.real is None:
                continue
            place = trace.hooks.changed_memory.get(storage_key(info.real))
            if place is not None:
                raise leave_pass_to_torch(trace, place)


def leave_pass_to_torch(trace: Trace, place: int) -> BaseException:
    """What ends this capture; the first fact that was asked for after the change is at a place."""
    from ..state.values import BreakPoint

    reason = trace.fail("a hook has changed in place what the backward pass reads later")
    if place >= len(trace.hooks.read_properties):
        return reason
    getter, owner, where = trace.hooks.read_properties[place]
    abandon = marker_of(getter).abandon
    if trace.inputs.consumed and abandon is not None:  # the pass has just begun
        return abandon(owner)
    return Restart(BreakPoint(*where, reason))
