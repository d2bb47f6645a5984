"""The engine: a backward pass, hooks included, as one compiled graph."""
