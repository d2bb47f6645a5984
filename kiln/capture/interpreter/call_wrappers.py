"""Functions that call what is not a Python function itself: modules, callable objects, partials, builtins, classes.

Kiln compiles functions. For any other callable it compiles a function that calls it, with its own code object, since
entries belong to code objects. Modules of one class share a code object, and so their entries.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

from torch.nn import Module

from ..guards.source import getattr_static_dict, lookup

FILE = "<kiln call>"
_TEXT = "def call(target, /, *args, **kwargs): return target(*args, **kwargs)"
_CODE: types.CodeType = compile(_TEXT, FILE, "exec").co_consts[0]
_GLOBALS: dict[str, Any] = {"__name__": "kiln", "__builtins__": {}}
_CODES: weakref.WeakKeyDictionary[type, types.CodeType] = weakref.WeakKeyDictionary()


def call_code(name: str) -> types.CodeType:
    """A new code object for ``target(*args, **kwargs)``."""
    return _CODE.replace(co_name=name.rpartition(".")[2], co_qualname=name)


def module_caller(kind: type) -> types.FunctionType:
    """A function that calls its first argument, a module of this class."""
    code = _CODES.get(kind)
    if code is None:
        code = _CODES[kind] = call_code(f"{kind.__qualname__}.__call__")
    return types.FunctionType(code, _GLOBALS)


def object_caller(target: Any) -> types.FunctionType:
    """A function that passes its arguments on to a callable object, and looks like it."""
    name = getattr(target, "__qualname__", None) or f"{type(target).__qualname__}.__call__"
    code = _bound_code.replace(co_name=name.rpartition(".")[2], co_qualname=name)
    made = types.FunctionType(code, _GLOBALS, None, None, (types.CellType(target),))
    functools.update_wrapper(made, target, updated=())
    return made


def parameter_names(caller: types.FunctionType, args: tuple[Any, ...]) -> list[str]:
    """The names of the positional parameters of what one of these functions calls."""
    target = caller.__closure__[0].cell_contents if caller.__closure__ else args[0]
    bound = 0
    if not isinstance(target, (types.FunctionType, types.MethodType)):  # found by Python's rules, without running code
        method = "forward" if isinstance(target, Module) else "__call__"
        own = (getattr_static_dict(target) or {}).get(method) if method == "forward" else None
        target, bound = (own, 0) if own is not None else (lookup(type(target), method), 1)
    if isinstance(target, types.MethodType):
        target, bound = target.__func__, 1
    while isinstance(target, types.FunctionType) and "__wrapped__" in target.__dict__:
        target = target.__dict__["__wrapped__"]
    if not isinstance(target, types.FunctionType):
        return []
    return list(target.__code__.co_varnames[bound : target.__code__.co_argcount])


_BOUND_TEXT = "def outer(target):\n def call(*args, **kwargs): return target(*args, **kwargs)\n return call"
_outer_code = compile(_BOUND_TEXT, FILE, "exec").co_consts[0]
_bound_code: types.CodeType = next(c for c in _outer_code.co_consts if isinstance(c, types.CodeType))
