"""Several ways to call libraries for the same result: which there are, and which one is taken."""
