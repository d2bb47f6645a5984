"""Compiled programs in the disk cache: a graph that was compiled before is neither lowered nor compiled again.

The key is the graph as text, with everything that lowering looks at: operators, arguments, the shape, type and layout
of every value, the hints of dynamic sizes. An entry holds the program's description and the kernels' machine code, or
the reason why the graph is not lowered. Nothing here imports lowering or LLVM, so a warm start does without them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from .. import operator_functions as operator
from ..config import config
from ..platform.light_dataclass import dataclass
from ..platform.torch_operators import OpOverload
from ..platform.torch_tensors import is_zero_tensor
from ..program import disk_cache, graph_meta
from ..program.operators.operator_table import operator_of
from ..target.native_program import Boxed, Data, assemble, constant_in
from ..target.target import MachineCode, Target
from .launch_errors import launcher_of

FORMAT = "program 4"
NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class NotStored(Exception):
    """A graph with a part that has no textual form."""


@dataclass(frozen=True)
class StoredRefusal:
    """What is stored of a graph that cannot be lowered."""

    reason: str


def key_of(
    module: torch.fx.GraphModule, target: Target, disabled: Collection[str] = (), measured: Sequence[str] = ()
) -> str | None:
    """The name of the graph's entry for a target; None where it has none. ``disabled``: kernels that it is without;
    ``measured``: what decisions by measuring depend on."""
    if not disk_cache.is_on():
        return None
    try:
        settings = str(torch.get_default_dtype()), *target.identity(), *sorted(disabled), *measured
        return disk_cache.key_of(FORMAT, *settings, text_of(module))
    except NotStored:
        return None


def load(
    key: str | None, module: torch.fx.GraphModule, target: Target, otherwise: Boxed
) -> Boxed | StoredRefusal | None:
    """The program of a graph, as it was stored."""
    parts = disk_cache.read(key) if key is not None else None
    if parts is None:
        return None
    try:
        if "eager" in parts:
            return StoredRefusal(parts["eager"].decode())
        data = json.loads(parts["program"])
        images = tuple(parts[f"code {number}"] for number in range(data["images"]))
        code = target.load(MachineCode(images, tuple((place, name) for place, name in data["kernels"])))
        constants = [constant_in(module, kind, name) for kind, name in data["constants"]]
        return assemble(data, code.handles, constants, otherwise, code.keep, launcher_of(target, data, module))
    except Exception:
        if config.raise_internal_errors:
            raise
        return None  # compiled anew


def store(key: str | None, data: Data, code: MachineCode) -> None:
    """Stores a program: its description, the places of its kernels' functions, and their machine code."""
    if key is None:
        return
    with contextlib.suppress(MemoryError):  # the program is there all the same
        whole = {**data, "images": len(code.images), "kernels": code.places}
        parts = {"program": json.dumps(whole, separators=(",", ":")).encode()}
        disk_cache.write(key, parts | {f"code {number}": image for number, image in enumerate(code.images)})


def store_eager(key: str | None, reason: str) -> None:
    if key is not None:
        disk_cache.write(key, {"eager": reason.encode()})


# ---- graphs as text --------------------------------------------------------------------------------------------------


def text_of(module: torch.fx.GraphModule) -> str:
    """A graph with the shapes, types and layouts of its values. Equal texts have equal programs."""
    lines = [str(sorted(graph_meta.changed_inputs(module).items()))]
    for node in module.graph.nodes:
        if node.op == "get_attr" and not isinstance(operator.attrgetter(str(node.target))(module), torch.Tensor):
            raise NotStored(node.target)
        target = node.target if isinstance(node.target, str) else name_of(node.target)
        result = value(node.meta.get("val"))
        lines.append(f"{node.name}={node.op} {target}{argument(node.args)}{argument(node.kwargs)}:{result}")
    return "\n".join(lines)


def name_of(target: Any) -> str:
    if type(target) is OpOverload:
        called = operator_of(target)
        return str(target) if called.is_own else f"{called.schema}{sorted(map(str, target.tags))}"
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if name is None or "<" in name:  # a function defined inside another cannot be found by name
        raise NotStored(target)
    return f"{getattr(target, '__module__', '')}:{name}"


def argument(given: Any) -> str:
    """An argument as text."""
    kind = type(given)
    if kind is Node:
        return f"%{given.name}"
    if given is None or kind in (int, bool, str):
        return repr(given)
    if kind is float:
        return float.hex(given)
    if kind is tuple or isinstance(given, list):  # fx has its own class of lists
        opening, closing = "()" if kind is tuple else "[]"
        return opening + ",".join([argument(part) for part in given]) + closing
    if isinstance(given, dict):
        return "{" + ",".join([f"{name!r}:{argument(part)}" for name, part in given.items()]) + "}"
    if kind is slice:
        return f"slice{argument((given.start, given.stop, given.step))}"
    if kind in SYMBOLIC:
        return symbolic(given)
    if isinstance(given, NAMED):
        return str(given)
    if kind is OpOverload:
        return name_of(given)
    if kind is complex:
        return f"{given.real.hex()}+{given.imag.hex()}j"
    raise NotStored(kind)


def symbolic(number: Any) -> str:
    """A dynamic number: its expression, and the hint, by which layouts are chosen."""
    node = number.node
    return f"<{node.expr}={node.hint}>"


def value(given: Any) -> str:
    """The shape, type and layout of a node's value as text."""
    if isinstance(given, torch.Tensor):
        return form(given)
    if isinstance(given, (list, tuple)):
        return f"{type(given).__name__}({','.join([value(part) for part in given])})"
    return argument(given)


def form(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f"{type(tensor).__name__}{tensor.layout}{tensor.dtype}{tensor.device}{sizes(tensor.shape)}"
    flags = f"{'c' if tensor.is_conj() else ''}{'n' if tensor.is_neg() else ''}{'z' if is_zero_tensor(tensor) else ''}"
    where = "" if tensor.device.type == "cpu" else str(tensor.device)
    offset = tensor.storage_offset()
    start = "" if type(offset) is int and offset == 0 else f"+{offset}"
    return f"{tensor.dtype}{where}{flags}{sizes(tensor.shape)}{sizes(tensor.stride())}{start}"


def sizes(numbers: Sequence[Any]) -> str:
    return "[" + ",".join([str(one) if type(one) is int else argument(one) for one in numbers]) + "]"
