"""Tracing: a program's forward and backward pass recorded as one functional graph."""
