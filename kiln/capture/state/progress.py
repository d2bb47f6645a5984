"""How far a capture has come, and when to give up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import config
from ...platform.light_dataclass import dataclass
from .values import GraphBreak

if TYPE_CHECKING:
    from .trace import Trace

CHECK_EVERY = 1000
"""After how many steps to see whether the graph grows."""


@dataclass(eq=False, slots=True)
class Progress:
    """Counts steps: a loop without end must end in a break."""

    steps: int = 0  # of loops, and calls
    entered: int = 0  # frames inlined and builtins run: an instruction that breaks after one is run again
    next_check: int = 0
    growth: tuple[int, int] = (0, 0)  # how much had been interpreted when the graph was last seen to grow, its size
    start_over: bool = False  # something that capture assumed at its beginning is no longer true
    key_method_depth: int = 0  # inside a __hash__ or __eq__ that native code is going to run again (hashing.py)
    key_methods_run: bool = False  # such a method was interpreted

    def __post_init__(self) -> None:
        self.next_check = min(CHECK_EVERY, config.max_instructions + 1)

    def count_step(self, trace: Trace) -> None:
        """A step of a loop, or a call."""
        self.steps += 1
        if self.steps >= self.next_check:
            self.check(trace)

    def check(self, trace: Trace) -> None:
        """Give up where capture does not come to an end, or only computes what Python computes much faster."""
        self.next_check = min(self.steps + CHECK_EVERY, config.max_instructions + 1)
        if self.steps > config.max_instructions:
            raise trace.fail("a loop that goes on and on", "is it without end? Otherwise let it run outside the graph")
        work, nodes = self.steps + self.entered, len(trace.graph.nodes)
        if nodes != self.growth[1]:
            self.growth = (work, nodes)
        elif work - self.growth[0] > config.max_idle_steps and not trace.options.fullgraph:
            raise long_computation(trace)


def long_computation(trace: Trace) -> GraphBreak:
    """The break for what Python computes much faster; for the whole frame where nothing was captured yet."""
    nothing = all(node.op == "placeholder" for node in trace.graph.nodes)
    hint = "compute it outside the compiled function"
    return trace.fail("a long computation without tensors", hint, whole=nothing)
