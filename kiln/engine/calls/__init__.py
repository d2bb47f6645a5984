"""The functions that graphs of backward passes call."""
