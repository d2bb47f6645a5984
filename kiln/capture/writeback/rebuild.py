"""From shadows back to real objects, as Python source.

``Rebuilder.value`` gives the expression for a shadow: an outside object is read from its source, a tensor is an output
of the graph, anything made inside is made again. What a type needs is a row in ``BUILDERS``. Text comes in phases that
the entry function keeps apart: *reads* (before the graph runs), *lines* (building), *effects* (writing back).
"""

from __future__ import annotations

import collections
import enum
import functools
import gc
import re
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ...platform.cpython import enum_value, members_by_name, members_by_value
from ...platform.python_objects import HEAP_TYPE, mapping_items, plain_value, slot_descriptors
from ...platform.torch_operators import OpOverload, OpOverloadPacket
from ..guards.generated_text import Text
from ..guards.source import (
    Item,
    Local,
    Source,
    getattr_static_dict,
    is_direct,
    lookup,
    mapping_of,
    namespace_of,
    parameter_name,
)
from ..interpreter.frame import NULL
from ..shadows.appended_lists import ListMethod
from ..shadows.bound_builtins import bind_method, is_found_by_name, native_descriptor
from ..shadows.builtin_tables import ITERATOR_TYPES, LAZY_ITERATORS, VIEW_TYPES
from ..shadows.native_arguments import ForcedIterator, Proxy
from ..shadows.symbolic_numbers import OffsetOf, SizeOf, StrideOf, concrete, is_symbolic, operand_source
from ..shadows.wrap import is_constant, layout_of
from ..state.ordered_sets import insertion_order, make_set
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, EVALUATED, Lazy, Opaque, Trampoline, is_struct


class CannotRebuild(Exception):
    """A live value that no code can make again."""

    def __init__(self, value: object, reason: str):
        super().__init__(reason)
        self.value = value
        self.reason = reason


SINGLE_NUMBERS = range(-5, 257)  # of which CPython makes one object each


