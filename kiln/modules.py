"""``OptimizedModule``: what compiling an ``nn.Module`` gives - the same module, called through the compiler."""

from __future__ import annotations

from typing import Any

import torch


class OptimizedModule(torch.nn.Module):
    """Shares everything with the module it was made from; calling it runs compiled code."""

    def __init__(self, module: torch.nn.Module, options: Any):
        from .capture.dispatch import make_dispatcher, module_caller

        super().__init__()
        self._orig_mod = module
        object.__setattr__(self, "_kiln_call", make_dispatcher(module_caller(), options))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._kiln_call(self._modules["_orig_mod"], *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_modules", {}):
            return self.__dict__["_modules"][name]
        return getattr(self.__dict__["_modules"]["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_orig_mod",) or "_orig_mod" not in self.__dict__.get("_modules", {}) or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._modules["_orig_mod"], name, value)

    def __repr__(self) -> str:
        return f"kiln.compile of {self._modules['_orig_mod']!r}"
