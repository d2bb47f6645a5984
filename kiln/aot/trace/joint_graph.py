"""A joint graph: a program's forward and backward as one functional graph, and what the caller can see of the forward.

`Memory` is memory that is visible after the call, `Output` one returned value. A visible tensor with a place in
autograd's graph has an *edge*; the *stages* are the compiled autograd nodes between inputs and edges.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.fx

from ...platform.light_dataclass import dataclass
from ...program.unsupported import Unsupported
from . import autocast_state
from .autograd_edges import Edge, Path
from .backward_stages import Stage
from .functional_graph import FunctionalGraph, Storage, View
from .graph_runner import Registration


class AliasedInputs(Unsupported):
    """The program changes memory that several of its inputs share."""

    def __init__(self) -> None:
        super().__init__("inputs that share memory, which the program changes")


@dataclass(eq=False)
class Memory:
    """Memory that is visible after the call: a changed input's, or made by the graph."""

    storage: Storage
    root: torch.Tensor  # the fake that its views are of, as it is in the end
    input: int | None  # which input it belongs to
    start: View  # where its tensors begin: the storage's root, or a view that autograd does not know as a view
    edge: Edge | None = None  # the root's place in autograd's graph, where the graph gave it one
    parent: tuple[Literal["input", "memory"], int] | None = None  # in the latter case, whose content it is a view of

    @property
    def has_own_counter(self) -> bool:
        """Whether its version counter is not that of the memory that it is a view of."""
        return self.start.step is not None and self.start.step.hidden


@dataclass(eq=False)
class Output:
    """One value that the program returns."""

    kind: Literal["constant", "number", "input", "memory"]
    value: Any = None  # constants and numbers
    fake: Any = None
    index: int = -1  # of the input, or of the memory
    view: View | None = None  # how it views that; None where it is the input or the memory's root itself
    edge: Edge | None = None


@dataclass(frozen=True)
class Pattern:
    """Which incoming gradients of a stage are defined, and which outgoing ones are wanted, as bit masks."""

    stage: int
    defined: int
    needed: int
    autocast: autocast_state.State = ()  # under which it runs


@dataclass
class JointGraph:
    """The result of a trace."""

    functional: FunctionalGraph
    module: torch.fx.GraphModule
    specs: list[Any]
    outputs: list[Output]
    memories: list[Memory]
    stages: list[Stage]
    forward_count: int  # how many of the graph's outputs are the forward's
    registrations: list[Registration]
    numbers: list[Any]  # symbolic outputs, after the memories
    version_changes: dict[int, int]  # how often an input was changed
    final_grad_mode: bool | None  # where it differs from the one before
    reshaped: dict[int, View]  # inputs whose shape was changed in place
    inputs: list[Any]  # the fakes
    input_nodes: list[torch.fx.Node | None]  # placeholders; None for what is no graph input
    random_devices: list[torch.device]  # where random numbers are drawn
    replayed: dict[torch.fx.Node, torch.fx.Node]  # random nodes of the backward: the forward's whose numbers they draw
    has_new_edge: list[bool]  # by input: a change of its shape gave it another place in autograd's graph
    aliases: dict[View, int]  # views that are inputs as well
    knows_aliasing: bool  # which inputs share memory is known
    hooked_paths: list[tuple[Path, int]]  # inner places with hooks, by the path from the roots

    @property
    def changed_inputs(self) -> list[int]:
        """Inputs whose content is changed."""
        return [memory.input for memory in self.memories if memory.input is not None]