class Rebuilder(Text):
    """Rebuilds values of one trace."""

    def __init__(self, trace: Trace):
        super().__init__()
        self.trace = trace
        self.lines: list[str] = []
        self.effects: list[str] = []
        self.names: dict[int, str] = {}  # id of a shadow -> variable that holds its real counterpart
        self.building: set[int] = set()
        self.cyclic: set[int] = set()
        self.early: set[int] = set()  # of these, what is referred to before it is made
        self.later: list[Callable[[], None]] = []
        self.outputs: dict[torch.fx.Node, str] = {}
        self.kept: set[str] = set()  # of the lists that the graph may consume, those that are needed themselves

    def read(self, source: Source) -> str:
        consumed = self.trace.inputs.consumed
        if consumed and isinstance(source, Local) and source.name in consumed:
            self.kept.add(source.name)
        elif consumed and isinstance(source, Item) and isinstance(source.base, Local) and source.base.name in consumed:
            return self.read_consumed(source, source.base.name)
        elif consumed and isinstance(source, (SizeOf, StrideOf, OffsetOf)) and source not in self.read_names:
            return self.read_number(source)
        return super().read(source)

    def read_number(self, source: SizeOf | StrideOf | OffsetOf) -> str:
        """A size of a tensor; of one out of a list that the graph consumes, without keeping the tensor for it."""
        place = source.base
        if not isinstance(place, Item) or not isinstance(place.base, Local) or place in self.read_names:
            return super().read(source)
        if place.base.name not in self.trace.inputs.consumed:
            return super().read(source)
        name = self.read_names[source] = self.fresh("v")
        owner = place.render(parameter_name(place.base.name), self.bind)
        self.reads.append(f"{name} = {source.render(owner, self.bind)}")
        return name

    def read_consumed(self, source: Item, owner: str) -> str:
        """A tensor out of a list that the graph consumes, kept for later."""
        name = self.read_names.get(source)
        if name is None:
            count = sum(known.startswith(f"{owner}_ref_") for known in self.read_names.values())
            name = self.read_names[source] = f"{owner}_ref_{count}"
            self.reads.append(f"{name} = {source.render(parameter_name(owner), self.bind)}")
        return name

    # -- values ---------------------------------------------------------------------------------------------------

    def value(self, shadow: object) -> str:
        """An expression for the real counterpart of a shadow."""
        if type(shadow) is Lazy:
            if not shadow.done or (type(shadow.source) is Local and type(shadow.value) in CONSTANT_TYPES):
                return self.read(shadow.source)
            shadow = shadow.value
        kind = type(shadow)
        if kind in CONSTANT_TYPES:
            return self.constant(shadow)
        if is_symbolic(shadow):
            return self.symbol(shadow)
        if id(shadow) in self.names:
            if id(shadow) in self.building:
                self.close_cycle(shadow)
            return self.names[id(shadow)]
        if isinstance(shadow, torch.Tensor):
            return self.tensor(shadow)
        source = self.trace.outside.source_of(shadow)
        if source is not None:
            return self.read(source)
        return self.build(shadow)

    def close_cycle(self, shadow: object) -> None:
        """Something refers to an object that is being made of it."""
        self.cyclic.add(id(shadow))
        if not any(line.startswith(f"{self.names[id(shadow)]} = ") for line in self.lines):
            self.early.add(id(shadow))

    def constant(self, value: object) -> str:
        """A literal where there is one object for it; else the very object, of which the program may take the id."""
        if value is None or type(value) is bool or (type(value) is int and value in SINGLE_NUMBERS):
            return repr(value)
        return self.bind(value, "constant")

    def symbol(self, value: object) -> str:
        source = operand_source(self.trace, value)
        if source is None and isinstance(value, torch.SymFloat):
            return self.constant(concrete(self.trace, value))
        if source is None:
            raise CannotRebuild(value, "a size that depends on a tensor's values")
        return self.read(source)

    def tensor(self, fake: torch.Tensor) -> str:
        info = self.trace.tensor_info(fake)
        if info.source is not None:
            return self.read(info.source)
        return self.output(info.node)

    def output(self, node: torch.fx.Node) -> str:
        name = self.outputs.get(node)
        if name is None:
            name = self.outputs[node] = f"_k_out_{len(self.outputs)}"
        return name

    def build(self, shadow: object) -> str:
        """Make an object again; shared objects once, cycles closed after the fact."""
        builder = builder_for(shadow)
        if builder is None:
            from ..interpreter.program_types import type_of  # which needs this file

            raise CannotRebuild(shadow, f"a {type_of(self.trace, shadow).__qualname__} that outlives the graph")
        name = self.names[id(shadow)] = self.fresh(type(shadow).__name__)
        self.trace.outside.keep.append(shadow)
        self.building.add(id(shadow))
        place = len(self.lines)
        self.lines.append("")
        builder(self, shadow, name, place)
        self.building.discard(id(shadow))
        if id(shadow) in self.early and not self.lines[place]:
            raise CannotRebuild(shadow, f"a {type(shadow).__qualname__} that contains itself and outlives the graph")
        return name

    def items(self, shadows: Any) -> str:
        """Comma-separated expressions, with a trailing comma."""
        return "".join(f"{self.value(item)}, " for item in shadows)

    def class_of(self, shadow: object) -> str:
        return self.class_expression(type(shadow))

    def class_expression(self, cls: type) -> str:
        return self.value(cls) if self.trace.outside.source_of(cls) is not None else self.bind(cls, cls.__name__)

    def run_later(self) -> None:
        while self.later:
            self.later.pop(0)()


# -- builders: (rebuilder, shadow, name, place of its first line) ------------------------------------------------------


def build_list(r: Rebuilder, shadow: list[Any], name: str, place: int) -> None:
    items = r.items(list(shadow))
    finish(r, shadow, name, place, "[]", f"[{items}]", f"{name}.extend([{items}])")


