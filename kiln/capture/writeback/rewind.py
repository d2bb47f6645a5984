"""Undoing what a graph did before it raised, so that eager can run the frame from its start.

Eager's run then raises in the user's own line, with everything that comes before it done, or goes on in the program's
own handler. A graph takes a snapshot only if something in it may raise after it has drawn random numbers or changed an
input, and only of inputs small enough for the copy not to matter (running statistics, counters).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import torch

from ... import _native
from ..._native import is_instance as isinstance
from ...exc import CheckFailed, DriverError
from ...platform.torch_autograd import top_saved_tensors_hooks
from ...platform.torch_tensors import set_versions, version_of
from ..shadows.tensor_effects import is_restorable
from ..state.graph_inputs import ObjectInput
from ..state.trace import Trace

cuda_is_initialized: Callable[[], bool] = torch.cuda.is_initialized


def can_rewind(trace: Trace) -> bool:
    """Whether the frame may be run again from its start after its graph raised."""
    if trace.effects.raises_late and any(isinstance(item, ObjectInput) for item in trace.inputs.items):
        return False  # a generator of the program's own has moved on
    if trace.effects.cannot_rewind:
        return False
    return not trace.effects.raises_late or all(map(is_restorable, trace.effects.changed.values()))


def is_final(error: BaseException) -> bool:
    """Whether an error that a graph has raised is to be seen, though eager would not raise it."""
    of_the_gpu = isinstance(error, DriverError) and error.is_final
    return isinstance(error, CheckFailed) or of_the_gpu or raised_in_saving(error)


def raised_in_saving(error: BaseException) -> bool:
    """Whether an error came out of the user's hook for saved tensors: not the graph's, and nothing to run eager for.

    Checkpoints raise in theirs to stop computing anew as soon as they have all they need.
    """
    hooks = top_saved_tensors_hooks(True)
    code = getattr(hooks[0], "__code__", None) if hooks else None
    return code is not None and any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def autocast_depth() -> int:
    """How many autocast blocks are open. torch only tells on the way in."""
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth - 1


class Switches:
    """Torch's switches, and how many autocast blocks are open.

    torch keeps the casts of parameters until the outermost block ends; one that never ends would make every later
    block use the parameters' old values.
    """

    def __init__(self) -> None:
        self.state = _native.GlobalState()
        self.depth = autocast_depth()

    def restore(self) -> None:
        """Put everything back."""
        self.state.restore()
        depth = autocast_depth()
        if depth == self.depth:
            return
        step = torch.autocast_decrement_nesting if depth > self.depth else torch.autocast_increment_nesting
        for _ in range(abs(depth - self.depth)):
            step()
        if self.depth == 0:
            torch.clear_autocast_cache()


def versions_of(*tensors: torch.Tensor) -> tuple[int, ...]:
    """How often each tensor has been changed; -1 where that is not counted."""
    return tuple([-1 if tensor.is_inference() else version_of(tensor) for tensor in tensors])


class Snapshot:
    """Random states, and the contents of some tensors."""

    def __init__(self, *tensors: torch.Tensor):
        self.tensors = tensors
        with torch.no_grad():
            self.contents = [tensor.clone() for tensor in tensors]
        self.versions = versions_of(*tensors)
        self.random = torch.get_rng_state()
        self.devices = torch.cuda.get_rng_state_all() if cuda_is_initialized() else None

    def restore(self) -> None:
        torch.set_rng_state(self.random)
        if self.devices is not None:
            torch.cuda.set_rng_state_all(self.devices)
        for tensor, contents, version in zip(self.tensors, self.contents, self.versions, strict=True):
            # A change through `.data` does not count as a version; what holds NaN is written once too often.
            if (version,) == versions_of(tensor) and same_contents(tensor, contents):
                continue  # the graph did not get as far
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                tensor.copy_(contents)
            if version != -1:
                set_versions((tensor,), (version,))


def same_contents(tensor: torch.Tensor, contents: torch.Tensor) -> bool:
    return tensor.is_meta or torch.equal(tensor, contents)  # the former has none
