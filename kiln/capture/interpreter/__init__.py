"""The symbolic interpreter: frames, opcodes, calls, attributes, operators, generators, native calls."""