def finish(r: Rebuilder, shadow: object, name: str, place: int, empty: str, full: str, fill: str) -> None:
    """A literal where possible; where the contents refer back, the empty object first and then its contents."""
    if id(shadow) in r.cyclic:
        r.lines[place] = f"{name} = {empty}"
        r.lines.append(fill)
    else:
        r.lines.append(f"{name} = {full}")


def build_dict(r: Rebuilder, shadow: dict[Any, Any], name: str, place: int) -> None:
    if id(shadow) in r.trace.outside.namespaces:  # vars(something)
        owner, attribute = r.trace.outside.namespaces[id(shadow)]
        r.lines.append(f"{name} = {r.value(owner)}.{attribute}")
        return
    items = "".join(f"{r.value(key)}: {r.value(value)}, " for key, value in mapping_items(shadow))
    finish(r, shadow, name, place, "{}", "{" + items + "}", f"{name}.update({{{items}}})")


def build_set(r: Rebuilder, shadow: set[Any], name: str, place: int) -> None:
    items, passing = elements_in_order(shadow)
    text = r.items(items)
    full = f"{r.bind(make_set, 'make_set')}([{text}], {passing})" if passing else f"_k_set([{text}])"
    finish(r, shadow, name, place, "_k_set()", full, f"{name}.update([{text}])")


def build_frozenset(r: Rebuilder, shadow: frozenset[Any], name: str, place: int) -> None:
    items = r.items(elements_in_order(shadow)[0])
    if type(shadow) is frozenset:
        r.lines.append(f"{name} = _k_frozenset([{items}])")
    else:
        r.lines.append(f"{name} = _k_frozenset.__new__({r.class_of(shadow)}, [{items}])")
        add_attributes(r, shadow, name)


def elements_in_order(shadow: set[Any] | frozenset[Any]) -> tuple[list[Any], int]:
    """How to make a set that iterates as this one does; objects are hashed by identity and have no order to keep."""
    items = list(set.__iter__(shadow) if isinstance(shadow, set) else frozenset.__iter__(shadow))
    return (insertion_order(items) if all(map(is_constant, items)) else None) or (items, 0)


def build_tuple(r: Rebuilder, shadow: tuple[Any, ...], name: str, place: int) -> None:
    items = r.items(tuple.__iter__(shadow))
    if type(shadow) is tuple:
        r.lines.append(f"{name} = ({items})")
    elif type(shadow) is torch.Size or type(shadow).__module__ == "torch.return_types":
        r.lines.append(f"{name} = {r.class_of(shadow)}(({items}))")
    elif is_struct(type(shadow)):
        raise CannotRebuild(shadow, f"a {type(shadow).__qualname__} that outlives the graph")
    else:
        r.lines.append(f"{name} = _k_tuple.__new__({r.class_of(shadow)}, ({items}))")
        add_attributes(r, shadow, name)


def build_deque(r: Rebuilder, shadow: collections.deque[Any], name: str, place: int) -> None:
    deque = r.bind(collections.deque, "deque")
    r.lines[place] = f"{name} = {deque}((), {shadow.maxlen!r})"
    r.lines.append(f"{name}.extend([{r.items(list(shadow))}])")


def build_defaultdict(r: Rebuilder, shadow: collections.defaultdict[Any, Any], name: str, place: int) -> None:
    r.lines[place] = ""
    factory = r.value(shadow.default_factory)
    r.lines.append(f"{name} = {r.bind(collections.defaultdict, 'defaultdict')}({factory})")
    items = "".join(f"{r.value(key)}: {r.value(value)}, " for key, value in shadow.items())
    r.lines.append(f"{name}.update({{{items}}})")


def build_slice(r: Rebuilder, shadow: slice, name: str, place: int) -> None:
    r.lines.append(f"{name} = _k_slice({r.items((shadow.start, shadow.stop, shadow.step))})")


def build_cell(r: Rebuilder, shadow: types.CellType, name: str, place: int) -> None:
    r.lines[place] = f"{name} = {r.bind(types.CellType, 'CellType')}()"
    try:
        contents = shadow.cell_contents
    except ValueError:
        return
    r.later.append(lambda: r.lines.append(f"{name}.cell_contents = {r.value(contents)}"))


