"""Runtime: the functions around compiled graphs that restore eager's semantics in each call."""
