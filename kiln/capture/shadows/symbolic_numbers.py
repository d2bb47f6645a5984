"""Symbolic numbers: which sizes, ints and floats may vary, how they are made, and what arithmetic on them gives.

Sizes start static. One that differs from the first call (a guard miss), or is marked, or falls under
``dynamic=True``, becomes a symbol of torch's ``ShapeEnv``. Integer arithmetic on it is torch's ``SymInt``; a comparison
the program branches on becomes a condition (``shape_conditions.py``). Anything that needs the number specialises.

Floats are another matter: sympy rounds, reorders and simplifies them, which eager does not. So a symbolic float is
never an expression, only a name. The result of arithmetic with floats is a *new* name whose source is that very
computation (``source.Computed``): plain Python does it, before the graph runs, to the last bit.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.nn import Parameter

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ...platform.torch_dispatch import DisableTorchFunction
from ...platform.torch_symbols import expression_of, hint_of
from ...platform.torch_tensors import storage_address
from ...program.shapes.expressions import compile_expression, expression_text, named_source, symbol_names
from ...program.shapes.fake_tensors import is_ordinary, like_in_history, static_fake
from ..guards.hints import NEEDED
from ..guards.source import Attribute, Bind, Computed, InstanceAttribute, Item, Literal, Source, source
from ..state.annotations import marked_dimensions
from ..state.graph_inputs import SymbolInput
from ..state.operations import Args, operation, operations
from ..state.shape_conditions import equal, equals_expression, pin, symbol_input
from ..state.trace import Trace
from ..state.values import Lazy, Raised

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
PLAIN_NUMBERS = (int, float, bool, *SYMBOLIC)
NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(value: object) -> bool:
    return isinstance(value, SYMBOLIC)


def concrete(trace: Trace, value: object) -> Any:
    """A symbolic number as the plain one it is in this call; guarded by torch's own bookkeeping."""
    if type(value) is Lazy:
        from .wrap import force

        value = force(trace, value)
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        note_needed(trace, value)
    if isinstance(value, torch.SymInt):
        return concrete_int(trace, value)
    if isinstance(value, torch.SymFloat):
        return concrete_float(trace, value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    return value


def note_needed(trace: Trace, value: Any) -> None:
    """The program needs the very number: assumed at first; once it was seen to vary all the same, a graph break."""
    for name in symbol_names(expression_of(value)):
        source = trace.inputs.symbols.get(name)
        if source is None:
            continue
        described = source.describe()
        trace.guards.needed.add(described)
        if trace.hints.get(described) == NEEDED and not trace.options.fullgraph:
            raise trace.fail(
                f"the value of {described}, a number that varies from call to call",
                "use it in tensor operations and arithmetic only, or outside the compiled function",
            )


def concrete_int(trace: Trace, value: torch.SymInt) -> int:
    try:
        return int(value)
    except Exception:  # torch's bookkeeping of ranges fails where an expression was pinned before a part of it
        for name in symbol_names(expression_of(value)):
            pin(trace, name)
        number: int = hint_of(value)
        return number


def concrete_float(trace: Trace, value: torch.SymFloat) -> float:
    known = known_float(trace, value)
    if known is None:  # an expression that torch made: its symbols are guarded, which is enough
        return float(value)
    trace.guards.add(known.source, "constant", known.real)
    return known.real


def known_float(trace: Trace, value: torch.SymFloat) -> SymbolInput | None:
    expression = expression_of(value)
    return symbol_input(trace, str(expression)) if str(expression) in trace.inputs.symbols else None


# -- sizes of tensors -----------------------------------------------------------------------------------------------


def method_call(base: str, bind: Callable[[object, str], str], name: str, argument: object, overriding: bool) -> str:
    """Text that asks a tensor for a number; not its ``__torch_function__``, if its class has one."""
    method = f"{bind(without_override, 'without_override')}({base}, {name!r}, " if overriding else f"{base}.{name}("
    return f"{method}{argument})"


def without_override(tensor: torch.Tensor, name: str, *args: int) -> object:
    """A method of a tensor, past the ``__torch_function__`` of its class."""
    with DisableTorchFunction():
        return getattr(tensor, name)(*args)


def may_override(real: object) -> bool:
    """Whether asking a tensor for anything may run a ``__torch_function__``."""
    return type(real) not in (torch.Tensor, Parameter)


@source
class SizeOf(Source):
    """A size of a tensor input."""

    base: Source
    dimension: int
    overriding: bool = False  # its class has a __torch_function__, which must not be asked

    def render(self, base: str, bind: Bind) -> str:
        return method_call(base, bind, "size", self.dimension, self.overriding)

    def describe(self) -> str:
        return f"{self.base.describe()}.size({self.dimension})"


@source
class StrideOf(Source):
    """A stride of a tensor input."""

    base: Source
    dimension: int
    overriding: bool = False

    def render(self, base: str, bind: Bind) -> str:
        return method_call(base, bind, "stride", self.dimension, self.overriding)

    def describe(self) -> str:
        return f"{self.base.describe()}.stride({self.dimension})"


@source
class OffsetOf(Source):
    """The storage offset of a tensor input."""

    base: Source
    overriding: bool = False

    def render(self, base: str, bind: Bind) -> str:
        return method_call(base, bind, "storage_offset", "", self.overriding)

    def describe(self) -> str:
        return f"{self.base.describe()}.storage_offset()"


def dynamic_dimensions(trace: Trace, real: torch.Tensor, source: Source) -> tuple[bool, ...] | None:
    """Which dimensions of an input may vary: marked by the user, seen to vary, or all under ``dynamic=True``.

    Parameters keep their sizes unless marked: another parameter is another model.
    """
    told = trace.inputs.examples.dimensions(real, source) if trace.inputs.examples is not None else None
    if told is not None:
        return told if any(told) else None
    marked, static = marked_dimensions(real)
    free = not isinstance(real, Parameter)
    hint = trace.hints.get(source.describe()) if free and trace.options.dynamic is not False else None
    seen = hint if isinstance(hint, frozenset) else frozenset()  # a continuation may use the name for something else
    everything = free and trace.options.dynamic is True
    flags = [
        (index in marked or everything or index in seen) and index not in static and size > 1
        for index, size in enumerate(real.shape)
    ]
    return tuple(flags) if any(flags) else None


def fake_input(trace: Trace, real: torch.Tensor, source: Source, dynamic: tuple[bool, ...] | None) -> torch.Tensor:
    """The fake of a graph input, with symbols for its dynamic sizes."""
    mode = trace.fakes.mode
    if real.is_leaf and real.grad is not None and real.grad.shape != real.shape:
        raise trace.fail("a tensor whose .grad has another size: its .data was replaced")
    if dynamic is None:
        fake = static_fake(mode, real, trace.fakes.storages)
        if fake is None:
            fake = mode.from_tensor(real, static_shapes=True, source=torch_source(source), trace=False)
    elif (told := fake_with_known_sizes(trace, real, source)) is not None:
        return told
    else:
        fake = _symbolic_fake(trace, real, source, dynamic)
        for dimension, size in enumerate(fake.shape):
            _name_symbol(trace, size, SizeOf(source, dimension, may_override(real)), real.size(dimension))
        for dimension, stride in enumerate(fake.stride()):
            _name_symbol(trace, stride, StrideOf(source, dimension, may_override(real)), real.stride(dimension))
        _name_symbol(trace, fake.storage_offset(), OffsetOf(source, may_override(real)), int(real.storage_offset()))
    return fake


def fake_with_known_sizes(trace: Trace, real: torch.Tensor, source: Source) -> torch.Tensor | None:
    """The fake of an ordinary tensor whose sizes are known to follow from numbers that are passed in."""
    if (
        trace.inputs.examples is None
        or source not in trace.inputs.examples.values
        or real.storage_offset()
        or not is_ordinary(real)
    ):
        return None
    storage = storage_address(real)
    layout = trace.inputs.examples.layout(trace, real, source) if storage not in trace.fakes.storages else None
    if layout is None:
        return None
    with torch.no_grad():
        elem = torch.empty_strided(*layout, dtype=real.dtype, device="meta")
    trace.fakes.storages[storage] = elem.untyped_storage()
    return like_in_history(trace.fakes.mode, real, elem)


def _symbolic_fake(trace: Trace, real: torch.Tensor, source: Source, dynamic: tuple[bool, ...]) -> torch.Tensor:
    from ...platform.torch_shapes import DimDynamic, StatelessSymbolicContext

    marked, _ = marked_dimensions(real)
    # Sizes of several tensors that are equal now (batches) are taken to be one number; two of one tensor are not.
    again = {index for index, size in enumerate(real.shape) if size in real.shape[:index]}
    kinds = [DimDynamic.DYNAMIC if index in marked | again else DimDynamic.DUCK for index in range(real.dim())]
    sizes = [kind if flag else DimDynamic.STATIC for kind, flag in zip(kinds, dynamic, strict=True)]
    context: Any = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[None] * real.dim())
    assert trace.fakes.shapes is not None  # made now: the mode has to know it
    mode = trace.fakes.mode
    try:
        fake: torch.Tensor = mode.from_tensor(real, source=torch_source(source), symbolic_context=context, trace=False)
        return fake
    except AssertionError:  # torch makes views from its fake of the base, which the code has detached in the meantime
        raise trace.fail("a view of an input that the code has detached in place before it looks at the view") from None