def build_function(r: Rebuilder, shadow: types.FunctionType, name: str, place: int) -> None:
    closure = r.items(shadow.__closure__) if shadow.__closure__ else ""
    defaults = r.value(shadow.__defaults__)
    parts = [r.bind(shadow.__code__, "code"), r.bind(shadow.__globals__, "globals"), repr(shadow.__name__), defaults]
    parts.append(f"({closure})" if closure else "None")
    r.lines.append(f"{name} = {r.bind(types.FunctionType, 'FunctionType')}({', '.join(parts)})")
    annotate = getattr(shadow, "__annotate__", None)  # from 3.14 on: what makes the annotations when they are read
    if annotate is not None and shadow in EVALUATED:
        raise CannotRebuild(shadow, "a function whose annotations were read")
    if annotate is not None:
        r.lines.append(f"{name}.__annotate__ = {r.value(annotate)}")
    for attribute in ("__kwdefaults__", "__annotations__", "__dict__"):
        content = {} if attribute == "__annotations__" and annotate is not None else getattr(shadow, attribute)
        if content:
            items = "".join(f"{r.value(key)}: {r.value(value)}, " for key, value in content.items())
            r.lines.append(f"{name}.{attribute} = {{{items}}}")
    documentation = next(iter(shadow.__code__.co_consts), None)
    if shadow.__doc__ is not documentation and (shadow.__doc__ is not None or isinstance(documentation, str)):
        r.lines.append(f"{name}.__doc__ = {r.value(shadow.__doc__)}")
    if shadow.__qualname__ != shadow.__name__:
        r.lines.append(f"{name}.__qualname__ = {shadow.__qualname__!r}")
    if shadow.__module__ is not shadow.__globals__.get("__name__"):
        r.lines.append(f"{name}.__module__ = {r.value(shadow.__module__)}")


def build_method(r: Rebuilder, shadow: types.MethodType, name: str, place: int) -> None:
    if not callable(shadow.__func__):
        raise CannotRebuild(shadow, "a method that cannot be called")
    parts = r.items((shadow.__func__, shadow.__self__))
    r.lines.append(f"{name} = {r.bind(types.MethodType, 'MethodType')}({parts})")


def build_builtin(r: Rebuilder, shadow: types.BuiltinFunctionType, name: str, place: int) -> None:
    owner = getattr(shadow, "__self__", None)
    if owner is None or isinstance(owner, (types.ModuleType, type)):
        r.lines.append(f"{name} = {r.bind(shadow, shadow.__name__)}")
        return
    descriptor = native_descriptor(shadow)
    if descriptor is not None and not is_found_by_name(shadow, descriptor):  # super() has gone past an override
        bound = r.bind(descriptor, shadow.__name__)
        r.lines.append(f"{name} = {r.bind(bind_method, 'bind_method')}({bound}, {r.value(owner)})")
    else:
        r.lines.append(f"{name} = ({r.value(owner)}).{shadow.__name__}")  # a number needs the parentheses


def build_bound(r: Rebuilder, shadow: object, name: str, place: int) -> None:
    r.lines.append(f"{name} = {r.bind(shadow, getattr(shadow, '__name__', 'object'))}")


def build_partial(r: Rebuilder, shadow: functools.partial[Any], name: str, place: int) -> None:
    keywords = "".join(f"{key!r}: {r.value(value)}, " for key, value in shadow.keywords.items())
    function = r.value(shadow.func)
    r.lines.append(f"{name} = {r.class_of(shadow)}({function}, *({r.items(shadow.args)}), **{{{keywords}}})")


def build_super(r: Rebuilder, shadow: super, name: str, place: int) -> None:
    owner = object.__getattribute__(shadow, "__self__")
    cls = object.__getattribute__(shadow, "__thisclass__")
    bound = object.__getattribute__(shadow, "__self_class__") is not None
    r.lines.append(f"{name} = _k_super({r.class_expression(cls)}{f', {r.value(owner)}' if bound else ''})")


