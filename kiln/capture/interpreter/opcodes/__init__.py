"""Handlers of the opcodes of CPython 3.11 to 3.14. Importing the package fills the table of handlers."""

from . import building, calling, exception_handling, jumps, operator_handlers, pattern_matching, variables

__all__ = ["building", "calling", "exception_handling", "operator_handlers", "jumps", "pattern_matching", "variables"]
