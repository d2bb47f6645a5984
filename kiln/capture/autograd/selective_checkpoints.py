"""``context_fn`` of ``torch.utils.checkpoint``: which results of a checkpointed function are kept after all.

The graph calls the program's function, which makes new contexts for each call. An arbitrary context could change what
the checkpointed function does, so the function is interpreted once: it must return torch's contexts for selective
checkpointing, or contexts that do nothing. Policies run with the graph.
"""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any

from torch.utils.checkpoint import create_selective_checkpoint_contexts

from ..._native import is_instance as isinstance
from ...platform.torch_operators import HigherOrderOperator, OpOverload
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..shadows.wrap import IDENTITY_TYPES, force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES
from ..writeback.outside_state import OutsideState, is_closed, pending_writes

HINT = "make the contexts by a plain function or a functools.partial of torch's create_selective_checkpoint_contexts"


class SelectiveContext:
    """Stands for one of the two contexts that torch makes."""


@rule(create_selective_checkpoint_contexts)
def rule_selective(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """The policy is not interpreted: torch calls it for each operation when the graph runs."""
    policy = force(trace, args[0]) if len(args) == 1 and not kwargs else None
    operators = isinstance(policy, list) and all(
        isinstance(force(trace, item), (OpOverload, HigherOrderOperator)) for item in policy
    )
    if not operators and not isinstance(policy, (types.FunctionType, functools.partial)):
        raise trace.fail("contexts for selective checkpointing made of something else than a function or operators")
    contexts = (SelectiveContext(), SelectiveContext())
    for context in contexts:
        trace.mark_unbuildable(context)
    return contexts


def real_contexts(trace: Trace, value: object) -> Any:
    """The program's ``context_fn`` for the graph to call; None if its contexts do nothing."""
    function, state = force(trace, value), OutsideState(trace, ())
    contexts = force(trace, call(trace, function, (), {}))
    parts = [force(trace, part) for part in contexts] if type(contexts) is tuple else []
    if state.is_changed(trace):
        raise trace.fail("a context_fn of a checkpoint that changes Python objects", HINT)
    if len(parts) == 2 and all(type(part) is contextlib.nullcontext for part in parts):
        return None
    if len(parts) != 2 or not all(isinstance(part, SelectiveContext) for part in parts):
        raise trace.fail("a context_fn of a checkpoint that makes other contexts than selective ones", HINT)
    return real_value(trace, function)


def real_value(trace: Trace, value: Any) -> Any:
    """The real object for a shadow, made now, with everything it refers to."""
    value = force(trace, value)
    kind = type(value)
    if kind in CONSTANT_TYPES or isinstance(value, IDENTITY_TYPES):
        return value
    if kind in (tuple, list, set, frozenset):
        return kind([real_value(trace, item) for item in value])
    if kind is functools.partial:
        keywords = {name: real_value(trace, item) for name, item in value.keywords.items()}
        return functools.partial(real_value(trace, value.func), *real_value(trace, value.args), **keywords)
    if isinstance(value, types.FunctionType):
        if pending_writes(trace) and not is_closed(value):
            raise trace.fail("a context_fn of a checkpoint after changes to objects that it might look at", HINT)
        return real_function(trace, value)
    raise trace.fail(f"a context_fn of a checkpoint that refers to a {kind.__qualname__}", HINT)


def real_function(trace: Trace, function: types.FunctionType) -> types.FunctionType:
    source = trace.outside.source_of(function)
    if source is not None:
        trace.guards.add(source, "identity", function)
        return function
    cells = tuple([types.CellType(real_value(trace, cell.cell_contents)) for cell in function.__closure__ or ()])
    defaults = real_value(trace, function.__defaults__)
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells)
    made.__kwdefaults__ = {name: real_value(trace, item) for name, item in (function.__kwdefaults__ or {}).items()}
    return made
