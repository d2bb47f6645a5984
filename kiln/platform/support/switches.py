"""Parts of Kiln that are switched off in this process because an assumption about torch or CPython does not hold."""

from __future__ import annotations

CAPTURE = "capture"
AHEAD_OF_TIME = "ahead-of-time autograd"
ENGINE = "engine"
STRING_KEYS = "fast lookups"

INSTEAD = {
    CAPTURE: "kiln.compile runs functions in plain Python, and fullgraph=True raises",
    AHEAD_OF_TIME: "graphs run operator by operator, and torch differentiates them",
    ENGINE: "torch's own engine runs the backward passes",
    STRING_KEYS: "guards take each lookup in a dictionary for one that may run Python, and are slower",
}
"""What happens where a part is switched off."""

_off: dict[str, str] = {}


def switch_off(part: str, reason: str) -> None:
    """The first reason stays."""
    if _off.setdefault(part, reason) is reason:
        if part == ENGINE:
            from ..._native import refuse_walks

            refuse_walks(f"switched off: {reason}")
        elif part == STRING_KEYS:
            from ..._native import distrust_dictionary_keys

            distrust_dictionary_keys()


def reason_off(part: str) -> str | None:
    """Why a part is switched off; None where it is not."""
    return _off.get(part)


def all_off() -> dict[str, str]:
    """The parts that are switched off, and why."""
    return dict(_off)
