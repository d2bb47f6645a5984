"""The exception of traces that cannot go on."""


class Unsupported(Exception):
    """The trace cannot go on faithfully; the graph then runs in eager, and a log line says why."""
