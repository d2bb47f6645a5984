"""Fake tensors, and what torch says where it has no shape for them. Known for torch 2.11 to 2.13.

Without one of the classes, importing this module fails.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "detect_fake_mode",
]

_REFERENCES = ("", ".nn.functional", ".special", ".linalg", ".fft")


def reference_modules() -> list[types.ModuleType]:
    """The modules of torch's operators in Python, by which fake tensors find shapes."""
    return [importlib.import_module("torch._refs" + name) for name in _REFERENCES]


LOGGER = "torch._subclasses.fake_tensor"
"""The logger that failures on fake tensors go to."""


def refuse_data_pointers(mode: Any) -> None:
    """Have a mode raise where code asks for the address of a fake's data; by default it answers 0, with a warning."""
    mode._allow_unsafe_data_ptr_access = False
