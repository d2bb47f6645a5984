"""What users' tests and Kiln's own use: compile counters, deep comparison, and the differential helper `check`."""

from kiln.testing.compare import differences, same
from kiln.testing.counters import CompileCounter, CompileCounterWithBackend
from kiln.testing.differential import Call, Mismatch, Report, check, check_source
from kiln.testing.observe import Outcome

__all__ = [
    "Call",
    "CompileCounter",
    "CompileCounterWithBackend",
    "Mismatch",
    "Outcome",
    "Report",
    "check",
    "check_source",
    "differences",
    "same",
]
