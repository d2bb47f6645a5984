"""CPython 3.11 to 3.13 bytecode: take apart, analyse, edit, put together, split.  Knows nothing of tensors."""

from .analysis import Loop, assigned, handler, live_locals, loops, reachable, stack_kinds, stack_size, successors
from .assemble import assemble
from .decode import decode
from .instruction import Bytecode, ExceptionRange, Instruction, codes_in
from .normalize import normalize
from .printing import dis_text
from .routing import route_calls
from .split import UNBOUND, CannotSplit, Segment, Split, split

__all__ = [
    "UNBOUND", "Bytecode", "CannotSplit", "ExceptionRange", "Instruction", "Loop", "Segment", "Split", "assemble",
    "assigned", "codes_in", "decode", "dis_text", "handler", "live_locals",
    "loops", "normalize", "reachable", "route_calls", "split", "stack_kinds", "stack_size", "successors",
]  # fmt: skip
