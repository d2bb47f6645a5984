"""Functions under ``torch.jit.script`` and ``torch.jit.trace``: the Python function they were made from is captured.

TorchScript read that function, and everything it names, when it compiled it, and does not see later changes. Kiln takes
what it finds on the first call for what was compiled. Where that has changed later, the graph breaks and the script
itself runs.
"""

from __future__ import annotations

import types
import weakref

import torch

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ...platform.python_objects import closure_values
from ...platform.torch_functions import inlined_function
from ..guards.descriptions import module_of
from ..guards.source import Attribute, lookup
from ..interpreter.calls import CALLABLES, call
from ..shadows.wrap import wrap
from ..state.operations import Args, Kwargs
from ..state.trace import Trace

FIRST_SEEN: weakref.WeakKeyDictionary[object, list[object]] = weakref.WeakKeyDictionary()


def call_script(trace: Trace, script: object, args: Args, kwargs: Kwargs) -> object:
    function = inlined_function(script)
    source = Attribute(trace.outside.pinned(script), "_torchdynamo_inline")
    if not isinstance(function, types.FunctionType):
        raise trace.fail("a call to a TorchScript function whose Python code is not known")
    if trace.overrides.modes or trace.overrides.has_overriding:
        raise trace.fail("a call to a TorchScript function, whose operations no __torch_function__ sees")
    if any(is_replaced(lookup(torch.Tensor, name)) for name in function.__code__.co_names):
        raise trace.fail("a call to a TorchScript function, which knows nothing of a method of tensors replaced since")
    found = objects_read_by(function, [])
    met = FIRST_SEEN.setdefault(script, found)
    if len(met) != len(found) or not all(map(operator.is_, met, found)):
        raise trace.fail("a call to a TorchScript function, which knows nothing of what was changed since")
    return call(trace, wrap(trace, function, source), args, kwargs)


def is_replaced(method: object) -> bool:
    """Whether a method of tensors was replaced by the program."""
    return isinstance(method, types.FunctionType) and not module_of(method).startswith("torch")


def objects_read_by(function: types.FunctionType, found: list[object]) -> list[object]:
    """What a compiler of a function reads: code, defaults, closure and named globals, recursively for functions."""
    code, namespace = function.__code__, function.__globals__
    found += [function, code]
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    values += closure_values(function)
    values += [namespace[name] for name in code.co_names if name in namespace]
    modules = [vars(value) for value in values if isinstance(value, types.ModuleType)]
    values += [members[name] for members in modules for name in code.co_names if name in members]
    for value in values:
        if not isinstance(value, types.FunctionType) or module_of(value).partition(".")[0] == "torch":
            found.append(value)
        elif not any(value is other for other in found):
            objects_read_by(value, found)
    return found


CALLABLES[torch.jit.ScriptFunction] = call_script
