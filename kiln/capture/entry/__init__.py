"""Entries: dispatch, the check and run functions of a capture, routing of calls, reasons for misses."""
