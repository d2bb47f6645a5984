"""Progress: a compile that takes more than a second says so on a terminal, and takes its line back when it is done."""

from __future__ import annotations

import sys
import threading
from typing import Any

from ..platform.locks import new_lock

DELAY = 1.0  # seconds before anything is shown


class Progress:
    """A context manager around one compile. Nothing is shown, nor made, where standard error is not a terminal."""

    def __init__(self, doing: str):
        self.doing = doing
        self.lock = new_lock()
        self.timer: threading.Timer | None = None
        self.status: Any = None
        self.done = False

    def __enter__(self) -> Progress:
        if is_terminal(sys.stderr):
            self.timer = threading.Timer(DELAY, self.show)
            self.timer.daemon = True
            self.timer.start()
        return self

    def show(self) -> None:
        from rich.console import Console
        from rich.markup import escape

        with self.lock:
            if not self.done:
                self.status = Console(file=sys.stderr).status(f"kiln: compiling {escape(self.doing)}")
                self.status.start()

    def __exit__(self, *error: object) -> None:
        if self.timer is None:
            return
        self.timer.cancel()
        with self.lock:
            self.done = True
            if self.status is not None:
                self.status.stop()


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # no stream, or a closed one
        return False
