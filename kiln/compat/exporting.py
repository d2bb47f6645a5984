"""``torch._dynamo.export``, on ``kiln.export``."""

from __future__ import annotations

from typing import Any

from ..explain import export as kiln_export


def export(f: Any, *extra_args: Any, **accepted: Any) -> Any:
    """A function of example arguments that gives the graph and its guards."""
    return kiln_export(f)
