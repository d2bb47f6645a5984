"""The modes of ``kiln.compile``: names of sets of options for Kiln's backend."""

from __future__ import annotations

from typing import Any

from .. import exc

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "autotune": True},
    "max-autotune-no-cudagraphs": {"autotune": True},
}


def options_of(mode: str | None, options: dict[str, Any] | None) -> dict[str, Any]:
    """The options of a mode, and those given beside it, which come first."""
    if mode is None:
        return dict(options or {})
    if mode not in MODES:
        raise exc.UnknownMode(mode, MODES)
    return {**MODES[mode], **(options or {})}
