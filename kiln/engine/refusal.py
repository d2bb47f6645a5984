"""What the engine says of a backward pass that torch's own engine has to do."""


class Refused(Exception):
    """Kiln cannot take this pass over faithfully; the text says why."""
