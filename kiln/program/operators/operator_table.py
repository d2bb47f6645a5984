"""The operator table: one record per operator, with everything that the stages of Kiln ask about it.

`operator_of` finds the record of an operator of ATen (or of a user) by its overload. `operator_named` finds the record
of what captured code calls by name before it is an operator of ATen: functions of ``torch`` and
``torch.nn.functional``, methods of tensors, Python's operators. Facts come from torch's schemas and tags where these
tell them, else from `declarations.py`. Upper layers register their rules (lowerings, recomputations) in the records.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ...platform.torch_operators import (
    Argument,
    FunctionSchema,
    OpOverload,
    OpOverloadPacket,
    has_kernel,
    has_kernel_for_key,
    operator_name,
    overload_name,
    overload_names,
    qualified_name,
    schema_of,
)
from . import declarations
from .signatures import Signature, is_written, read_signature

OWN_NAMESPACES = ("aten", "prims", "kiln")
"""The namespaces of torch's operators; of the others, users' own, nobody knows what they do."""

QUERY_NAMESPACES = ("prim", "profiler")
"""The namespaces of operators that only ask for the form of a tensor, or only report."""


class Cost(enum.Enum):
    """How much it takes to compute a result once more."""

    VIEW = "no work: the same memory seen in another way"
    CHEAP = "one pass over memory without a sum"
    PASSES = "a few passes over memory: a normalization along rows, a lookup"
    EXPENSIVE = "all other work: products, convolutions, attention, sorting, users' operators"


class Raises(enum.Enum):
    """When an operator that works on fake tensors may raise on real ones."""

    NEVER = "never"
    ON_VALUES = "for some values"
    ON_INTEGERS = "for some values of integers: division by zero"
    ON_INDICES = "for some values of tensors that are indices"


class Operator:
    """What is known of an operator: of one overload, or of all overloads of a name."""

    # Rules that other modules register. All of them belong to single overloads.
    rewrite: Callable[..., Any] | None = None
    """Gives the call to record instead, where the schema does not tell what the operator does."""
    layout: Callable[..., Any] | None = None
    """Corrects the layout of results on fake tensors to that of the CPU kernel's."""
    symbolic_shape: Callable[..., Any] | None = None
    """Gives results on fake tensors where sizes are symbolic, and torch has no rule."""
    call_cost: Callable[..., Any] | None = None
    """Gives the cost of one call, where it depends on arguments."""
    recomputation: Callable[..., Any] | None = None
    """Gives another way to compute a node's result again in the backward graph."""
    lowering: Callable[..., Any] | None = None
    """Lowers a node to the loop IR."""
    lowers_when: Callable[[Any], bool] | None = None
    """Which nodes the lowering is for; None: for all. A library computes the others."""
    lowers_dynamic_floats = False
    """Whether the lowering takes a dynamic float where a number is expected."""

    # What the declarations and the schema tell, read when one of them is asked for.
    random: bool
    """Whether it draws random numbers, in some calls."""
    draws_nothing_with: dict[str, Any]
    """Values of arguments with which a random operator draws none."""
    in_place: bool
    """Whether it changes its first argument."""
    raises: Raises
    asserts_on_gpu: bool
    """Whether what it would raise stops the device, on a GPU."""
    one_dtype: bool
    """Whether it may refuse operands of several dtypes."""
    changes_unmarked: bool
    """Whether it changes arguments, in some calls, of which neither schema nor version counters tell."""
    counts_from_storage: bool
    """Whether its offset counts from where the storage of its argument begins."""
    faithful_in_python: bool
    """Whether torch's rule in Python, above autograd, does the same as the operator."""
    lifts: bool
    """Whether it makes a tensor of the program's a tensor of the trace."""
    asks_form: bool
    """Whether it asks for the form of a tensor, or reports: a trace runs it and records nothing."""
    gives_size: bool
    """Whether it gives a size of a tensor, in graphs."""
    gives_argument: bool
    """Whether it gives what it is given, or a view of all of it."""
    hands_memory_on: bool
    """Whether its result has its argument's memory, without being a view by its schema."""
    draws_in_memory_order: bool
    """Whether it draws numbers in the order of memory, unlike its functional form."""
    draws_otherwise_with_holes: bool
    """Whether it draws other numbers for memory with holes."""
    derivative_reads_values: bool
    """Whether its derivative, for complex results, looks at values."""
    computes_into_out: bool
    """Whether its overload ``out`` computes into the memory that it is given, without a copy."""
    gives_bits: bool
    """Whether all elements of its result are 0 or 1."""
    leaves_unwritten: bool
    """Whether the content of its result is undefined."""
    quantized: bool
    """Whether it takes or makes quantized tensors."""
    is_library_call: bool
    """Whether a library computes it (products, convolutions, attention): its arguments and results are in memory."""
    chooses_attention_kernel: bool
    reads_strides: bool
    """Whether its result's layout depends on the kernels of attention that are allowed."""

    def __init__(self, name: str, overloads: tuple[OpOverload, ...]) -> None:
        self.name = name
        self.overloads = overloads
        self.is_own = all(overload.namespace in OWN_NAMESPACES for overload in overloads)

    if not TYPE_CHECKING:

        def __getattr__(self, fact):
            """A fact of those declared above, at its first use: many operators are only looked up for their rules."""
            if fact not in Operator.__annotations__:
                raise AttributeError(fact)
            self.read_declarations()
            return self.__dict__[fact]

    def read_declarations(self) -> None:
        name, overloads = self.name, self.overloads
        base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        spellings = {name, base, *(f"{name}.{overload_name(overload)}" for overload in overloads)}

        def declared(table: frozenset[str]) -> bool:
            return self.is_own and not spellings.isdisjoint(table)

        self.random = self.has_tag(torch.Tag.nondeterministic_seeded)
        self.draws_nothing_with = declarations.DRAWS_NOTHING_WITH.get(base, {})
        self.in_place = any(writes_first(overload) for overload in overloads)
        self.raises = Raises.NEVER
        if declared(declarations.RAISES_ON_VALUES):
            self.raises = Raises.ON_VALUES
        elif declared(declarations.RAISES_ON_INTEGERS):
            self.raises = Raises.ON_INTEGERS
        elif declared(declarations.RAISES_ON_INDICES):
            self.raises = Raises.ON_INDICES
        self.asserts_on_gpu = declared(declarations.ASSERTS_ON_GPU)
        self.one_dtype = declared(declarations.ONE_DTYPE)
        self.changes_unmarked = declared(declarations.CHANGES_UNMARKED)
        self.counts_from_storage = declared(declarations.COUNTS_FROM_STORAGE)
        self.faithful_in_python = declared(declarations.FAITHFUL_IN_PYTHON)
        self.lifts = declared(declarations.LIFTS)
        of_queries = bool(overloads) and all(overload.namespace in QUERY_NAMESPACES for overload in overloads)
        self.asks_form = declared(declarations.ASKS_FORM) or of_queries
        self.gives_size = declared(declarations.GIVES_SIZE)
        self.gives_argument = declared(declarations.GIVES_ARGUMENT)
        self.hands_memory_on = declared(declarations.HANDS_MEMORY_ON)
        self.draws_in_memory_order = declared(declarations.DRAWS_IN_MEMORY_ORDER)
        self.draws_otherwise_with_holes = declared(declarations.DRAWS_OTHERWISE_WITH_HOLES)
        self.derivative_reads_values = declared(declarations.DERIVATIVE_READS_VALUES)
        self.computes_into_out = declared(declarations.COMPUTES_INTO_OUT)
        self.gives_bits = declared(declarations.GIVES_BITS)
        self.leaves_unwritten = declared(declarations.UNWRITTEN)
        self.quantized = declared(declarations.QUANTIZED)
        self.is_library_call = declared(declarations.LIBRARY_CALLS)
        self.chooses_attention_kernel = declared(declarations.CHOOSES_ATTENTION_KERNEL)
        self.reads_strides = declared(declarations.READS_STRIDES)

    def __repr__(self) -> str:
        return f"<Operator {self.name}>"

    def has_tag(self, tag: torch.Tag) -> bool:
        return any(tag in overload.tags for overload in self.overloads)

    @property
    def overload(self) -> OpOverload:
        (overload,) = self.overloads
        return overload

    @functools.cached_property
    def arguments(self) -> list[Argument]:
        """The arguments, of several overloads those of the first."""
        return schema_of(self.overloads[0]).arguments if self.overloads else []

    @property
    def schema(self) -> FunctionSchema:
        return schema_of(self.overload)

    @functools.cached_property
    def mutable(self) -> bool:
        """Whether it changes an argument."""
        return any(schema_of(overload).is_mutable for overload in self.overloads)

    @functools.cached_property
    def is_view(self) -> bool:
        """Whether its first result is a view of an argument, which it does not change."""
        returned = self.schema.returns
        return bool(returned) and returned[0].alias_info is not None and not returned[0].alias_info.is_write

    @functools.cached_property
    def may_return_views(self) -> bool:
        """Whether results may share memory with arguments."""
        if any(returned.alias_info is not None for returned in self.schema.returns):
            return True
        # Those that are made of others, such as `contiguous`, may give their argument itself.
        return self.is_composite

    @functools.cached_property
    def is_composite(self) -> bool:
        """Whether it is made of other operators, above autograd."""
        return has_kernel_for_key(qualified_name(self.overload), "CompositeImplicitAutograd")

    @functools.cached_property
    def signature(self) -> Signature:
        """Which arguments it changes, and which one its results are views of."""
        return read_signature(self.schema, self.replaces_metadata)

    @functools.cached_property
    def replaces_metadata(self) -> bool:
        """Whether it changes the shape, strides or storage of its argument."""
        return self.has_tag(torch.Tag.inplace_view)

    @functools.cached_property
    def needs_values(self) -> bool:
        """Whether the result's shape, or a number among the results, depends on values."""
        return self.has_tag(torch.Tag.data_dependent_output) or self.has_tag(torch.Tag.dynamic_output_shape)

    @functools.cached_property
    def has_effect(self) -> bool:
        """Whether it does something besides giving its result, or may: changes an argument, draws, asserts. What gives
        nothing is called for that."""
        if not self.is_own or self.random or not self.schema.returns or self.name in declarations.ASSERTIONS:
            return True
        return any(torch.fx.Graph().call_function(overload).is_impure() for overload in self.overloads)

    @functools.cached_property
    def cost(self) -> Cost:
        """An operator that nobody knows (a user's own) is expensive: it is never run twice."""
        if not self.is_own:
            return Cost.EXPENSIVE
        returned = self.schema.returns
        if self.name in declarations.LIKE_VIEWS or (returned and returned[0].alias_info is not None):
            return Cost.VIEW
        if self.name in declarations.PASSES:
            return Cost.PASSES
        is_cheap = self.name in declarations.CHEAP or self.has_tag(torch.Tag.pointwise)
        return Cost.CHEAP if is_cheap else Cost.EXPENSIVE


