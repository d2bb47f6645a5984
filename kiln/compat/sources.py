"""``torch._dynamo.source``: names of tensors and sizes, which fake tensors and symbolic sizes of torch ask for.

Each kind is a row of a table: its fields, and how its name is written.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from ..platform.torch_compiler import ChainedSource, GuardSource, Source


class TensorProperty(enum.Enum):
    """What of a tensor a `TensorPropertySource` names."""

    SIZE = 0
    STRIDE = 1
    STORAGE_OFFSET = 2

    def method_name(self) -> str:
        return self.name.lower()


def _tensor_property(self: Any) -> str:
    index = "" if self.idx is None else f"[{self.idx}]"
    return f"{{0}}.{self.prop.method_name()}(){index}"


def _kind(
    name: str, fields: list[Any], words: Any, guard_source: Any = None, chained: bool = False, **more: Any
) -> Any:
    names: dict[str, Any] = {"_name_template": property(words), **more}
    if guard_source is not None:
        names["guard_source"] = guard_source
    base = ChainedSource if chained else Source
    made = dataclasses.make_dataclass(name, fields, bases=(base,), namespace=names, frozen=True, eq=True)
    made.__module__ = "torch._dynamo.source"
    return made


LocalSource = _kind(
    "LocalSource",
    [
        ("local_name", str),
        ("is_input", bool, False),
        ("dynamism", Any, None),
        ("is_derefed_cell_contents", bool, False),
    ],
    lambda self: f"L[{self.local_name!r}]",
    GuardSource.LOCAL,
)
GlobalSource = _kind(
    "GlobalSource", [("global_name", str)], lambda self: f"G[{self.global_name!r}]", GuardSource.GLOBAL
)
ConstantSource = _kind("ConstantSource", [("source_name", str)], lambda self: self.source_name, GuardSource.CONSTANT)
RandomValueSource = _kind(
    "RandomValueSource",
    [("random_call_index", int)],
    lambda self: f"random_value_{self.random_call_index}",
    GuardSource.RANDOM_VALUE,
)
EphemeralSource = _kind(
    "EphemeralSource",
    [("desc", Any, None)],
    lambda self: f"<ephemeral{': ' + self.desc if self.desc is not None else ''}>",
    GuardSource.EPHEMERAL,
    is_ephemeral=lambda self: True,
)
ShapeEnvSource = _kind("ShapeEnvSource", [], lambda self: "", GuardSource.SHAPE_ENV)
AttrSource = _kind("AttrSource", [("member", str)], lambda self: f"{{0}}.{self.member}", chained=True)
TensorPropertySource = _kind(
    "TensorPropertySource", [("prop", TensorProperty), ("idx", Any, None)], _tensor_property, chained=True
)
GetItemSource = _kind(
    "GetItemSource",
    [("index", Any), ("index_is_slice", bool, False)],
    lambda self: f"{{0}}[{self.index!r}]",
    chained=True,
)
CallMethodItemSource = _kind("CallMethodItemSource", [], lambda self: "{0}.item()", chained=True)
FloatTensorSource = _kind("FloatTensorSource", [], lambda self: "___as_tensor({0})", chained=True)
NegateSource = _kind("NegateSource", [], lambda self: "{0}.__neg__()", chained=True)
ConvertIntSource = _kind("ConvertIntSource", [], lambda self: "cast_symbool_to_symint_guardless({0})", chained=True)


def is_from_source(source: Any, target: Any) -> bool:
    while source is not target and isinstance(source, ChainedSource):
        source = source.base
    return source is target


def is_constant_source(source: Any) -> bool:
    return bool(source.guard_source == GuardSource.CONSTANT)
