"""Why a backward pass falls back to torch's engine."""


class Refused(Exception):
    """Kiln cannot take this pass over faithfully; the text says why."""


class Busy(Refused):
    """Kiln cannot take this pass over at this moment: another thread is in the way."""
