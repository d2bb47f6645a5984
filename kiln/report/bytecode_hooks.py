"""Hooks that see the code that frames are compiled to: ``hook(code, new_code)``.

They are called for the program's own frames, once for each version that is compiled; a code object that one returns
replaces the new one.
"""

from __future__ import annotations

import types
from collections.abc import Callable

Hook = Callable[[types.CodeType, types.CodeType], types.CodeType | None]
_hooks: list[BytecodeHook] = []


class BytecodeHook:
    """A hook that is called until it is removed."""

    def __init__(self, hook: Hook):
        self.hook = hook
        _hooks.append(self)

    def remove(self) -> None:
        """Stop calling it; doing so twice does nothing."""
        if self in _hooks:
            _hooks.remove(self)

    def __enter__(self) -> BytecodeHook:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def register_bytecode_hook(hook: Hook) -> BytecodeHook:
    """Call a hook with the code of every frame that is compiled, and the code that runs in its place."""
    return BytecodeHook(hook)


def show(code: types.CodeType, run: types.FunctionType) -> None:
    """A frame was compiled to this function."""
    for registered in list(_hooks):
        replaced = registered.hook(code, run.__code__)
        if replaced is not None and replaced is not code:  # which has other arguments, and would do the same
            run.__code__ = replaced