def build_wrapped_function(
    r: Rebuilder, shadow: staticmethod[..., Any] | classmethod[Any, ..., Any], name: str, place: int
) -> None:
    """A ``staticmethod`` or ``classmethod`` that was made inside, around a function that may have been, too."""
    given = vars(type(shadow)(shadow.__func__))
    if any(value is not given.get(key, NULL) for key, value in vars(shadow).items()):
        raise CannotRebuild(shadow, f"a {type(shadow).__name__} object with attributes of its own")
    r.lines.append(f"{name} = {r.class_of(shadow)}({r.value(shadow.__func__)})")


def build_property(r: Rebuilder, shadow: property, name: str, place: int) -> None:
    functions = [r.value(part) for part in (shadow.fget, shadow.fset, shadow.fdel)]
    own = shadow.__doc__ is not getattr(shadow.fget, "__doc__", None)
    doc = f", {r.value(shadow.__doc__)}" if own else ""
    r.lines.append(f"{name} = {r.class_of(shadow)}({', '.join(functions)}{doc})")


_REVERSIBLE: list[Any] = [collections.OrderedDict(), {}, {}.values(), {}.items()]
LISTED_ITERATORS = frozenset(type(reversed(view)) for view in _REVERSIBLE)
"""Iterators that give themselves out as those of a list, which would not notice a change of their dictionary."""


def build_reduced(r: Rebuilder, shadow: object, name: str, place: int) -> None:
    """Builtin iterators and the like know how to be made again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            reduced = shadow.__reduce__()
        except TypeError:  # itertools.pairwise
            raise CannotRebuild(shadow, f"a {type(shadow).__name__} that outlives the graph") from None
    function: Any = reduced[0]
    args: Any = reduced[1]
    if function is iter and type(shadow) in LISTED_ITERATORS:
        raise CannotRebuild(shadow, f"a {type(shadow).__name__} that outlives the graph")
    keywords = ""
    if isinstance(function, functools.partial):  # operator.methodcaller with keywords
        args, keywords = (*function.args, *args), f"**{r.value(dict(function.keywords))}"
        function = function.func
    r.lines.append(f"{name} = {r.bind(function, function.__name__)}({r.items(args)}{keywords})")
    if len(reduced) > 2 and reduced[2] is not None:
        r.lines.append(f"{r.bind(set_state, 'set_state')}({name}, {r.value(reduced[2])})")


def set_state(iterator: Any, state: Any) -> None:
    """Move an iterator to where it was. (From 3.12 on, itertools warns that it will not be able to.)"""
    if type(iterator).__module__ != "itertools":
        iterator.__setstate__(state)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        iterator.__setstate__(state)


def build_dict_iterator(r: Rebuilder, shadow: object, name: str, place: int) -> None:
    """A new iterator over the same dictionary, moved on as far: it must notice changes of the dictionary's size."""
    owner = next((value for value in gc.get_referents(shadow) if isinstance(value, dict)), None)
    if owner is None:  # exhausted
        r.lines.append(f"{name} = _k_iter(())")
        return
    method = next(word for word in ("keys", "values", "items") if word[:-1] in type(shadow).__name__)
    try:
        left = list(shadow.__reduce__()[1][0])
    except RuntimeError:
        raise CannotRebuild(shadow, "an iterator, over a dictionary that changed, that outlives the graph") from None
    everything = list(getattr(dict, method)(owner))
    done = len(everything) - len(left)
    if done < 0 or not all(map(same_entry, everything[done:], left)):
        raise CannotRebuild(shadow, "an iterator, over a dictionary that changed, that outlives the graph")
    r.lines.append(f"{name} = {r.bind(getattr(dict, method), method)}({r.value(owner)}).__iter__()")
    if done:
        r.lines.append(f"{r.bind(advance, 'advance')}({name}, {done})")


