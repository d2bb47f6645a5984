"""Processes that a program on Kiln starts are on Kiln as well: spawned, from a fork server, workers of data loaders,
``torchrun``'s, or any other ``python``. (A forked process has it from its parent.)

They are reached through ``PYTHONPATH``: a folder with a ``sitecustomize`` module comes first on it.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = str(Path(__file__).resolve().parent / "startup")


def take_along() -> None:
    """Have all Python processes that are started from now on run on Kiln."""
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != FOLDER]
    os.environ["PYTHONPATH"] = os.pathsep.join([FOLDER, *others])
