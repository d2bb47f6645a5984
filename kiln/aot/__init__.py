"""Ahead-of-time autograd: a function's forward and backward as two graphs, for any compiler of graphs.

``kiln.compile(f, backend="aot_eager")`` is the easy way in, ``make_aot_backend`` the way for a compiler of one's own.
What is here is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "BackwardSignature": "exporting.BackwardSignature",
    "GraphSignature": "exporting.GraphSignature",
    "aot_export_joint_simple": "exporting.aot_export_joint_simple",
    "aot_export_module": "exporting.aot_export_module",
    "aot_function": "api.aot_function",
    "aot_module": "api.aot_module",
    "aot_module_simplified": "api.aot_module_simplified",
    "default_partition": "partition.partitioners.default_partition",
    "make_aot_backend": "api.make_aot_backend",
    "make_boxed_compiler": "api.make_boxed_compiler",
    "make_boxed_func": "api.make_boxed_func",
    "min_cut_partition": "partition.partitioners.min_cut_partition",
    "min_cut_rematerialization_partition": "partition.partitioners.min_cut_partition",
    "nop": "api.nop",
}

__all__ = [  # noqa: PLE0604, PLE0605
    *_WHERE,
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, own = _WHERE[name].rpartition(".")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), own)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
