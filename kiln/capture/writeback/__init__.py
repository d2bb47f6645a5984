"""From shadows back to real objects: rebuilding values, writing effects, undoing a graph that raised."""
