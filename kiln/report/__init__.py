"""Reports: what the compiler did, counted, logged and explained."""

from .events import counters

__all__ = ["counters"]
