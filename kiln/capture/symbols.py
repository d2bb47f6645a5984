"""Symbolic numbers: which sizes and ints may vary, their graph nodes, and the conditions they are under.

Sizes start static. One that differs from the first call (a guard miss), or is marked, or falls under
``dynamic=True``, becomes a symbol of torch's ``ShapeEnv``. Arithmetic on it is torch's ``SymInt``; a comparison the
program branches on becomes a condition; anything that needs the number itself specialises, with a guard.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
import torch.fx

from .fakes import static_fake
from .guards import ShapeCondition
from .source import Source
from .trace import SymbolInput, Trace

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(value: object) -> bool:
    return isinstance(value, SYMBOLIC)


def concrete(trace: Trace, value: object) -> object:
    """A symbolic number as the plain one it is in this call; guarded by torch's own bookkeeping."""
    from .wrap import force

    value = force(trace, value)
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    return value


@dataclass(frozen=True)
class SizeOf(Source):
    """A size of a tensor input."""

    base: Source
    dimension: int

    def render(self, base, bind):
        return f"{base}.size({self.dimension})"

    def describe(self):
        return f"{self.base.describe()}.size({self.dimension})"


@dataclass(frozen=True)
class StrideOf(Source):
    """A stride of a tensor input."""

    base: Source
    dimension: int

    def render(self, base, bind):
        return f"{base}.stride({self.dimension})"

    def describe(self):
        return f"{self.base.describe()}.stride({self.dimension})"


@dataclass(frozen=True)
class OffsetOf(Source):
    """The storage offset of a tensor input."""

    base: Source

    def render(self, base, bind):
        return f"{base}.storage_offset()"

    def describe(self):
        return f"{self.base.describe()}.storage_offset()"


def dynamic_dimensions(trace: Trace, real: torch.Tensor, source: Source) -> tuple[bool, ...] | None:
    """Which dimensions of an input may vary: marked by the user, seen to vary, or all under ``dynamic=True``."""
    marked = getattr(real, "_kiln_dynamic", frozenset())
    static = getattr(real, "_kiln_static", frozenset())
    everything = trace.options.dynamic is True and not isinstance(real, torch.nn.Parameter)
    seen = trace.hints.get(source.describe(), frozenset()) if trace.options.dynamic is not False else frozenset()
    flags = [
        (index in marked or everything or index in seen) and index not in static and size > 1
        for index, size in enumerate(real.shape)
    ]
    return tuple(flags) if any(flags) else None


def fake_input(trace: Trace, real: torch.Tensor, source: Source, dynamic: tuple[bool, ...] | None) -> torch.Tensor:
    """The fake of a graph input, with symbols for its dynamic sizes."""
    mode = trace.environment.mode
    if dynamic is None:
        fake = static_fake(mode, real, trace.environment.storages)
        if fake is None:
            fake = mode.from_tensor(real, static_shapes=True, source=torch_source(source), trace=False)
    else:
        fake = _symbolic_fake(trace, real, source, dynamic)
        for dimension, size in enumerate(fake.shape):
            _name_symbol(trace, size, SizeOf(source, dimension))
        for dimension, stride in enumerate(fake.stride()):
            _name_symbol(trace, stride, StrideOf(source, dimension))
        _name_symbol(trace, fake.storage_offset(), OffsetOf(source))
    return fake


def _symbolic_fake(trace: Trace, real: torch.Tensor, source: Source, dynamic: tuple[bool, ...]) -> torch.Tensor:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.DYNAMIC if flag else DimDynamic.STATIC for flag in dynamic]
    marked = getattr(real, "_kiln_dynamic", frozenset())
    sizes = [DimDynamic.DUCK if flag and index not in marked else kind for index, (flag, kind) in enumerate(zip(dynamic, sizes, strict=True))]
    context = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[None] * real.dim())
    return trace.environment.mode.from_tensor(
        real, source=torch_source(source), symbolic_context=context, trace=False
    )


def torch_source(source: Source) -> object:
    """A source as ``ShapeEnv`` wants it: something with a name."""
    return _source_class()(source.describe())


_SOURCE_CLASS: type | None = None


def _source_class() -> type:
    global _SOURCE_CLASS
    if _SOURCE_CLASS is None:
        import torch._guards

        class Named(torch._guards.Source):  # type: ignore[misc]
            """A torch source that is only a name; Kiln keeps its own."""

            def __init__(self, text: str):
                object.__setattr__(self, "text", text)

            @property
            def name(self):
                return self.text

            @property
            def _name_template(self):
                return self.text

            @property
            def guard_source(self):
                return torch._guards.GuardSource.LOCAL

            def __hash__(self):
                return hash(self.text)

            def __eq__(self, other):
                return isinstance(other, Named) and other.text == self.text

        _SOURCE_CLASS = Named
    return _SOURCE_CLASS


def _name_symbol(trace: Trace, value: object, source: Source) -> None:
    """Remember where a symbol can be read; a second place for the same symbol is a condition of equality."""
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        return
    expression = value.node.expr
    if not expression.is_symbol:
        return
    name = str(expression)
    if name not in trace.symbols:
        trace.symbols[name] = source
        node = _symbol_placeholder(trace, source)
        node.meta["example_value"] = value
        trace.inputs.append(SymbolInput(name, source, node, value))
    elif trace.symbols[name] != source:
        words = f"{source.describe()} == {trace.symbols[name].describe()}"
        trace.guards.shapes.append(ShapeCondition("a == b", words, (("a", source), ("b", trace.symbols[name]))))


