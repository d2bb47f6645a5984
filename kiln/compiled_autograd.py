"""``kiln.compiled_autograd``: backward passes as graphs, for the length of a ``with`` block.

with kiln.compiled_autograd.enable(lambda graph: kiln.compile(graph, fullgraph=True)):
    loss.backward()
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .platform.support.switches import CAPTURE, reason_off

if TYPE_CHECKING:
    from .engine.run.scopes import disable, enable, enabled, reset


class TorchEngine:
    """What this module has where capture is switched off: backward passes are torch's."""

    class enable(contextlib.ContextDecorator):
        """Changes nothing."""

        def __init__(self, compiler: Any) -> None:
            self.compiler = compiler

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            pass

    class disable(enable):
        """Changes nothing."""

        def __init__(self) -> None:
            super().__init__(None)

    @staticmethod
    def enabled() -> bool:
        return False

    @staticmethod
    def reset() -> None:
        pass


__all__ = ["disable", "enable", "enabled", "reset"]


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used: most programs do not use it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if reason_off(CAPTURE):
        return globals().setdefault(name, getattr(TorchEngine, name))
    from .engine.run import scopes

    return globals().setdefault(name, getattr(scopes, name))
