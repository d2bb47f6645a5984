"""Nodes that ``kiln.aot`` made: the graph of their backward becomes a part of the engine's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .refusal import Refused


def inline(tracer: Any, call: Any, values: list[Any]) -> Sequence[Any]:
    """Record the operations of the node's backward graph, and give its results."""
    raise Refused("a node made by kiln.aot")
