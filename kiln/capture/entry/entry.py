"""Entries: the check and the run function of one capture, generated as Python source and compiled."""

from __future__ import annotations

import itertools
import types
from collections.abc import Sequence
from dataclasses import field

import torch
import torch.fx

from ... import _native
from ...platform.light_dataclass import dataclass
from ...platform.torch_compiler import CHECK_STANCE, stances
from ...report.events import Break
from ..guards.guards import GuardSet
from ..guards.source import Source


@dataclass(eq=False)
class GeneratedFunction:
    """A function as text: its parameters, its statements, and the objects that names in it stand for."""

    kind: str  # check or run
    parameters: str
    lines: list[str]
    names: dict[str, object]

    @property
    def text(self) -> str:
        return self.text_with(())

    def text_with(self, first: Sequence[str]) -> str:
        """The text, with other statements before its own."""
        return "".join([f"def _k_function({self.parameters}):\n", *(f"    {line}\n" for line in (*first, *self.lines))])

    def instantiate(
        self, function: types.FunctionType, first: Sequence[str] = (), names: dict[str, object] | None = None
    ) -> types.FunctionType:
        """The function itself, for a function object that was captured."""
        namespace = {**self.names, **(names or {})}
        namespace |= {"_k_G": function.__globals__, "_k_C": function.__closure__, "_k_F": function, "__builtins__": {}}
        exec(compiled(self.text_with(first), self.kind), namespace)
        made = namespace["_k_function"]
        assert isinstance(made, types.FunctionType)
        made.__defaults__ = function.__defaults__
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__ = made.__name__ = function.__name__ if self.kind == "run" else f"{function.__name__} (guards)"
        return made


@dataclass(eq=False)
class Entry:
    """One compiled version of a frame."""

    check: GeneratedFunction
    run: GeneratedFunction
    guards: GuardSet
    state: _native.GlobalState  # torch's, as it was
    tensor_check: _native.TensorCheck | None
    graph_module: torch.fx.GraphModule | None
    break_reason: Break | None = None
    tensor_sources: list[Source] = field(default_factory=list)

    def bind(self, function: types.FunctionType) -> tuple[types.FunctionType, types.FunctionType]:
        """Check and run for a function object (functions of one code share entries)."""
        found = stances()
        if found is None:
            check = self.check.instantiate(function)
        else:
            check = self.check.instantiate(function, [CHECK_STANCE], {"_k_stances": found})
        return check, self.run.instantiate(function)


_COMPILED: dict[tuple[str, str], types.CodeType] = {}
_numbers = itertools.count(1)


def compiled(text: str, kind: str) -> types.CodeType:
    """The code of a generated function; its file name is plainly Kiln's, so that nobody takes it for the program."""
    if len(_COMPILED) > 512:
        _COMPILED.clear()
    code = _COMPILED.get((text, kind))
    if code is None:
        code = _COMPILED[text, kind] = compile(text, f"<kiln {kind} {next(_numbers)}>", "exec")
    return code
