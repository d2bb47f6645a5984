"""Inference mode in graphs: nodes enter and leave it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..platform.torch_autograd import InferenceModeGuard


class Entered(threading.local):
    """Inference modes entered by running graphs of this thread and not left yet."""

    def __init__(self) -> None:
        self.guards: list[Any] = []


ENTERED = Entered()


def enter_inference_mode(flag: bool) -> Any:
    """In graphs: ``with torch.inference_mode(flag)`` begins."""
    guard: Any = InferenceModeGuard(flag)
    guard.__enter__()
    ENTERED.guards.append(guard)
    return guard


def leave_inference_mode(guard: Any) -> None:
    """In graphs: the block ends."""
    if guard in ENTERED.guards:
        ENTERED.guards.remove(guard)
    guard.__exit__(None, None, None)


def leaving_on_errors(graph: Callable[..., Any]) -> Callable[..., Any]:
    """A graph that raises inside an inference mode that it entered leaves it."""

    def run(*inputs: Any) -> Any:
        depth = len(ENTERED.guards)
        try:
            return graph(*inputs)
        except BaseException:
            while len(ENTERED.guards) > depth:
                leave_inference_mode(ENTERED.guards[-1])
            raise
        finally:
            del ENTERED.guards[depth:]  # what is left open is the frame's to close

    return run
