"""``OptimizedModule``: what compiling an ``nn.Module`` gives - the same module, called through the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class OptimizedModule(torch.nn.Module):
    """Shares parameters, buffers, mode and attributes with the module it was made from; calling it runs compiled code.

    Hooks of the original module are part of what is compiled; hooks registered on this one run around it.
    """

    _orig_mod: torch.nn.Module

    def __init__(self, module: torch.nn.Module, options: Any):
        from .capture.callers import module_caller
        from .capture.dispatch import make_dispatcher

        super().__init__()
        self._orig_mod = module
        del self.__dict__["training"]  # the original's is the one that counts
        self.__dict__["_kiln_call"] = make_dispatcher(module_caller(type(module)), options)
        self.__dict__["_kiln_options"] = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(self.__dict__[name] for name in _HOOKS):
            return super().__call__(*args, **kwargs)
        return self.__dict__["_kiln_call"](self.__dict__["_modules"]["_orig_mod"], *args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_kiln_call"](self.__dict__["_modules"]["_orig_mod"], *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__["_modules"]
        return modules[name] if name in modules else getattr(modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        original = self.__dict__.get("_modules", {}).get("_orig_mod")
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

    def __reduce__(self) -> tuple[Any, ...]:
        return OptimizedModule, (self._orig_mod, self._kiln_options)

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]  # type: ignore[index]

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)  # type: ignore[call-overload, no-any-return]

    def __contains__(self, item: Any) -> bool:
        return item in self._orig_mod  # type: ignore[operator]

    def __repr__(self) -> str:
        return f"kiln.compile({self._orig_mod!r})"
