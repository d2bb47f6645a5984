"""Ahead-of-time autograd: a function's forward and backward as two graphs, for any compiler of graphs.

``kiln.compile(f, backend="aot_eager")`` is the easy way in, ``make_aot_backend`` the way for a compiler of one's own.
What is here is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "aot_function": "api",
    "aot_module": "api",
    "aot_module_simplified": "api",
    "make_aot_backend": "api",
    "make_boxed_compiler": "api",
    "make_boxed_func": "api",
    "nop": "api",
    "aot_export_joint_simple": "exporting",
    "aot_export_module": "exporting",
    "BackwardSignature": "exporting",
    "GraphSignature": "exporting",
    "default_partition": "partition",
    "min_cut": "partition",
    "min_cut_rematerialization_partition": "partition",
}

__all__ = [  # noqa: PLE0604, PLE0605
    *_WHERE,
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
