"""``kiln.compiled_autograd``: backward passes as graphs, for the length of a ``with`` block.

with kiln.compiled_autograd.enable(lambda graph: kiln.compile(graph, fullgraph=True)):
    loss.backward()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.run.scopes import disable, enable, enabled, reset

__all__ = ["disable", "enable", "enabled", "reset"]


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used: most programs do not use it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .engine.run import scopes

    return globals().setdefault(name, getattr(scopes, name))
