"""The engine: the backward pass as it really runs, hooks included, as one compiled graph."""