def build_set_iterator(r: Rebuilder, shadow: object, name: str, place: int) -> None:
    """A new iterator over the same set, moved on as far: it must notice changes of the set's size."""
    owner = next((value for value in gc.get_referents(shadow) if isinstance(value, (set, frozenset))), None)
    if owner is None:  # exhausted
        r.lines.append(f"{name} = _k_iter(())")
        return
    try:
        left = len(shadow.__reduce__()[1][0])
    except RuntimeError:
        raise CannotRebuild(shadow, "an iterator, over a set that changed, that outlives the graph") from None
    add_set_iterator(r, name, owner, len(frozenset(owner)) - left)


def add_set_iterator(r: Rebuilder, name: str, owner: object, done: int) -> None:
    base = "_k_set" if isinstance(owner, set) else "_k_frozenset"
    r.lines.append(f"{name} = {base}.__iter__({r.value(owner)})")
    if done:
        r.lines.append(f"{r.bind(advance, 'advance')}({name}, {done})")


def build_tuple_iterator(r: Rebuilder, shadow: Any, name: str, place: int) -> None:
    made = r.trace.outside.set_iterators.get(id(shadow))
    if made is None:
        build_reduced(r, shadow, name, place)
        return
    left, record = shadow.__length_hint__(), r.trace.outside.record_of(made[1])
    assert record is not None
    add_set_iterator(r, name, made[1], len(record.order) - left)


def same_entry(one: Any, other: Any) -> bool:
    return one is other or (type(one) is tuple and all(map(operator.is_, one, other)))


def advance(iterator: Any, count: int) -> None:
    """Skip elements."""
    for _ in range(count):
        next(iterator)


def build_view(r: Rebuilder, shadow: object, name: str, place: int) -> None:
    method = type(shadow).__name__.rsplit("_", 1)[-1]
    owner = mapping_of(shadow)
    base = collections.OrderedDict if type(shadow).__name__.startswith("odict") else dict
    r.lines.append(f"{name} = {r.bind(getattr(base, method), method)}({r.value(owner)})")


def build_exception(r: Rebuilder, shadow: BaseException, name: str, place: int) -> None:
    if id(shadow) in r.trace.unbuildable.made:
        raise CannotRebuild(shadow, f"a {type(shadow).__qualname__} that was raised and outlives the graph")
    cls = r.class_of(shadow)
    args = r.items(shadow.args)
    if type(shadow).__flags__ & HEAP_TYPE:
        r.lines.append(f"{name} = {cls}.__new__({cls}, {args})")
        r.lines.append(f"{name}.args = ({args})")
    else:
        r.lines.append(f"{name} = {cls}({args})")
    add_attributes(r, shadow, name)
    for attribute in native_members(type(shadow)):
        value = getattr(shadow, attribute)
        if value is not None:
            r.lines.append(f"{name}.{attribute} = {r.value(value)}")
    for attribute in ("__cause__", "__context__"):
        linked = getattr(shadow, attribute)
        if linked is not None:
            r.lines.append(f"{name}.{attribute} = {r.value(linked)}")
    if shadow.__suppress_context__:
        r.lines.append(f"{name}.__suppress_context__ = True")


def native_members(cls: type) -> tuple[str, ...]:
    """What instances of a builtin exception have besides their arguments (``OSError.filename``)."""
    if issubclass(cls, BaseExceptionGroup):
        return ()  # all in the arguments
    native = [base for base in cls.__mro__ if issubclass(base, BaseException) and not base.__flags__ & HEAP_TYPE]
    members = (types.MemberDescriptorType,)
    return tuple([key for base in native[:-1] for key, raw in base.__dict__.items() if isinstance(raw, members)])


def build_instance(r: Rebuilder, shadow: object, name: str, place: int) -> None:
    """An instance of a Python class: bare, then its attributes."""
    layout = layout_of(type(shadow))
    r.lines[place] = f"{name} = {r.bind(layout, layout.__name__)}.__new__({r.class_of(shadow)})"
    add_attributes(r, shadow, name)