def _symbol_placeholder(trace: Trace, source: Source) -> torch.fx.Node:
    from .tensors import add_placeholder

    return add_placeholder(trace, source)


def wrap_number(trace: Trace, real: int | float, source: Source) -> object:
    """An int or float from outside: itself with a guard, or a symbol once it was seen to vary."""
    varies = trace.hints.get(source.describe()) is not None and trace.options.dynamic is not False
    if trace.options.dynamic is True:
        varies = True
    if not varies or type(real) is float or (type(real) is int and real in (0, 1)):
        trace.guards.add(source, "constant", real)
        return real
    known = next((i for i in trace.inputs if isinstance(i, SymbolInput) and i.source == source), None)
    if known is not None:
        return known.value
    trace.guards.add(source, "type", int)
    return _symbolic_int(trace, real, source)


def _symbolic_int(trace: Trace, real: int, source: Source) -> object:
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    shapes = trace.environment.shapes
    named = torch_source(source)
    symbol = shapes.create_unspecified_symbol(real, source=named, dynamic_dim=DimDynamic.DYNAMIC)
    value = shapes.create_symintnode(symbol, hint=real, source=named)
    _name_symbol(trace, value, source)
    return value


# -- graph nodes ----------------------------------------------------------------------------------------------------


def symbol_node(trace: Trace, value: object) -> object:
    """The graph value of a symbolic number: a plain number where it is one, else nodes made from its expression."""
    expression = value.node.expr  # type: ignore[attr-defined]
    node = expression_node(trace, trace.environment.shapes.replace(expression))
    if isinstance(node, torch.fx.Node):
        node.meta.setdefault("example_value", value)
    return node


def expression_node(trace: Trace, expression: object) -> object:
    if expression.is_number:  # type: ignore[attr-defined]
        return int(expression) if expression.is_integer else float(expression)  # type: ignore[attr-defined,call-overload]
    if expression.is_symbol:  # type: ignore[attr-defined]
        name = str(expression)
        return next(i.node for i in trace.inputs if isinstance(i, SymbolInput) and i.symbol == name)
    return _operation_node(trace, expression)


def _operation_node(trace: Trace, expression: object) -> object:
    """Nodes for a compound expression, printed by torch as Python and recorded as one small function."""
    names = sorted(str(symbol) for symbol in expression.free_symbols)  # type: ignore[attr-defined]
    function = compile_expression(expression_text(expression), tuple(names))
    arguments = tuple(next(i.node for i in trace.inputs if isinstance(i, SymbolInput) and i.symbol == n) for n in names)
    return trace.graph.call_function(function, arguments)


_COMPILED: dict[tuple[str, tuple[str, ...]], object] = {}


def compile_expression(text: str, names: tuple[str, ...]) -> object:
    """A function of the named symbols for the text of an expression."""
    import math

    known = _COMPILED.get((text, names))
    if known is None:
        namespace: dict[str, object] = {"math": math, "torch": torch, "operator": operator}
        exec(f"def size_expression({', '.join(names)}):\n    return {text}", namespace)
        known = _COMPILED[(text, names)] = namespace["size_expression"]
        known.__module__ = "kiln.sizes"  # type: ignore[attr-defined]
    return known


def expression_text(expression: object) -> str:
    """A sympy expression as Python."""
    from torch.utils._sympy.printers import PythonPrinter

    return PythonPrinter().doprint(expression)


# -- conditions -----------------------------------------------------------------------------------------------------


def shape_conditions(trace: Trace) -> list[ShapeCondition]:
    """What the program's branches on sizes assumed, in terms of sources."""
    if not trace.symbols:
        return []
    shapes = trace.environment.shapes
    conditions = [condition(trace, guard.expr) for guard in shapes.guards]
    for name, source in trace.symbols.items():
        conditions += _range_conditions(trace, shapes, name, source)
    return [c for c in conditions if c is not None]


def condition(trace: Trace, expression: object) -> ShapeCondition | None:
    names = sorted(str(symbol) for symbol in expression.free_symbols)  # type: ignore[attr-defined]
    if not names:
        return None
    missing = [name for name in names if name not in trace.symbols]
    if missing:
        raise trace.fail(f"a condition on a size that cannot be read from the arguments: {expression}")
    text = expression_text(expression)
    words = text
    for name in sorted(names, key=len, reverse=True):
        words = words.replace(name, trace.symbols[name].describe())
    return ShapeCondition(text, words, tuple((name, trace.symbols[name]) for name in names))


def _range_conditions(trace: Trace, shapes: object, name: str, source: Source) -> list[ShapeCondition]:
    """Bounds that torch assumes of a symbol (a dynamic size is at least 2: 0 and 1 are special)."""
    symbol = next((s for s in shapes.var_to_range if str(s) == name), None)  # type: ignore[attr-defined]
    if symbol is None:
        return []
    limits = shapes.var_to_range[symbol]  # type: ignore[attr-defined]
    found = []
    for bound, sign in ((limits.lower, ">="), (limits.upper, "<=")):
        if getattr(bound, "is_Integer", False) and abs(int(bound)) < 2**60:
            text = f"{name} {sign} {int(bound)}"
            words = f"{source.describe()} {sign} {int(bound)}"
            found.append(ShapeCondition(text, words, ((name, source),)))
    return found
