"""A graph without mutation, written while a program that mutates runs on fake tensors.

A :class:`Storage` is a piece of memory: the graph node with its current content, in the shape of its first tensor. A
:class:`View` is a view of it: a tree of view operations, each from its parent. Every fake tensor of the trace has a
view. Then

- a pure operation is a node on the current values of its arguments;
- a view operation is a new view, and a node;
- an operation that mutates a tensor (``x.add_``) is its functional form, whose result is written back through the views
  to the storage (``slice`` by ``slice_scatter`` …). Every other view of the storage is then out of date, and is made
  anew from the new content when it is next read.

The runtime replays the views of outputs on the real tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeGuard

import torch
import torch.fx

from ... import operator_functions as operator
from ...platform.light_dataclass import dataclass
from ...platform.torch_operators import OpOverload, ScriptObject, operator_name, schema_of
from ...platform.torch_tensors import storage_address, version_of
from ...program.graph import Graph
from ...program.memory import has_overlap, may_overlap
from ...program.operators.functional_forms import functional_form, gives_several, takes
from ...program.operators.operator_table import find_operator, operator_of, overloads_of
from ...program.operators.signatures import Signature
from ...program.unsupported import Unsupported
from .autograd_edges import Edge, edge_of
from .size_nodes import SizeNodes
from .view_inverses import INVERSES, reshape, write_overlapping

aten = torch.ops.aten
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


@dataclass(eq=False)
class Storage:
    """A piece of memory, by the node with its current content."""

    node: torch.fx.Node
    first: torch.Tensor  # its first tensor
    root: View = field(init=False)  # the view of that
    generation: int = 0  # how often it was changed
    placeholder: torch.fx.Node | None = None  # of an input
    constant: bool = False
    taken_from: View | None = None  # whose memory it took over
    taken_generation: int = 0  # that memory's, when the two last agreed
    version: int = 0  # of its first tensor when it was made
    writes: list[View] = field(default_factory=list)  # the views through which it was changed

    def written_in(self, view: View) -> bool:
        """Whether it was changed through a view, or through a view of that."""
        return any(view in written.path() for written in self.writes)


@dataclass(eq=False)
class Step:
    """One view operation, to be done again on another tensor."""

    function: OpOverload
    rest: tuple[Any, ...]  # arguments after the tensor
    keywords: dict[str, Any]
    index: int | None  # of operations with several results
    differentiable: bool  # whether gradients were being recorded
    in_place: OpOverload | None = None  # the operation that did this to the tensor itself (``transpose_``)
    hidden: bool = False  # autograd does not know that the result is a view (``unsafe_split``)
    detached: torch.Tensor | None = None  # x, for ``x.detach()`` or ``x.data``
    parts: Any = None  # all results of an operation with several


@dataclass(eq=False)
class View:
    """A view of a storage."""

    storage: Storage
    parent: View | None
    step: Step | None
    node: torch.fx.Node
    generation: int
    value: torch.Tensor  # a fake with its shape
    edge: Edge | None = None  # the place in autograd's graph that its tensor had until its shape was changed

    def path(self) -> list[View]:
        """From the first view of the storage to this one."""
        views: list[View] = []
        view: View | None = self
        while view is not None:
            views.append(view)
            view = view.parent
        return views[::-1]


class FunctionalGraph:
    """The graph under construction, and what each fake tensor is in it."""

    def __init__(self, annotate: Callable[[torch.fx.Node], None]) -> None:
        self.graph = Graph()
        self.annotate = annotate
        self.views: dict[int, View] = {}
        self.memory: dict[int, int] = {}  # the storage that each tensor had at first
        self.kept: list[object] = []  # tensors, so that their ids stay theirs
        self.storages: dict[int, Storage] = {}
        self.attributes: dict[str, object] = {}
        self.last_input: torch.fx.Node | None = None
        self.sizes = SizeNodes(self)

    # -- inputs and constants ---------------------------------------------------------------------------------------

    def add_input(self, name: str, value: object) -> torch.fx.Node:
        """A placeholder; a tensor among them has memory of its own."""
        if self.last_input is None:
            node = self.graph.placeholder(name)
        else:
            with self.graph.inserting_after(self.last_input):  # some come when the graph has begun
                node = self.graph.placeholder(name)
        self.last_input = node
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self.add_storage(value, node).placeholder = node
        else:
            self.sizes.add_input(value, node)
        return node

    def add_constant(self, value: object, fake: torch.Tensor | None = None) -> torch.fx.Node:
        """A value that the program holds: a tensor, or anything that calls are made with."""
        name = f"_constant{len(self.attributes)}"
        self.attributes[name] = value
        node = self.graph.get_attr(name)
        node.meta["val"] = fake if fake is not None else value
        if fake is not None:
            self.add_storage(fake, node).constant = True
            self.sizes.add_tensor(fake, node)
        return node

    def add_storage(self, tensor: torch.Tensor, node: torch.fx.Node) -> Storage:
        """Note a tensor with new memory."""
        storage = Storage(node, tensor)
        storage.version = 0 if tensor.is_inference() else version_of(tensor)  # fakes do not always begin at 0
        storage.root = View(storage, None, None, node, 0, tensor)
        self.set_view(tensor, storage.root)
        self.storages[storage_key(tensor)] = storage
        self.sizes.add_tensor(tensor, node)
        return storage

    def set_view(self, tensor: torch.Tensor, view: View) -> None:
        self.views[id(tensor)] = view
        self.memory[id(tensor)] = storage_key(tensor)
        self.kept.append(tensor)

    # -- reading ----------------------------------------------------------------------------------------------------

    def knows(self, tensor: object) -> bool:
        return id(tensor) in self.views

    def view_of(self, tensor: torch.Tensor) -> View:
        view = self.views.get(id(tensor))
        if view is None:
            raise Unsupported("a tensor that is neither an input of the graph nor made by it")
        if storage_key(tensor) != self.memory[id(tensor)]:
            raise Unsupported("a tensor that was given other memory (by an assignment to .data)")
        return view

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node with what a tensor holds now."""
        return self.current(self.view_of(tensor))

    def current(self, view: View) -> torch.fx.Node:
        """The node with the current content of a view."""
        source = view.storage.taken_from
        if source is not None and source.storage.generation != view.storage.taken_generation:
            raise Unsupported("memory that was handed on and then changed")
        if view.generation != view.storage.generation:
            if view.parent is None or view.step is None:
                view.node = view.storage.node
            else:
                view.node = self.replay(view.step, self.current(view.parent), view.value)
            view.generation = view.storage.generation
        return view.node

    def replay(self, step: Step, source: torch.fx.Node, value: object) -> torch.fx.Node:
        """The node of a view operation on a source."""
        if operator_of(step.function).gives_argument:
            return source
        whole = value if step.index is None else step.parts
        node = self.emit(step.function, (source, *self.convert(step.rest)), self.convert(step.keywords), whole)
        return node if step.index is None else self.item(node, step.index, value)

    # -- writing nodes ----------------------------------------------------------------------------------------------

    def emit(
        self, function: Any, args: Arguments, keywords: Keywords | None = None, value: object = None
    ) -> torch.fx.Node:
        """A call as a node; ``value`` is what it gives, on fakes."""
        node = self.graph.call_function(function, args, keywords or {})
        node.meta["val"] = value
        self.annotate(node)
        return node

    def compute(self, function: Any, *args: Any, **keywords: Any) -> torch.fx.Node:
        """A call on nodes, with its value computed."""
        with torch.no_grad():
            value = function(*values_of(args), **values_of(keywords))
        return self.emit(function, self.convert(args), self.convert(keywords), value)

    def item(self, node: torch.fx.Node, index: int, value: object) -> torch.fx.Node:
        return self.emit(operator.getitem, (node, index), {}, value)

    def convert(self, value: Any) -> Any:
        """Arguments of a call with nodes for tensors and symbolic numbers."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value) if id(value) in self.views else self.constant_of(value)
        if is_symbolic(value):
            return self.sizes.node_of(value)
        if isinstance(value, (list, tuple)):
            made = [self.convert(item) for item in value]
            return made if isinstance(value, list) else tuple(made)
        if isinstance(value, dict):
            return {key: self.convert(item) for key, item in value.items()}
        if isinstance(value, torch.Generator):
            raise Unsupported("a generator of random numbers: the program's own, and another one in the next call")
        if isinstance(value, ScriptObject):
            return self.add_constant(value)
        return value

    def constant_of(self, value: torch.Tensor) -> torch.fx.Node:
        if storage_key(value) in self.storages:
            raise Unsupported("a tensor that shares memory with another in a way that no operation told")
        return self.add_constant(value, value)

    # -- one operation ----------------------------------------------------------------------------------------------

    def record(self, function: OpOverload, args: Arguments, keywords: Keywords, result: Any) -> None:
        """Note an operation that has just run on fakes."""
        effects: Signature | None = None
        rewrite = operator_of(function).rewrite
        if rewrite is not None:
            function, args, keywords, effects = rewrite(function, args, keywords)
        effects = effects or operator_of(function).signature
        if effects.replaces_metadata:
            self.record_reshape(function, args, keywords)
        elif effects.changed:
            self.record_mutation(effects, function, args, keywords, result)
        elif effects.view_of is not None:
            self.record_view(effects, function, args, keywords, result)
        else:
            node = self.emit(function, self.convert(args), self.convert(keywords), result)
            self.record_result(node, result)
            if hands_memory_on(function):
                take_over(self.view_of(result).storage, self.view_of(args[0]))

    def record_result(self, node: torch.fx.Node, result: object) -> None:
        """Note what a node gave: tensors with new memory, numbers, or lists of them."""
        if isinstance(result, torch.Tensor):
            self.record_tensor(node, result)
        elif isinstance(result, (list, tuple)):
            for index, part in enumerate(result):
                if part is not None and (isinstance(part, torch.Tensor) or is_symbolic(part)):
                    self.record_result(self.item(node, index, part), part)
        elif is_symbolic(result):
            self.sizes.add_input(result, node)

    def record_tensor(self, node: torch.fx.Node, result: torch.Tensor) -> None:
        if id(result) in self.views:
            return  # the operator returned its argument
        shared = self.storages.get(storage_key(result))
        if shared is not None and result.numel() != 0 and not hands_memory_on(node.target):
            raise Unsupported(f"{node.target}, whose result shares memory with something in a way its schema hides")
        self.add_storage(result, node)

    def record_view(self, effects: Signature, function: Any, args: Arguments, keywords: Keywords, result: Any) -> None:
        source = args[0] if effects.view_of == 0 else None
        if not isinstance(source, torch.Tensor):
            raise Unsupported(f"{function}, a view of something that is no single tensor")
        parent = self.view_of(source) if id(source) in self.views else self.viewed_constant(source)
        differentiable = torch.is_grad_enabled()
        several = isinstance(result, (list, tuple))
        whole = None
        if several:
            whole = self.emit(function, (self.current(parent), *self.convert(args[1:])), self.convert(keywords), result)
        for index, part in enumerate(result if several else [result]):
            if id(part) in self.views:
                continue
            step = Step(function, args[1:], keywords, None, differentiable, hidden=effects.hidden)
            if function is torch.ops.aten.detach.default:
                step.detached = source
            if several:
                step.index, step.parts = index, result
            if whole is not None:
                node = self.item(whole, index, part)
            else:
                node = self.replay(step, self.current(parent), part)
            self.set_view(part, View(parent.storage, parent, step, node, parent.storage.generation, part))

    def viewed_constant(self, value: torch.Tensor) -> View:
        self.constant_of(value)
        return self.view_of(value)

    # -- changes ----------------------------------------------------------------------------------------------------

    def before_reshape(self, tensor: object) -> None:
        """Called before an operation that changes the shape of a tensor in place: its view keeps the old shape."""
        if isinstance(tensor, torch.Tensor) and id(tensor) in self.views:
            view = self.views[id(tensor)]
            view.edge = edge_of(tensor)
            if view.value is tensor:
                with torch.no_grad():
                    view.value = aten.detach.default(tensor)
            if view.node.meta.get("val") is tensor:
                view.node.meta["val"] = view.value

    def record_reshape(self, function: Any, args: Arguments, keywords: Keywords) -> None:
        """``transpose_`` and others: the tensor becomes another view of its storage."""
        tensor = args[0]
        view = self.view_of(tensor)
        if function is aten.detach_.default:
            return
        if any(isinstance(arg, torch.Tensor) for arg in (*args[1:], *keywords.values())):
            raise Unsupported(f"{function}, which gives a tensor the memory of another")
        form = out_of_place(function)
        with torch.no_grad():
            value = form(view.value, *args[1:], **keywords)
        step = Step(form, args[1:], keywords, None, torch.is_grad_enabled(), function)
        node = self.replay(step, self.current(view), value)
        self.views[id(tensor)] = View(view.storage, view, step, node, view.storage.generation, value)

    def record_mutation(
        self, effects: Signature, function: Any, args: Arguments, keywords: Keywords, result: Any
    ) -> None:
        """An operation that changes some of its arguments: its functional form, and writing back."""
        targets = [effects.argument(place, args, keywords) for place in effects.changed]
        self.check_overlap(function, flat(targets), flat([*args, *keywords.values()]))
        form, left_out = (effects.form, ()) if effects.form is not None else functional_form(function)
        given_args, given_keywords = effects.without(left_out, args, keywords)
        called = operator_of(function)
        if called.draws_otherwise_with_holes and args[0].stride() != torch.empty_like(args[0]).stride():
            raise Unsupported(f"{function} on memory with holes")
        if called.draws_in_memory_order and not args[0].is_contiguous():
            node = self.fill_in_order(form, given_args, given_keywords)
            values = node.meta["val"]
        else:
            with torch.no_grad():
                values = form(*given_args, **given_keywords)
            node = self.emit(form, self.convert(given_args), self.convert(given_keywords), values)
        parts = values if isinstance(values, (list, tuple)) and gives_several(form) else [values]
        fresh = len(parts) - len(targets)
        made = [node] if parts is not values else [self.item(node, i, part) for i, part in enumerate(parts)]
        own_results = [part for part in flat(result) if isinstance(part, torch.Tensor) and id(part) not in self.views]
        for part, own_node in zip(own_results, made[:fresh], strict=False):
            own_node.meta["val"] = part
            self.record_result(own_node, part)
        for target, new, value in zip(targets, made[fresh:], parts[fresh:], strict=True):
            self.assign(str(function), target, new, value)

    def check_overlap(self, function: Any, targets: list[Any], arguments: list[Any]) -> None:
        """Torch refuses, or does not define, operations that read memory that they write: left to eager."""
        for target in targets:
            if not isinstance(target, torch.Tensor) or id(target) not in self.views:
                continue
            storage = self.views[id(target)].storage
            for other in arguments:
                if other is target or not isinstance(other, torch.Tensor) or id(other) not in self.views:
                    continue
                if self.views[id(other)].storage is storage and may_overlap(target, other):
                    raise Unsupported(f"{function} on tensors that overlap in memory")

    def fill_in_order(self, form: Any, args: Arguments, keywords: Keywords) -> torch.fx.Node:
        """Draw random numbers in the order of memory, which is not that of the dimensions."""
        target, *rest = args
        order = sorted(range(target.dim()), key=lambda dim: -target.stride(dim))
        straight = self.compute(aten.permute.default, self.node_of(target), order)
        if not straight.meta["val"].is_contiguous():  # memory with holes is filled by dimensions
            return self.compute(form, self.node_of(target), *rest, **keywords)
        drawn = self.compute(form, straight, *rest, **keywords)
        return self.compute(aten.permute.default, drawn, [order.index(dim) for dim in range(len(order))])

    def assign(self, name: str, target: Any, node: torch.fx.Node, value: Any) -> None:
        """Write a new value into a tensor, or into each of a list of them."""
        if target is None:
            return
        if isinstance(target, (list, tuple)):
            for index, part in enumerate(target):
                self.assign(name, part, self.item(node, index, value[index]), value[index])
                if not part.is_inference():
                    torch.autograd.graph.increment_version(part)  # as the real kernels do for each
            return
        view = self.view_of(target) if id(target) in self.views else self.viewed_constant(target)
        if view.storage.constant:
            raise Unsupported(f"{name}, which changes a tensor that the graph holds as a constant")
        self.write(view, self.as_content(view, node, value, target), name)

    def as_content(self, view: View, node: torch.fx.Node, value: torch.Tensor, target: torch.Tensor) -> torch.fx.Node:
        """A new value with the type, shape and layout of what it replaces."""
        if value.shape != target.shape:
            raise Unsupported("an operation that changes the size of its result tensor")
        if view.value.shape != target.shape:
            if view.parent is not None or view.storage.placeholder is not None:
                raise Unsupported("an output tensor that was resized")
            view.value = target
        if value.dtype != target.dtype and not torch.can_cast(value.dtype, target.dtype):
            raise Unsupported("an operation whose result does not fit the type of the tensor that it changes")
        if value.dtype != target.dtype:
            node = self.compute(aten._to_copy.default, node, dtype=target.dtype)
        if view.parent is None and node.meta["val"].stride() != target.stride():
            node = self.compute(aten.copy.default, self.like(view, target), node)
        return node

    def like(self, view: View, target: torch.Tensor) -> torch.fx.Node:
        """A node with the layout of a tensor: its current content, or uninitialized memory."""
        current = self.current(view)
        if current.meta["val"].stride() == target.stride():
            return current
        return self.compute(
            aten.empty_strided.default,
            list(target.shape),
            list(target.stride()),
            dtype=target.dtype,
            device=target.device,
        )

    def write(self, view: View, node: torch.fx.Node, name: str) -> None:
        """Make a new value of a view the content of its storage."""
        storage, path = view.storage, view.path()
        if has_overlap(path[0].value) or has_overlap(view.value):
            raise Unsupported(f"{name} on a tensor with elements that share memory")
        top = next((place for place, part in enumerate(path[:-1]) if place and has_overlap(part.value)), None)
        if top is not None:
            node, path = write_overlapping(self, path[0], view, node), path[:1]
        for part in reversed(path[1:]):
            parent = part.parent
            assert parent is not None and part.step is not None
            inverse = INVERSES.get(part.step.function)
            if inverse is None:
                raise Unsupported(f"{name} on a view made by {part.step.function}")
            node = inverse(self, part.step, self.current(parent), node, parent.value)
        storage.node = node
        storage.generation += 1
        storage.writes.append(view)
        source = storage.taken_from
        if source is not None:
            self.write(source, reshape(self, node, list(source.value.shape)), name)
            take_over(storage, source)


def take_over(storage: Storage, source: View) -> None:
    """Note that a storage has the memory, and now the content, of another."""
    storage.taken_from, storage.taken_generation = source, source.storage.generation


def out_of_place(function: OpOverload) -> OpOverload:
    """``transpose.int`` of ``transpose_.default``."""
    packet = getattr(aten, operator_name(function).removesuffix("_"), None)
    for found in overloads_of(packet) if packet is not None else ():
        if takes(found, schema_of(function).arguments):
            return found
    raise Unsupported(f"{function}, which gives a tensor other memory")


def hands_memory_on(target: object) -> bool:
    """Whether the result takes over the memory of the argument, though by the schema it is new."""
    called = find_operator(target)
    return called is not None and called.hands_memory_on


def storage_key(tensor: torch.Tensor) -> int:
    try:
        return storage_address(tensor)
    except (NotImplementedError, RuntimeError):
        raise Unsupported("a tensor without plain memory (sparse, nested or of a foreign kind)") from None


def is_symbolic(value: object) -> TypeGuard[torch.SymInt | torch.SymFloat | torch.SymBool]:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def flat(value: Any) -> list[Any]:
    """The leaves of nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in flat(part)]
    return [value]


def values_of(value: Any) -> Any:
    """Nodes replaced by the fakes they stand for."""
    return torch.fx.node.map_arg(value, lambda node: node.meta["val"])
