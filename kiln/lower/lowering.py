"""Lowers a functional graph of ATen operators to writes and calls.

Each node becomes a `Tensor` (an expression of its elements), or a call of ATen where there is no lowering. A value is
materialized (written to memory) only where it is needed there: for a call, a result of the graph, a reduction, or a
second reader of a costly expression. The writes and calls are in the graph's order; fusion starts from them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from .. import operator_functions as operator
from ..loops import ir, tensor_views
from ..loops.ir import Access, Buffer, Write
from ..loops.sizes import Size, contiguous, is_empty, is_one, same
from ..loops.steps import Call, Lowered, Opaque, View
from ..loops.tensor_layouts import (
    fits_kernels,
    has_strides_of,
    has_unbacked,
    is_dense,
    is_non_overlapping,
    load_whole,
    size_of,
    sizes_of,
)
from ..loops.tensor_views import DynamicFloat, Tensor
from ..platform.torch_pytree import tree_leaves
from ..program import graph_meta
from ..program.graph_device import device_of_graph
from ..program.operators.operator_table import Operator, find_operator
from .costs import CHEAP_LOADS, CHEAP_OPERATIONS, MOST_LOADS, MOST_OPERATIONS, cost_of, is_cheap_again, is_large
from .index_checks import IndexChecks
from .node_facts import (
    changes_values_of_graph,
    computes_on_float8,
    fits_type,
    getitem_arguments,
    is_needed_in_memory,
    is_view_node,
    storage_of,
)
from .pieces import CONCATENATIONS, Pieces, lower_on_pieces, write_pieces
from .registry import NotLowered, rule_for

Node = torch.fx.Node

MOST_ORIGINS = 40  # nodes that are noted for one expression


class CannotLower(Exception):
    """The graph as a whole cannot be lowered."""


class Lowering:
    """Lowers one graph."""

    def __init__(self, module: torch.fx.GraphModule, refused: Mapping[str, str] | None = None) -> None:
        self.module = module
        self.device = device_of_graph(module)
        self.refused = refused or {}  # nodes that ATen is to run, with the reason
        self.values: dict[Node, Any] = {}
        self.sources: dict[Buffer, Node | None] = {}  # the nodes that inputs, constants and results of calls are of
        self.owners: dict[Buffer, tuple[Node, Any]] = {}  # what of the graph's memory results are
        self.items: list[Write | Call] = []
        self.checks = IndexChecks()
        self.called: dict[str, str] = {}
        self.aligned: dict[Buffer, int] = {}  # inputs that have to be, beyond what kernels need
        self.names: dict[str, int] = {}
        self.floats: dict[Opaque, DynamicFloat] = {}
        self.node: Node | None = None
        self.origins: dict[
            Node, tuple[Node, ...]
        ] = {}  # of each node, those whose expressions it grew from, and itself

    def run(self) -> Lowered:
        inputs: list[Any] = []
        outputs: list[Any] = []
        for node in self.module.graph.nodes:
            self.node = node
            if node.op == "placeholder":
                inputs.append(self.add_input(node, len(inputs)))
            elif node.op == "get_attr":
                self.values[node] = self.constant(node)
            elif node.op == "call_function":
                self.origins[node] = self.origins_of(node)
                self.values[node] = self.keep_if_costly(node, self.lower(node))
            elif node.op == "output":
                self.assemble(node.all_input_nodes)
                outputs = [
                    self.unchanged_input(place, value) or self.output(value) for place, value in enumerate(node.args[0])
                ]
                if (check := self.checks.call(self, outputs)) is not None:
                    self.items.append(check)
            else:
                raise CannotLower(f"{node.op} {node.target}")
        return Lowered(inputs, self.items, outputs, self.called, self.origins, self.aligned)

    def origins_of(self, node: Node) -> tuple[Node, ...]:
        """The nodes that a write for a node computes: itself, and those that it reads which are not in memory."""
        inlined = (one for one in node.all_input_nodes if is_expression(self.values.get(one)))
        found = dict.fromkeys(origin for one in inlined for origin in self.origins.get(one, ()))
        return (*list(found)[-MOST_ORIGINS:], node)

    @contextlib.contextmanager
    def on_behalf_of(self, node: Node) -> Iterator[None]:
        """What is written inside is a value of this node, not of the one that reads it."""
        reader, self.node = self.node, node
        try:
            yield
        finally:
            self.node = reader

    # ---- what comes in and goes out ----------------------------------------------------------------------------------

    def add_input(self, node: Node, index: int) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            found: Any = self.external_buffer(node.name, value, "input")
            found.index = index
            self.values[node] = found if isinstance(found, Opaque) else load_whole(found)
        elif isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            found = self.values[node] = size_of(value)
        else:
            found = self.values[node] = Opaque(node.name, index)
        return found if node.users else None

    def constant(self, node: Node) -> Any:
        value = operator.attrgetter(str(node.target))(self.module)
        if not isinstance(value, torch.Tensor):
            raise CannotLower(f"an attribute that is no tensor: {node.target}")
        found = self.external_buffer(node.name, value, "constant")
        if isinstance(found, Opaque) and self.device.type == "cpu":
            raise CannotLower("a constant that kernels cannot read")
        found.tensor = value
        return found if isinstance(found, Opaque) else load_whole(found)

    def unchanged_input(self, place: int, value: Any) -> View | None:
        """The input itself, for a result that is its new content and equal to it: nothing has to be written."""
        found = self.values[value] if isinstance(value, Node) else None
        access = found.access if isinstance(found, Tensor) else None
        if found is None or access is None or access.buffer.kind != "input":
            return None
        view = View(access.buffer, found.shape, access.strides, access.offset)
        is_same = graph_meta.changed_inputs(self.module).get(place) == access.buffer.index
        return view if is_same and view.is_whole else None

    def output(self, value: Any) -> Any:
        if not isinstance(value, Node):
            return value
        found = self.values[value]
        if isinstance(found, Tensor):
            like, owner = value.meta["val"], storage_of(value)
            with self.on_behalf_of(value):
                if found.access is not None and not self.may_return(found.access.buffer, owner):
                    found = self.materialize(found, like)  # the graph made it new
                view = self.view(found, like, exact=is_view_node(value) or is_non_overlapping(like))
            self.owners[view.buffer] = owner
            self.values[value] = Tensor(found.shape, ir.load(view.as_access()))  # what is given twice is one tensor
            return view
        if isinstance(found, tuple):
            raise CannotLower("several results as one")
        return found

    def may_return(self, buffer: Buffer, owner: tuple[Node, Any]) -> bool:
        """Whether a result may be in a buffer: only if the graph has this very result in that memory."""
        if buffer in self.owners:
            return self.owners[buffer] == owner
        if buffer.kind == "made":
            return True
        return owner[0] is self.sources.get(buffer)

    def external_buffer(self, name: str, value: torch.Tensor, kind: str) -> Buffer | Opaque:
        """A buffer with the layout of a (fake) tensor."""
        if not fits_kernels(value, self.device):
            return Opaque(self.name(name))
        found = Buffer(self.name(name), value.dtype, sizes_of(value.shape), sizes_of(value.stride()), kind)
        self.sources[found] = self.node
        return found

    @property
    def placement(self) -> dict[str, Any]:
        """The options of a call of ATen that makes memory for kernels."""
        return {} if self.device.type == "cpu" else {"device": self.device}

    def name(self, hint: str) -> str:
        count = self.names[hint] = self.names.get(hint, 0) + 1
        return hint if count == 1 else f"{hint}__{count}"

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def lower(self, node: Node) -> Any:
        target: Any = node.target
        value = node.meta.get("val")
        if target is operator.getitem:
            source, index = getitem_arguments(node)
            return self.values[source][index]
        if isinstance(value, (torch.SymInt, int, torch.SymFloat, float, torch.SymBool, bool)):
            return self.number(node, value)
        called = find_operator(target)
        if any(isinstance(self.values.get(one), Pieces) for one in node.all_input_nodes):
            in_pieces = self.lower_on_pieces(node, called)
            if in_pieces is not None:
                return in_pieces
            if target not in CONCATENATIONS:  # which take pieces
                self.assemble(node.all_input_nodes)
        if called is None:
            return self.call(node, "no operator of ATen")
        if value is None and called.schema.returns:
            raise CannotLower(f"nobody knows the form of what {target} gives")
        if called.mutable or (called.changes_unmarked and changes_values_of_graph(node, called)):
            raise CannotLower(f"{target} changes its arguments")
        found = self.lower_view(node, called)
        if found is not None:
            return found
        rule = rule_for(node, called)
        if rule is None:
            return self.call(node, "no lowering")
        if node.name in self.refused:
            return self.call(node, self.refused[node.name])
        if not all(fits_kernels(one, self.device) for one in tree_leaves(value) if isinstance(one, torch.Tensor)):
            return self.call(node, "results of a type, or in a place, that kernels do not have")
        if not called.is_view and computes_on_float8(node):
            return self.call(node, "an operator on float8")
        before, checks = len(self.items), len(self.checks.sizes)
        try:
            args, kwargs = self.arguments(node, called)
            results = rule(self, node, *args, **kwargs)
            check_results(results, value)
            return results
        except NotLowered as reason:
            del self.items[before:]
            self.checks.keep(checks)
            return self.call(node, str(reason))

    def lower_on_pieces(self, node: Node, called: Operator | None) -> Pieces | None:
        """A node whose arguments are concatenations, computed piece by piece; None: it reads them as a whole."""
        if called is None or called.lowering is None or node.name in self.refused:
            return None
        before = len(self.items)
        try:
            found: Pieces | None = lower_on_pieces(self, node, called)
            return found
        except NotLowered:
            del self.items[before:]
            return None

    def assemble(self, nodes: Iterable[Node]) -> None:
        """Puts concatenations into memory, each in the layout that it has in the graph."""
        for node in nodes:
            found = self.values.get(node)
            if isinstance(found, Pieces):
                self.values[node] = write_pieces(self, found, node.meta["val"])

    def arguments(self, node: Node, called: Operator) -> tuple[list[Any], dict[str, Any]]:
        """All arguments as values, defaults included."""
        args, kwargs = [], {}
        for place, argument in enumerate(called.arguments):
            if place < len(node.args) and not argument.kwarg_only:
                given: Any = self.value(node.args[place])
            elif argument.name in node.kwargs:
                given = self.value(node.kwargs[argument.name])
            else:
                given = argument.default_value
            if not fits_type(node, argument, given):
                raise NotLowered(f"{given} is no number of the type")  # eager refuses it, or wraps it around
            if argument.kwarg_only:
                kwargs[argument.name] = given
            else:
                args.append(given)
        return args, kwargs

    def value(self, value: Any) -> Any:
        """An argument with nodes replaced by their values. Raises `NotLowered` for values that kernels cannot read."""
        if isinstance(value, Node):
            found = self.values[value]
            if isinstance(found, Opaque):
                called = find_operator(self.node.target) if self.node is not None else None
                if isinstance(value.meta.get("val"), torch.SymFloat) and called and called.lowers_dynamic_floats:
                    return self.dynamic_float(found)
                raise NotLowered(f"{found} is not in plain memory, or of a type that kernels do not have")
            return found
        if isinstance(value, (list, tuple)):
            return [self.value(part) for part in value]
        return size_of(value) if isinstance(value, torch.SymInt) else value

    def dynamic_float(self, number: Opaque) -> DynamicFloat:
        """A dynamic float, put into memory for kernels."""
        if number not in self.floats:
            buffer = Buffer(self.name(number.name), torch.float64, (), (), "called")
            target = torch.ops.aten.scalar_tensor.default
            options = {"dtype": torch.float64, **self.placement}
            self.items.append(Call(self.node, target, (number,), options, [buffer]))
            self.floats[number] = DynamicFloat((), load_whole(buffer).expr)
        return self.floats[number]

    def number(self, node: Node, value: Any) -> Any:
        """A number that is computed from sizes, or from dynamic floats (then Python computes it)."""
        if isinstance(value, torch.SymInt):
            return size_of(value)
        if isinstance(value, torch.SymFloat):
            return self.call(node, "a number")
        if isinstance(value, (int, float, bool)):
            return value
        raise CannotLower(f"a number that is no size: {node.target}")

    # ---- views -------------------------------------------------------------------------------------------------------

    def lower_view(self, node: Node, called: Operator) -> Any:
        """A view of memory, with the strides that torch computed; None for other operators and for expressions."""
        if not called.is_view or not node.args or not isinstance(node.args[0], Node):
            return None
        if called.overload is torch.ops.aten.as_strided.default:
            return None  # which does not count from where its argument begins
        source = self.values[node.args[0]]
        if not isinstance(source, Tensor):
            return None
        before, after = node.args[0].meta["val"], node.meta["val"]
        access = source.access
        if access is None:
            if called.lowering is not None:
                return None  # the view of an expression
            if not isinstance(after, torch.Tensor) or not fits_kernels(after, self.device):
                return None
            access = self.view(source, before).as_access()
        elif not has_strides_of(access, source.shape, before):
            return None
        results = [
            self.view_of(access, before, one) for one in (after if isinstance(after, (list, tuple)) else [after])
        ]
        if any(result is None for result in results):
            return None
        return tuple(results) if isinstance(after, (list, tuple)) else results[0]

    def view_of(self, access: Access, before: torch.Tensor, after: torch.Tensor) -> Tensor | None:
        if after.dtype is not before.dtype or not fits_kernels(after, self.device):
            return None
        offset = access.offset + size_of(after.storage_offset()) - size_of(before.storage_offset())
        return Tensor(sizes_of(after.shape), ir.load(Access(access.buffer, sizes_of(after.stride()), offset)))

    # ---- memory ------------------------------------------------------------------------------------------------------

    def keep_if_costly(self, node: Node, value: Any) -> Any:
        """Materializes a costly value with several readers, and an expression that has grown large."""
        if isinstance(value, Pieces):
            if len(node.users) > 1 or any(is_large(piece.tensor.expr) for piece in value.pieces):
                return write_pieces(self, value, node.meta["val"])
            return value
        if not isinstance(value, Tensor) or value.access is not None:  # of several results, each getitem comes here
            return value
        if value.expr.kind in ("iota", "const", "size"):
            return value  # nothing to compute; and what is known of positions is lost in memory
        operations, loads, costly = cost_of(value.expr)
        is_cheap = operations <= CHEAP_OPERATIONS and loads <= CHEAP_LOADS
        is_cheap = is_cheap or (self.device.type == "cuda" and is_cheap_again(value.expr, value.shape))
        several = len(node.users) > 1 and (costly or not is_cheap or is_needed_in_memory(node))
        if several or operations > MOST_OPERATIONS or loads > MOST_LOADS:
            like = node.meta.get("val")
            return self.materialize(value, like if isinstance(like, torch.Tensor) else None)
        return value

    def materialize(self, tensor: Tensor, like: torch.Tensor | None = None) -> Tensor:
        """Computes the tensor into memory, with the layout of a (fake) tensor or contiguous."""
        strides = contiguous(tensor.shape)
        if like is not None and is_dense(like):
            strides = sizes_of(like.stride())
        buffer = self.new_buffer(tensor.dtype, tensor.shape, strides)
        self.write(Write(Access(buffer, strides, 0), tensor.shape, tensor.expr))
        return load_whole(buffer)

    def new_buffer(self, dtype: torch.dtype, shape: Sequence[Size], strides: Sequence[Size] | None = None) -> Buffer:
        shape = tuple(shape)
        hint = self.node.name if self.node is not None else "value"
        return Buffer(
            self.name(hint), dtype, shape, tuple(strides) if strides is not None else contiguous(shape), "made"
        )

    def write(self, write: Write) -> None:
        write.node = self.node
        self.items.append(write)

    def in_memory(self, tensor: Tensor) -> Tensor:
        """The tensor, materialized if it is an expression."""
        return tensor if tensor.access is not None else self.materialize(tensor)

    def view(self, tensor: Tensor, like: torch.Tensor, exact: bool = False) -> View:
        """The tensor as an argument of a call or as a result: in memory, with the layout of the (fake) tensor."""
        access = tensor.access
        if access is None or not has_strides_of(access, tensor.shape, like):
            if exact and not is_dense(like):  # strides that overlap or have holes
                strides = sizes_of(like.stride())
                buffer = self.new_buffer(tensor.dtype, tensor.shape, strides)
                shape = [1 if same(stride, 0) else size for size, stride in zip(tensor.shape, strides, strict=True)]
                small = tensor
                for dim, size in enumerate(shape):
                    if is_one(size):
                        small = tensor_views.slice_(small, dim, 0, 1)
                self.write(Write(Access(buffer, strides, 0), tuple(shape), small.expr))
                return View(buffer, buffer.shape, strides, 0)
            access = self.materialize(tensor, like).access
        assert access is not None
        strides = sizes_of(like.stride()) if has_strides_of(access, tensor.shape, like) else access.strides
        return View(access.buffer, tensor.shape, strides, access.offset)

    def reduce(self, tensor: Tensor, kind: str, dims: Sequence[int], keepdim: bool = False) -> Tensor:
        """The tensor reduced along axes (not negative ones); `ir.REDUCTIONS` are the kinds. The type stays, but for
        "argmax" and "argmin": reduce float16 and bfloat16 in float32, as ATen does, by casting before and after."""
        axes = tuple(sorted(set(dims)))
        kept = [size for dim, size in enumerate(tensor.shape) if dim not in axes]
        dtype = torch.int64 if kind.startswith("arg") else tensor.dtype
        buffer = self.new_buffer(dtype, kept)
        strides = iter(buffer.strides)
        places = tuple(0 if dim in axes else next(strides) for dim in range(tensor.rank))
        self.write(Write(Access(buffer, places, 0), tensor.shape, tensor.expr, kind, axes))
        found = load_whole(buffer)
        for dim in axes if keepdim else ():
            found = tensor_views.unsqueeze(found, dim)
        return found

    def reshape(self, tensor: Tensor, shape: Sequence[Size]) -> Tensor:
        """As `tensor_views.reshape`; materializes the tensor where its strides do not allow the view."""
        if is_empty(tensor.shape):
            return Tensor(tuple(shape), ir.constant(0, tensor.dtype))
        found = tensor_views.reshape(tensor, shape)
        if found is None:
            found = tensor_views.reshape(self.materialize(tensor), shape)
        if found is None:
            raise NotLowered("shapes whose sizes are not known to be equal")
        return found

    # ---- calls -------------------------------------------------------------------------------------------------------

    def call(self, node: Node, reason: str) -> Any:
        """Calls a node's target in the program, with its arguments in memory."""
        self.assemble(node.all_input_nodes)
        called = find_operator(node.target)
        if called is not None and called.counts_from_storage and not self.has_own_storage(node.args[0]):
            raise CannotLower("a storage that the graph does not have")
        value: Any = node.meta.get("val")
        exact = called is None or not called.is_own
        if called is not None and called.reads_strides:
            for argument in node.all_input_nodes:
                self.store_as_in_graph(argument)
        args = tuple(self.call_argument(arg, exact) for arg in node.args)
        kwargs = {name: self.call_argument(arg, exact) for name, arg in node.kwargs.items()}
        silent = called is not None and not called.schema.returns
        many = isinstance(value, (list, tuple)) or silent
        results = [] if silent else [self.call_result(node, one) for one in (value if many else [value])]
        # An operator without results is called for its effect, such as raising an error.
        sealed = called is None or silent or called.random
        self.items.append(Call(node, node.target, args, kwargs, results, sealed))
        self.called[node.name] = f"{node.target}: {reason}"
        found = tuple(load_whole(result) if isinstance(result, Buffer) else result for result in results)
        return found if many else found[0]

    def store_as_in_graph(self, node: Node) -> None:
        """Puts a value that is an expression into memory with the layout of the graph: what it is a view of is stored,
        with elements that the view leaves out."""
        views: list[Node] = []
        while is_view_node(node) and is_expression(self.values[node]) and isinstance(node.args[0], Node):
            views.append(node)
            node = node.args[0]
        found = self.values[node]
        if isinstance(found, Tensor) and found.access is None:
            stored = self.view(found, node.meta["val"], exact=True)
            self.values[node] = Tensor(found.shape, ir.load(stored.as_access()))
        for view in reversed(views):
            called = find_operator(view.target)
            found = self.lower_view(view, called) if called is not None else None
            if found is None:
                return
            self.values[view] = found

    def has_own_storage(self, node: Any) -> bool:
        """Whether a value is in the same storage as in the graph, from its beginning."""
        found = self.values[node]
        access = found.access if isinstance(found, Tensor) else None
        if access is None:
            return isinstance(found, Opaque) or (not is_view_node(node) and same(node.meta["val"].storage_offset(), 0))
        return access.buffer.kind != "made" or (not is_view_node(node) and same(access.offset, 0))

    def call_operator(self, target: Any, args: Sequence[Any], dtype: torch.dtype, shape: Sequence[Size]) -> Tensor:
        """Calls an operator with one contiguous result, as a part of the lowering of another operator."""
        given = tuple(self.stored_view(arg) if isinstance(arg, Tensor) else arg for arg in args)
        result = self.new_buffer(dtype, shape)
        result.kind = "called"
        self.sources[result] = self.node
        self.items.append(Call(self.node, target, given, {}, [result]))
        return load_whole(result)

    def stored_view(self, tensor: Tensor) -> View:
        """The tensor as an argument of a call, in memory with any strides."""
        access = self.in_memory(tensor).access
        assert access is not None
        return View(access.buffer, tensor.shape, access.strides, access.offset)

    def call_result(self, node: Node, value: Any) -> Buffer | Opaque | None:
        if isinstance(value, torch.Tensor):
            return self.external_buffer(node.name, value, "called")
        if has_unbacked(value):
            raise CannotLower("a size that depends on data")
        if isinstance(value, (list, tuple)):
            raise CannotLower("lists of results")
        return None if value is None else Opaque(self.name(node.name))

    def call_argument(self, value: Any, exact: bool) -> Any:
        """An argument of a call. Users' operators may read strides: ``exact`` gives them those of eager."""
        if isinstance(value, Node):
            found = self.values[value]
            if not isinstance(found, Tensor):
                return found
            with self.on_behalf_of(value):
                return self.view(found, value.meta["val"], exact)
        if isinstance(value, (list, tuple)):
            parts = [self.call_argument(part, exact) for part in value]
            return parts if isinstance(value, list) else tuple(parts)
        if isinstance(value, dict):
            return {key: self.call_argument(part, exact) for key, part in value.items()}
        return size_of(value) if isinstance(value, torch.SymInt) else value


# ---- expressions and results -----------------------------------------------------------------------------------------


def is_expression(value: Any) -> bool:
    """Whether a node's value, or a part of it, is computed where it is read."""
    if isinstance(value, tuple):
        return any(map(is_expression, value))
    return isinstance(value, Tensor) and value.access is None


def check_results(results: Any, value: Any) -> None:
    """A lowering whose result has another shape or type than the operator's is a bug; ATen runs the operator then."""
    pairs = zip(results, value, strict=False) if isinstance(results, tuple) else [(results, value)]
    for result, expected in pairs:
        if result is None:
            continue
        if isinstance(result, tuple):
            check_results(result, expected)
            continue
        if result.dtype is not expected.dtype or len(result.shape) != expected.dim():
            raise NotLowered(f"the lowering gives {result.dtype} {result.shape}, not {expected.dtype} {expected.shape}")
        if not all(same(a, b) for a, b in zip(result.shape, sizes_of(expected.shape), strict=True)):
            raise NotLowered(f"the lowering gives the shape {result.shape}, not {tuple(expected.shape)}")
