"""State of torch that the program sees and changes: `__torch_function__`, inference mode, switches."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ...platform.light_dataclass import dataclass


@dataclass(eq=False, slots=True)
class Overrides:
    """Modes and classes with a ``__torch_function__`` (overrides.py)."""

    modes: list[object] = field(default_factory=list)  # that the program sees as active
    outer_modes: list[object] = field(default_factory=list)  # those of them that were entered outside
    level: Any = 0  # how much of __torch_function__ is off
    outer_level: Any = 0
    has_subclasses: bool = False  # a tensor of a class of the program's was seen
    has_overriding: bool = False  # a tensor whose class has a __torch_function__ of its own was seen
    conversions: dict[int, type] = field(default_factory=dict)  # output of the graph -> class that it gets afterwards


@dataclass(eq=False, slots=True)
class SwitchChanges:
    """Switches of torch that the program throws while it is traced (torch_state.py)."""

    changed: bool = False  # grad mode, autocast …
    inference_modes: list[Any] = field(default_factory=list)  # entered by the program, and so for real
    inference_used: bool = False  # the graph enters inference mode
