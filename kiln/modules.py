"""``OptimizedModule``: what compiling an ``nn.Module`` gives - the same module, called through the compiler."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .platform.torch_modules import BACKWARD_HOOKS, BACKWARD_PRE_HOOKS, FORWARD_HOOKS, FORWARD_PRE_HOOKS, MODULES

_MADE_ANEW = ("_kiln_call", "_kiln_options")


class OptimizedModule(torch.nn.Module):
    """Shares parameters, buffers, mode and attributes with the module it was made from; calling it runs compiled code.

    Hooks of the original module are part of what is compiled; hooks registered on this one run around it.
    """

    _orig_mod: torch.nn.Module

    def __init__(self, module: torch.nn.Module, options: Any):
        from .api import with_backward_scope
        from .capture.entry.dispatch import make_compiled
        from .capture.interpreter.call_wrappers import module_caller
        from .capture.shadows.consumed_inputs import consuming_forward

        super().__init__()
        self._orig_mod = module
        del self.__dict__["training"]  # the original's is the one that counts
        self.__dict__["_kiln_call"] = with_backward_scope(
            make_compiled(consuming_forward(module) or module_caller(type(module)), options), options
        )
        self.__dict__["_kiln_options"] = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        # One by one: a loop over the names would cost a microsecond of every call.
        if own[FORWARD_PRE_HOOKS] or own[FORWARD_HOOKS] or own[BACKWARD_PRE_HOOKS] or own[BACKWARD_HOOKS]:
            return super().__call__(*args, **kwargs)
        return own["_kiln_call"](own[MODULES]["_orig_mod"], *args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_kiln_call"](self.__dict__[MODULES]["_orig_mod"], *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__[MODULES]
        return modules[name] if name in modules else getattr(modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        original = self.__dict__.get(MODULES, {}).get("_orig_mod")
        if original is None or name == "_orig_mod" or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(original, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._orig_mod)})

    def _own_state(self) -> dict[str, Any]:
        """What belongs to this object itself: the hooks registered on it."""
        return {name: value for name, value in self.__dict__.items() if name != MODULES and name not in _MADE_ANEW}

    def __reduce__(self) -> tuple[Any, ...]:
        return OptimizedModule, (self._orig_mod, self._kiln_options), self._own_state()

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModule:
        original = copy.deepcopy(self._orig_mod, memo)
        if id(self) not in memo:  # it may have been reached through the original
            made = memo[id(self)] = OptimizedModule(original, self._kiln_options)
            made.__dict__.update(copy.deepcopy(self._own_state(), memo))
        copied: OptimizedModule = memo[id(self)]
        return copied

    # What is registered here belongs to the module that runs.

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        self._orig_mod.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        self._orig_mod.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        self._orig_mod.add_module(*args, **kwargs)

    register_module = add_module

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Takes the original module's state as well as this one's, whose names begin with ``_orig_mod.``"""
        own = any(name.startswith("_orig_mod.") for name in state_dict) or not state_dict
        if own:
            return super().load_state_dict(state_dict, *args, **kwargs)
        return self._orig_mod.load_state_dict(state_dict, *args, **kwargs)

    # The original may be a container, such as ``Sequential``.

    def __getitem__(self, key: Any) -> Any:
        container: Any = self._orig_mod
        return container[key]

    def __len__(self) -> int:
        container: Any = self._orig_mod
        return len(container)

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __iter__(self) -> Iterator[Any]:
        container: Any = self._orig_mod
        iterator: Iterator[Any] = iter(container)
        return iterator

    def __contains__(self, item: Any) -> bool:
        container: Any = self._orig_mod
        return item in container

    def __repr__(self) -> str:
        return f"kiln.compile({self._orig_mod!r})"
