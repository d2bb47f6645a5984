"""Builtins that capture runs on shadows: which there are, what they may see, and calls of them with odd arguments."""