def build_container_instance(base: Any, fill: str) -> Callable[..., Any]:
    def build(r: Rebuilder, shadow: Any, name: str, place: int) -> None:
        bound = r.bind(base, base.__name__)
        r.lines[place] = f"{name} = {bound}.__new__({r.class_of(shadow)})"
        if isinstance(shadow, dict):
            for key, value in mapping_items(shadow):
                r.lines.append(f"{bound}.__setitem__({name}, {r.value(key)}, {r.value(value)})")
            if isinstance(shadow, collections.defaultdict):
                r.lines.append(f"{name}.default_factory = {r.value(shadow.default_factory)}")
        else:
            if isinstance(shadow, collections.deque):
                r.lines.append(f"{bound}.__init__({name}, (), {shadow.maxlen!r})")
            items = elements_in_order(shadow)[0] if base is set else list(base.__iter__(shadow))
            r.lines.append(f"{bound}.{fill}({name}, [{r.items(items)}])")
        add_attributes(r, shadow, name)

    return build


def build_value_subclass(r: Rebuilder, shadow: object, name: str, place: int) -> None:
    plain = plain_value(shadow)
    base = r.bind(type(plain), type(plain).__name__)
    r.lines.append(f"{name} = {base}.__new__({r.class_of(shadow)}, {r.constant(plain)})")
    add_attributes(r, shadow, name)


def add_attributes(r: Rebuilder, shadow: object, name: str) -> None:
    namespace = getattr_static_dict(shadow)
    direct = is_direct(type(shadow))
    place = f"{name}.__dict__" if direct else f"{r.bind(namespace_of, 'namespace_of')}({name})"
    for key, value in (namespace or {}).items():
        r.lines.append(f"{place}[{key!r}] = {r.value(value)}")
    for slot in slot_descriptors(type(shadow)):
        try:
            value = slot.__get__(shadow)
        except AttributeError:
            continue
        r.lines.append(f"{r.bind(slot, 'slot')}.__set__({name}, {r.value(value)})")


def build_trampoline(r: Rebuilder, shadow: Trampoline, name: str, place: int) -> None:
    r.lines.append(f"{name} = {r.value(shadow.function)}")


def build_opaque(r: Rebuilder, shadow: Opaque, name: str, place: int) -> None:
    r.lines.append(f"{name} = {r.output(shadow.node)}")


def build_namespace(r: Rebuilder, shadow: types.SimpleNamespace, name: str, place: int) -> None:
    r.lines[place] = f"{name} = {r.bind(types.SimpleNamespace, 'SimpleNamespace')}()"
    for key, value in vars(shadow).items():
        r.lines.append(f"{name}.__dict__[{key!r}] = {r.value(value)}")


def build_list_method(r: Rebuilder, shadow: ListMethod, name: str, place: int) -> None:
    r.lines.append(f"{name} = {r.read(shadow.pending.source)}.{shadow.name}")


def build_sentinel(r: Rebuilder, shadow: object, name: str, place: int) -> None:
    r.lines.append(f"{name} = _k_object()")


def build_bytearray(r: Rebuilder, shadow: bytearray, name: str, place: int) -> None:
    r.lines.append(f"{name} = _k_bytearray({bytes(shadow)!r})")


def build_forced_iterator(r: Rebuilder, shadow: ForcedIterator, name: str, place: int) -> None:
    r.lines.append(f"{name} = {r.value(shadow.iterator)}")


def build_proxy(r: Rebuilder, shadow: Proxy, name: str, place: int) -> None:
    r.lines.append(f"{name} = {r.value(shadow.target)}")


def build_mapping_proxy(r: Rebuilder, shadow: types.MappingProxyType[Any, Any], name: str, place: int) -> None:
    r.lines.append(f"{name} = {r.bind(types.MappingProxyType, 'mappingproxy')}({r.value(mapping_of(shadow))})")


