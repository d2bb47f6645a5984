"""The state of one capture: the trace, values of the interpreter, exceptions, shape conditions, annotations."""
