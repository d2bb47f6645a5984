"""The Python text of a generated function under construction: which objects it refers to, and what it reads."""

from __future__ import annotations

import builtins
import re

from ..._native import is_instance as isinstance
from .source import ClosureCell, Computed, GlobalsOf, Literal, Local, Made, Pinned, Source, bases_of, parameter_name

NOT_A_LETTER = re.compile(r"[^a-zA-Z0-9]+")

BUILTIN_NAMES = {f"_k_{name}": getattr(builtins, name) for name in dir(builtins) if not name.startswith("_")}


class Text:
    """Source text under construction: bound objects, and sources read once each."""

    def __init__(self) -> None:
        self.namespace: dict[str, object] = dict(BUILTIN_NAMES)
        self.bound: dict[int, str] = {}
        self.read_names: dict[Source, str] = {}
        self.reads: list[str] = []
        self.counter = 0

    def fresh(self, hint: str) -> str:
        self.counter += 1
        return f"_k_{NOT_A_LETTER.sub('_', hint)[:30].strip('_')}_{self.counter}"

    def bind(self, value: object, hint: str = "object") -> str:
        """A name for an object that the text refers to."""
        name = self.bound.get(id(value))
        if name is None:
            name = self.bound[id(value)] = self.fresh(hint)
            self.namespace[name] = value
        return name

    def read(self, source: Source) -> str:
        """An expression for a source; reading it is emitted once."""
        if isinstance(source, Local):
            return parameter_name(source.name)
        if isinstance(source, (GlobalsOf, ClosureCell, Pinned, Literal, Made)):
            return source.render("", self.bind)
        name = self.read_names.get(source)
        if name is None:
            if isinstance(source, Computed):
                expression = source.render_call([self.read(operand) for operand in source.operands], self.bind)
            else:
                expression = source.render(self.read(*bases_of(source)), self.bind)
            name = self.read_names[source] = self.fresh("v")
            self.reads.append(f"{name} = {expression}")
        return name