_EMPTY_VIEWS: list[Any] = [{}, {}.values(), {}.items()]
BUILDERS: dict[type, Callable[..., Any]] = {
    ListMethod: build_list_method,
    list: build_list,
    dict: build_dict,
    set: build_set,
    frozenset: build_frozenset,
    tuple: build_tuple,
    torch.Size: build_tuple,
    collections.deque: build_deque,
    collections.defaultdict: build_defaultdict,
    slice: build_slice,
    types.CellType: build_cell,
    types.FunctionType: build_function,
    types.MethodType: build_method,
    types.BuiltinFunctionType: build_builtin,
    types.MethodWrapperType: build_builtin,
    functools.partial: build_partial,
    super: build_super,
    staticmethod: build_wrapped_function,
    classmethod: build_wrapped_function,
    property: build_property,
    Trampoline: build_trampoline,
    Opaque: build_opaque,
    types.SimpleNamespace: build_namespace,
    object: build_sentinel,
    bytearray: build_bytearray,
    ForcedIterator: build_forced_iterator,
    types.MappingProxyType: build_mapping_proxy,
    **{kind: build_reduced for kind in ITERATOR_TYPES | LAZY_ITERATORS},
    **{type(iter(view)): build_dict_iterator for view in _EMPTY_VIEWS},
    type(iter(set())): build_set_iterator,
    type(iter(())): build_tuple_iterator,
    **{kind: build_view for kind in VIEW_TYPES},
    operator.itemgetter: build_reduced,
    operator.attrgetter: build_reduced,
    operator.methodcaller: build_reduced,
}

CONTAINER_BUILDERS = [
    (collections.OrderedDict, build_container_instance(collections.OrderedDict, "update")),
    (collections.defaultdict, build_container_instance(collections.defaultdict, "update")),
    (dict, build_container_instance(dict, "update")),
    (list, build_container_instance(list, "extend")),
    (set, build_container_instance(set, "update")),
    (collections.deque, build_container_instance(collections.deque, "extend")),
    (tuple, build_tuple),
    (frozenset, build_frozenset),
]

FIXED: tuple[type, ...] = (
    type,
    types.ModuleType,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
FIXED += (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
FIXED += (types.GetSetDescriptorType, types.MemberDescriptorType, types.GenericAlias, types.UnionType, types.CodeType)
FIXED += (OpOverload, OpOverloadPacket, re.Pattern, torch.finfo)


def is_member(value: enum.Enum) -> bool:
    """Whether an instance of an enumeration is one of its members, and not made inside and still to become one."""
    known = members_by_name(type(value)).values()
    if any(member is value for member in known):
        return True
    number = enum_value(value)  # combinations of flags are members without a name
    return isinstance(value, enum.Flag) and type(number) is int and members_by_value(type(value)).get(number) is value


def builder_for(shadow: object) -> Any:
    builder = BUILDERS.get(type(shadow))
    if builder is not None:
        return builder
    if isinstance(shadow, Proxy):
        return build_proxy
    if isinstance(shadow, FIXED):
        return build_bound if not isinstance(shadow, enum.Enum) or is_member(shadow) else None
    if isinstance(shadow, BaseException):
        return build_exception
    for base, container_builder in CONTAINER_BUILDERS:
        if isinstance(shadow, base):
            return container_builder
    if isinstance(shadow, (int, float, str, bytes, complex)):
        return build_value_subclass if type(shadow).__flags__ & HEAP_TYPE else build_bound  # numpy.float64
    cls = type(shadow)
    if getattr(cls, "unbuildable", False) or shadow is NULL:
        return None
    if not cls.__flags__ & HEAP_TYPE:
        return build_bound if cls.__module__ in ("typing", "functools", "_functools", "inspect") else None
    if lookup(cls, "__new__") is not None and layout_of(cls) in (object, types.SimpleNamespace):
        return build_instance if is_of_python(cls) else None
    return None


def is_of_python(cls: type) -> bool:
    """Whether a bare instance is a whole one: classes written in C keep more, and refuse to be made past their own."""
    if getattr(cls, "__abstractmethods__", None):
        return True
    try:
        layout: Any = layout_of(cls)
        layout.__new__(cls)
    except TypeError:
        return False
    return True