def writes_first(overload: OpOverload) -> bool:
    arguments = schema_of(overload).arguments
    return bool(arguments) and not arguments[0].kwarg_only and is_written(arguments[0])


_TABLE: dict[OpOverload, Operator] = {}


def operator_of(overload: OpOverload) -> Operator:
    """The record of an overload."""
    found = _TABLE.get(overload)
    if found is None:
        found = _TABLE[overload] = Operator(operator_name(overload), (overload,))
    return found


def find_operator(target: object) -> Operator | None:
    """The record of what a node calls; None for what is no operator."""
    return operator_of(target) if isinstance(target, OpOverload) else None


@functools.lru_cache(maxsize=4096)
def operator_named(name: str) -> Operator:
    """What is known of functions and methods of a name: what is true of any overload of the operator of that name."""
    name = declarations.ATEN_NAMES.get(name, name)
    packet = getattr(torch.ops.aten, name, None)
    overloads = overloads_of(packet) if isinstance(packet, OpOverloadPacket) else ()
    made = Operator(name, overloads)
    base = name.removesuffix("_")
    made.random |= name in declarations.RANDOM or base in declarations.RANDOM
    if not overloads:  # a function in Python: an underscore at the end says that it changes its argument
        made.in_place = name in declarations.IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    return made


@functools.lru_cache(maxsize=4096)
def operator_of_packet(packet: OpOverloadPacket) -> Operator:
    """What is true of any overload of an operator."""
    return Operator(packet.__name__, overloads_of(packet))


def overloads_of(packet: OpOverloadPacket) -> tuple[OpOverload, ...]:
    """The overloads on tensors: TorchScript has some on lists and numbers by the same names."""
    overloads = [getattr(packet, name) for name in overload_names(packet)]
    return tuple(overload for overload in overloads if has_kernel(qualified_name(overload)))
