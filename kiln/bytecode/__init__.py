"""CPython 3.11 to 3.14 bytecode: take apart, analyse, edit, put together, split.  Knows nothing of tensors."""

from .analysis import Loop, assigned, handler, live_locals, loops, reachable, stack_kinds, stack_size, successors
from .assemble import assemble
from .call_routing import route_calls
from .decode import decode, decode_apart
from .instruction import Bytecode, ExceptionRange, Instruction, codes_in
from .listing import dis_text
from .normalize import normalize
from .split import UNBOUND, CannotSplit, Segment, Split, split

__all__ = [
    "UNBOUND", "Bytecode", "CannotSplit", "ExceptionRange", "Instruction", "Loop", "Segment", "Split", "assemble",
    "assigned", "codes_in", "decode", "decode_apart", "dis_text", "handler", "live_locals",
    "loops", "normalize", "reachable", "route_calls", "split", "stack_kinds", "stack_size", "successors",
]  # fmt: skip
