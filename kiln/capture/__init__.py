"""Capture: Python function -> fx graph + guards + an entry function that runs them (see docs/architecture.md)."""
