"""What a graph module that was traced before tells of the items of its lists: which sizes vary, and how.

The engine knows of every tensor of a backward pass which of its sizes are numbers for good, and which follow from the
few that vary, and has checked both before a graph is called. So capture need not make each size a symbol of its own,
nor assume that they go together; the fakes on the graph's own nodes say all that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ...platform.torch_symbols import environment_of, expression_of, hint_of
from ...program.shapes.expressions import compile_expression, expression_text, item_name, symbol_names
from ..guards.source import Item, Local, Source

if TYPE_CHECKING:
    from ..state.trace import Trace


class Examples:
    """Fakes and symbols of a graph module's list items, by source."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        # After a graph break, variables of the module's function are parameters of another.
        self.values: dict[Source, Any] = {
            Local(node.name): node.meta["val"] for node in module.graph.nodes if node.meta.get("val") is not None
        }
        self.parameters = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
        for node in module.graph.find_nodes(op="placeholder"):
            for user in node.users:
                if user.target is operator.getitem and user.meta.get("val") is not None and type(user.args[1]) is int:
                    self.values[Item(Local(node.target), user.args[1])] = user.meta["val"]
        self.symbols = self.symbol_sources()

    def symbol_sources(self) -> dict[str, list[Source]]:
        """Where the numbers are read that sizes follow from."""
        environments = {
            id(mode): mode for value in self.values.values() if (mode := environment_behind(value)) is not None
        }
        found: dict[str, list[Source]] = {}
        for environment in environments.values():
            for parameter in self.parameters:
                place = 0
                while (symbol := environment.source_to_var.get(item_name(parameter, place))) is not None:
                    found[str(symbol)] = [Item(Local(parameter), place)]
                    place += 1
        for source, value in self.values.items():
            if isinstance(value, torch.SymInt) and expression_of(value).is_symbol:
                found.setdefault(str(expression_of(value)), []).append(source)
        return found

    def varies(self, source: Source) -> bool:
        """Whether a number is one of those that vary."""
        varying = any(source in places for places in self.symbols.values())
        return varying or isinstance(self.values.get(source), torch.SymInt)

    def is_number(self, source: Source) -> bool:
        """Whether a number is passed in that is no size: the graph only computes with it, whatever it is."""
        return type(self.values.get(source)) in (int, float)

    def dimensions(self, real: torch.Tensor, source: Source) -> tuple[bool, ...] | None:
        """Which sizes of a tensor vary; None where nothing is told, or something else than what is there."""
        example = self.values.get(source)
        if not isinstance(example, torch.Tensor) or example.dim() != real.dim() or example.dtype != real.dtype:
            return None
        pairs = list(zip(example.shape, real.shape, strict=True))
        if any(type(told) is int and told != size for told, size in pairs):
            return None
        return tuple([type(told) is not int for told, _ in pairs])

    def layout(self, trace: Trace, real: torch.Tensor, source: Source) -> tuple[list[Any], list[Any]] | None:
        """Sizes and strides in terms of the trace's own symbols; None where they are not as told."""
        example = self.values[source]
        try:
            sizes = [self.number(trace, value) for value in example.shape]
            strides = [self.number(trace, value) for value in example.stride()]
        except KeyError:  # a symbol that nobody passes in
            return None
        actual = [number_or_hint(number) for number in (*sizes, *strides)]
        return (sizes, strides) if actual == [*real.shape, *real.stride()] else None

    def number(self, trace: Trace, value: Any) -> Any:
        if type(value) is int:
            return value
        expression = expression_of(value)
        names = symbol_names(expression)
        function = compile_expression(expression_text(expression), tuple(names))
        return function(*[argument_at(trace, self.symbols.get(name, ())) for name in names])


def environment_behind(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return environment_of(value)
    return getattr(getattr(value, "fake_mode", None), "shape_env", None)


def number_or_hint(number: Any) -> Any:
    return hint_of(number) if isinstance(number, torch.SymInt) else number


def argument_at(trace: Trace, places: Sequence[Source]) -> Any:
    """An argument, or an item of a list among the arguments, as the program would have it."""
    from .wrap import force

    arguments = trace.root.arguments
    for source in places:
        if isinstance(source, Local) and source.name in arguments:
            return force(trace, arguments[source.name])
        if isinstance(source, Item) and isinstance(source.base, Local) and source.base.name in arguments:
            items = force(trace, arguments[source.base.name])
            return force(trace, items[source.key])
    raise KeyError(places)
