"""What the engine says of a backward pass that torch's own engine has to do."""


class Refused(Exception):
    """Kiln cannot take this pass over faithfully; the text says why."""


class Busy(Refused):
    """It cannot at this moment: another time it may."""
