"""``kiln.compiled_autograd``: backward passes as graphs, for the length of a ``with`` block.

with kiln.compiled_autograd.enable(lambda graph: kiln.compile(graph, fullgraph=True)):
    loss.backward()
"""

from __future__ import annotations

from .engine.run.scopes import disable, enable, enabled, reset

__all__ = ["disable", "enable", "enabled", "reset"]
