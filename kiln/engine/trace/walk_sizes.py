"""The sizes of a walk in a trace: numbers that the graph is specialised for, or symbols that it takes as arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...program.shapes.expressions import compile_expression, expression_text, item_name, named_source

FORMATS: dict[type, str] = {int: "q", float: "d", bool: "?"}  # of struct: how eight bytes are read


class WalkSizes:
    """The sizes of the walk that is traced: plain numbers, or symbols where they are dynamic.

    Sizes that are equal in the walk share a symbol, and a guard checks that they are equal. 0 and 1 stay numbers, as
    operations treat them specially. Some entries are the bits of numbers that the program computed with; if such a
    number is dynamic, it is an argument of the graph and no symbol.
    """

    def __init__(self, given: Sequence[int], dynamic: frozenset[int], numbers: dict[int, type] | None = None) -> None:
        known = numbers or {}
        self.given = list(given)
        self.values: list[Any] = list(given)
        self.groups: dict[int, list[int]] = {}  # value -> positions
        self.numbers = [(position, known[position]) for position in sorted(dynamic) if position in known]
        for position in sorted(dynamic.difference(known)):
            if given[position] > 1:
                self.groups.setdefault(given[position], []).append(position)
        self.names: list[str] = []
        self.environment: Any = None  # of symbols, if there are any: torch takes a second to load what that needs
        if self.groups:
            self.make_symbols()

    def make_symbols(self) -> None:
        from ...platform.torch_shapes import DimDynamic, ShapeEnv

        self.environment = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        for place, (value, positions) in enumerate(self.groups.items()):
            source: Any = named_source(item_name("sizes", place))
            symbol = self.environment.create_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
            number = self.environment.create_symintnode(symbol, hint=value, source=source)
            self.names.append(str(symbol))
            for position in positions:
                self.values[position] = number

    @property
    def picks(self) -> list[tuple[int, str]]:
        """The arguments of the graph, sizes for symbols, then numbers: positions, and how to read the bits there."""
        sizes = [(positions[0], FORMATS[int]) for positions in self.groups.values()]
        return sizes + [(position, FORMATS[kind]) for position, kind in self.numbers]

    def symbols(self) -> list[torch.SymInt]:
        return [self.values[positions[0]] for positions in self.groups.values()]

    def number_place(self, position: int | None) -> int | None:
        """The place of a number among the arguments, if it is one."""
        places = [place for place, (other, _) in enumerate(self.numbers) if other == position]
        return len(self.groups) + places[0] if places else None

    def guard(self) -> Callable[[Sequence[int]], bool]:
        """After the trace: a function that checks whether what it assumed holds for the sizes of another walk."""
        dynamic = {position for positions in self.groups.values() for position in positions}
        dynamic |= {position for position, _ in self.numbers}
        fixed = [(position, value) for position, value in enumerate(self.given) if position not in dynamic]
        same = [(positions[0], other) for positions in self.groups.values() for other in positions[1:]]
        picks = [positions[0] for positions in self.groups.values()]
        conditions = [compile_expression(text, tuple(self.names)) for text in self.conditions()]

        def guard(sizes: Sequence[int]) -> bool:
            if any(sizes[position] != value for position, value in fixed):
                return False
            if any(sizes[first] != sizes[other] for first, other in same):
                return False
            numbers = [sizes[position] for position in picks]
            return all(condition(*numbers) for condition in conditions)

        return guard

    def conditions(self) -> list[str]:
        if self.environment is None:
            return []
        texts = [expression_text(guard.expr) for guard in self.environment.guards]
        for symbol, limits in self.environment.var_to_range.items():
            if str(symbol) not in self.names:
                continue
            if limits.lower.is_Integer:
                texts.append(f"{symbol} >= {int(limits.lower)}")
            if limits.upper.is_Integer:
                texts.append(f"{symbol} <= {int(limits.upper)}")
        return texts
