"""Code that reads whether objects are alive, who refers to them, or how large they are.

After a graph break a frame continues in other frames, and the frames and native calls between keep their arguments
alive: an object outlives its ``del``. So a function that could notice is not split: it runs in eager as a whole, and
only what it calls is compiled.
"""

from __future__ import annotations

import types
import weakref

from ...bytecode.instruction import codes_in
from ...platform.python_objects import words

LIFETIME_NAMES = words("weakref _weakref WeakSet WeakMethod WeakKeyDictionary WeakValueDictionary __weakref__ __del__")
LIFETIME_NAMES |= words("getrefcount getsizeof get_referrers get_referents get_objects __subclasses__")
"""Names that mean such a question wherever they occur: modules, attributes, methods of class bodies."""

WEAK_OBJECTS = {id(getattr(weakref, name)) for name in weakref.__all__}


def asks_about_lifetimes(function: types.FunctionType, code: types.CodeType) -> bool:
    """Whether a function's code, or code nested in it, could notice that an object outlives its variables."""
    names = {name for part in codes_in(code) for name in part.co_names}
    table = function.__globals__
    return not LIFETIME_NAMES.isdisjoint(names) or any(id(table.get(name)) in WEAK_OBJECTS for name in names)
