"""Backward passes: who runs them, with which compiled graph."""