def guard_strides(trace: Trace, fake: torch.Tensor, source: Source, overriding: bool) -> bool:
    """Whether the native check of strides fits what was assumed; otherwise conditions say it, stride by stride.

    The native check knows "each stride is the product of what is inside"; a view with other strides may have symbols
    or products of its own, as ``ShapeEnv`` inferred them.
    """
    sizes, strides = fake.shape, fake.stride()
    expected: Any = 1
    plain = True
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        plain = plain and _expression(stride) == _expression(expected)
        expected = size * expected
    if plain:
        return True
    for dimension, stride in enumerate(strides):
        place = StrideOf(source, dimension, overriding)
        if not isinstance(stride, torch.SymInt):
            trace.guards.add(place, "constant", stride)
        elif not expression_of(stride).is_symbol:
            trace.guards.shapes.append(equals_expression(trace, place, expression_of(stride)))
    return False


def _expression(value: Any) -> Any:
    return expression_of(value) if isinstance(value, torch.SymInt) else value


def torch_source(source: Source) -> object:
    """A source as ``ShapeEnv`` wants it: something with a name."""
    return named_source(source.describe())


def _name_symbol(trace: Trace, value: Any, source: Source, real: int | float) -> None:
    """Remember where a symbol can be read; a second place for the same symbol is a condition of equality."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return
    expression = expression_of(value)
    if not expression.is_symbol:
        return
    name = str(expression)
    if name not in trace.inputs.symbols:
        trace.inputs.symbols[name] = source
        node = operations.add_placeholder(trace, source)
        node.meta["example_value"] = value
        trace.inputs.numbers[name] = trace.inputs.numbers[source] = known = SymbolInput(name, source, node, value, real)
        trace.inputs.items.append(known)
    elif trace.inputs.symbols[name] != source:
        trace.guards.shapes.append(equal(source, trace.inputs.symbols[name]))


# -- numbers from outside -------------------------------------------------------------------------------------------

LARGEST = 2**62  # torch's symbols are 64 bits wide; nan and infinity are not at most that


@operation
def wrap_number(trace: Trace, real: int | float, source: Source) -> object:
    """An int or float from outside: itself with a guard, or a symbol once it was seen to vary."""
    if not may_vary(trace, real, source):
        trace.guards.add(source, "constant", real)
        return real
    known = trace.inputs.numbers.get(source)
    if known is not None:
        return known.value
    trace.guards.add(source, "type", type(real))
    return new_symbol(trace, real, source)


def may_vary(trace: Trace, real: int | float, source: Source) -> bool:
    """Whether a number is to be symbolic. 0, 1 and what is not finite mean too much to be left open."""
    if trace.options.dynamic is False or not abs(real) <= LARGEST:
        return False
    if trace.inputs.examples is not None and trace.inputs.examples.is_number(source):
        return True
    if real in (0, 1):
        return False
    if trace.inputs.examples is not None and trace.inputs.examples.varies(source):
        return True
    if trace.hints.get(source.describe()) is not None:
        return True
    return trace.options.dynamic is True and type(real) is int and is_argument(trace, source)


def is_argument(trace: Trace, source: Source) -> bool:
    """Whether a number is passed in, as opposed to a setting of an object, which rarely varies.

    What ``forward`` leaves for ``backward`` is passed on.
    """
    while isinstance(source, Item):
        source = source.base
    return not isinstance(source, (InstanceAttribute, Attribute)) or source.base in trace.autograd.contexts


def new_symbol(trace: Trace, real: int | float, source: Source) -> object:
    from ...platform.torch_shapes import DimDynamic

    shapes = trace.fakes.shapes
    named = torch_source(source)
    symbol = shapes.create_unspecified_symbol(real, source=named, dynamic_dim=DimDynamic.DYNAMIC)
    make = shapes.create_symintnode if type(real) is int else shapes.create_symfloatnode
    value = make(symbol, hint=real, source=named)
    _name_symbol(trace, value, source, real)
    return value


# -- arithmetic -----------------------------------------------------------------------------------------------------

EXACT = {operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.pos}
EXACT |= {operator.iadd, operator.isub, operator.imul, operator.ifloordiv, operator.imod, min, max}
EXACT |= {operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne}
POWERS = {operator.pow, operator.ipow, pow}
DIVISIONS = {operator.floordiv, operator.mod, operator.ifloordiv, operator.imod}
SYMBOLIC_FORMS = {min: torch.sym_min, max: torch.sym_max}

NUMBER_FUNCTIONS = EXACT | POWERS | {abs, round, int, float, operator.abs, operator.index, operator.truediv}
NUMBER_FUNCTIONS |= {operator.itruediv, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor}
NUMBER_FUNCTIONS |= {operator.inv, operator.invert, operator.ilshift, operator.irshift, operator.iand, operator.ior}
NUMBER_FUNCTIONS |= {operator.ixor} | {f for f in vars(math).values() if isinstance(f, types.BuiltinFunctionType)}
"""Functions from numbers to a number, without effects."""


def is_arithmetic(args: Args) -> bool:
    """Whether all operands are numbers, of which one is symbolic; none of a derived class, which may have methods."""
    return any(is_symbolic(arg) for arg in args) and all(type(arg) in PLAIN_NUMBERS for arg in args)


def arithmetic(trace: Trace, function: Any, operands: tuple[Any, ...]) -> object:
    """What a number function gives for operands of which one is symbolic."""
    operands = tuple([concrete(trace, o) if isinstance(o, torch.SymBool) else o for o in operands])
    if not any(is_symbolic(operand) for operand in operands):
        return plain_call(function, list(operands))
    if function in SYMBOLIC_FORMS and bool in map(type, operands):  # the result is one of the operands
        return plain_call(function, [concrete(trace, operand) for operand in operands])
    integers = tuple([int(operand) if type(operand) is bool else operand for operand in operands])
    if all(isinstance(operand, (int, torch.SymInt)) for operand in integers) and is_exact(function, integers):
        try:
            result = SYMBOLIC_FORMS.get(function, function)(*integers)
        except IndexError:  # torch 2.13: adding to the maximum of two sizes
            return plain_call(function, [concrete(trace, operand) for operand in operands])
        if adds_up(trace, result):
            return result
    return computed(trace, function, operands)


def adds_up(trace: Trace, result: object) -> bool:
    """Whether an expression gives the number it stands for. (torch 2.13's short cut for sums of sizes can lose terms
    of a sum that was found to be a constant meanwhile.)"""
    if not isinstance(result, torch.SymInt):
        return True
    reals = {item.symbol: item.real for item in trace.inputs.items if isinstance(item, SymbolInput)}
    expression = expression_of(result)
    known = {symbol: reals[str(symbol)] for symbol in expression.free_symbols if str(symbol) in reals}
    return len(known) < len(expression.free_symbols) or expression.subs(known) == hint_of(result)


def is_exact(function: Any, operands: tuple[Any, ...]) -> bool:
    """Whether torch's symbolic integers do this as Python does. (An error is the program's, in its own words.)"""
    if function in DIVISIONS:
        return bool(operands[1] != 0)  # decided here, so assumed of the calls to come
    if function in POWERS:
        return len(operands) == 2 and type(operands[1]) is int and 0 <= operands[1] < 8
    return function in EXACT and (function not in SYMBOLIC_FORMS or len(operands) == 2)


def plain_call(function: Any, operands: list[Any]) -> object:
    try:
        return function(*operands)
    except Exception as error:
        raise Raised(error.with_traceback(None)) from None


def computed(trace: Trace, function: Any, operands: tuple[Any, ...]) -> object:
    """What plain Python computes from numbers that may vary: a number that may vary, read by computing it again."""
    sources = [operand_source(trace, operand) for operand in operands]
    found = [source for source in sources if source is not None]
    if len(found) < len(sources):
        return plain_call(function, [concrete(trace, operand) for operand in operands])
    try:
        real = function(*[real_number(trace, operand) for operand in operands])
    except Exception:  # the error, or none, depends on the numbers
        return plain_call(function, [concrete(trace, operand) for operand in operands])
    if type(real) not in (int, float, bool):
        return plain_call(function, [concrete(trace, operand) for operand in operands])
    source = Computed(function, tuple(found))
    if type(real) is bool or real in (0, 1) or not abs(real) <= LARGEST:
        trace.guards.add(source, "constant", real)
        return real
    known = trace.inputs.numbers.get(source)
    if known is not None:
        return known.value
    trace.guards.add(source, "type", type(real))
    return new_symbol(trace, real, source)


def operand_source(trace: Trace, operand: Any) -> Source | None:
    """Where plain Python finds an operand."""
    if not is_symbolic(operand):
        return Literal(type(operand), repr(operand))
    if isinstance(operand, torch.SymFloat):
        known = known_float(trace, operand)
        return None if known is None else known.source
    expression = trace.fakes.shapes.replace(expression_of(operand))
    names = symbol_names(expression)
    if any(name not in trace.inputs.symbols for name in names):
        return None
    if not names:
        return Literal(int, str(expression))
    if expression.is_symbol:
        return trace.inputs.symbols[names[0]]
    function = compile_expression(expression_text(expression), tuple(names))
    return Computed(function, tuple(trace.inputs.symbols[name] for name in names))


def real_number(trace: Trace, operand: Any) -> object:
    """The number an operand is in this call, without assuming it."""
    if isinstance(operand, torch.SymFloat):
        known = known_float(trace, operand)
        assert known is not None
        return known.real
    return hint(operand)


def hint(operand: Any) -> Any:
    return hint_of(operand) if isinstance(operand, torch.SymInt) else operand


# -- graph nodes ----------------------------------------------------------------------------------------------------


def symbol_node(trace: Trace, value: Any) -> object:
    """The graph value of a symbolic number: a plain number where it is one, else nodes made from its expression."""
    if isinstance(value, torch.SymFloat):
        known = known_float(trace, value)
        return concrete_float(trace, value) if known is None else known.node
    node = expression_node(trace, trace.fakes.shapes.replace(expression_of(value)))
    if isinstance(node, torch.fx.Node):
        node.meta.setdefault("example_value", value)
    return node


def expression_node(trace: Trace, expression: Any) -> object:
    if expression.is_number:
        return int(expression) if expression.is_integer else float(expression)
    if expression.is_symbol:
        return symbol_input(trace, str(expression)).node
    names = tuple(symbol_names(expression))
    function = compile_expression(expression_text(expression), names)
    return trace.graph.call_function(function, tuple(symbol_input(trace, name).node for name in names))
