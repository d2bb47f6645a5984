"""What the recorder notes of each node of a traced graph, in fx's ``meta``."""

from __future__ import annotations

from typing import Any

import torch.fx

from ...platform.light_dataclass import dataclass

VALUE = "val"  # torch's own key for the fake result
ORIGIN = "kiln_origin"


@dataclass(frozen=True, slots=True)
class Origin:
    """The call of a walk during which a node was recorded: its index, and a label for comments."""

    call: int
    label: str


NOWHERE = Origin(-1, "")


def note(node: torch.fx.Node, value: Any, origin: Origin) -> None:
    node.meta[VALUE] = value
    node.meta[ORIGIN] = origin


def set_value(node: torch.fx.Node, value: Any) -> None:
    node.meta[VALUE] = value


def value_of(node: torch.fx.Node) -> Any:
    return node.meta.get(VALUE)


def origin_of(node: torch.fx.Node) -> Origin | None:
    """None for inputs and outputs."""
    origin: Origin | None = node.meta.get(ORIGIN)
    return origin
