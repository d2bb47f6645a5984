"""What a program can reach: a walk from a function and its arguments to everything that can be changed.

The walk follows arguments, closures, defaults, the globals that code names, attributes, items and classes, through the
functions that the program could call. Each place that it finds holds a value, and other values can be put there. Two
worlds of one program are walked alike, so a site is known by its label in both.
"""

from __future__ import annotations

import builtins
import collections
import copy
import enum
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kiln.testing.program_copies import ProgramCopy

from .changes import (
    HEAP_TYPE,
    LIBRARIES,
    MISSING,
    Place,
    Undo,
    added,
    as_attribute,
    as_buffer,
    attribute_place,
    class_changed,
    class_place,
    frozen,
    item_place,
    moved,
    of_library,
    other_bases,
    other_classes,
    other_raw,
    popped,
    raw_attribute,
    registered,
    requires_flipped,
    slot_names,
    training_flipped,
    tuple_like,
    tuple_place,
    view_of,
)
from .specials import SPECIAL
from .switches import SWITCHES, gradient_hook, input_hook, output_hook, throw
from .variants import bump, bumped, other_code, variants

_DEEPEST = 6


@dataclass
class Site:
    """One change: `apply` makes it and gives what takes it back."""

    label: str
    kind: str
    apply: Callable[[], Undo]


def sites_of(world: ProgramCopy) -> list[Site]:
    """All changes for a world, in an order that depends on nothing but the program."""
    walk = _Walk(world)
    walk.start()
    numbered: dict[str, int] = collections.defaultdict(int)
    for site in walk.sites:  # labels are to be unique
        numbered[site.label] += 1
        if numbered[site.label] > 1:
            site.label += f" ({numbered[site.label]})"
    return walk.sites


class _Walk:
    def __init__(self, world: ProgramCopy) -> None:
        self.call = world.calls[0]
        self.program = world.program
        self.sites: list[Site] = []
        self.seen: dict[int, Any] = {}
        layers = [each for each in networks_in(world) if isinstance(each, torch.nn.RNNBase)]
        self.recurrent = {id(weight) for layer in layers for weight in layer.parameters()}
        self.names = names_in(world)
        self.pending: collections.deque[tuple[Callable[..., None], tuple]] = collections.deque()

    def add(self, path: str, kind: str, apply: Callable[[], Undo]) -> None:
        self.sites.append(Site(f"{path}: {kind}", kind, apply))

    def start(self) -> None:
        for name in SWITCHES:
            self.add("torch", f"switch {name}", functools.partial(throw, name))
        for index in range(len(self.call.args)):
            self.place(f"args[{index}]", self.argument(index), 0)
        for name in self.call.kwargs:
            self.place(f"kwargs[{name!r}]", item_place(self.call.kwargs, name), 0)
        self.aliases()
        self.value("program", self.program, 0)
        while self.pending:  # breadth first: what is near matters more
            function, args = self.pending.popleft()
            function(*args)

    def argument(self, index: int) -> Place:
        call = self.call

        def write(value: Any) -> None:
            call.args = (*call.args[:index], value, *call.args[index + 1 :])

        return Place(lambda: call.args[index], write)

    def aliases(self) -> None:
        """Arguments that are the same object, or share memory, or no longer do."""
        args = self.call.args
        for second in range(len(args)):
            for first in range(second):
                a, b = args[first], args[second]
                place = self.argument(second)
                path = f"args[{second}]"
                if a is b and not isinstance(a, (int, float, str, type(None))):
                    self.add(path, "alias gone", lambda place=place, a=a: place.put(lambda: copy.deepcopy(a)))
                elif type(a) is type(b) and not isinstance(a, (int, float, str, type(None))):
                    self.add(path, f"alias of args[{first}]", lambda place=place, a=a: place.put(lambda: a))
                if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                    self.add(path, f"view of args[{first}]", lambda place=place, a=a: place.put(lambda: view_of(a)))
        if len(args) > 1:
            self.add("args", "last argument missing", lambda: self.shorten())

    def shorten(self) -> Undo:
        before = self.call.args
        self.call.args = before[:-1]

        def undo() -> None:
            self.call.args = before

        return undo

    # -- places -------------------------------------------------------------------------------------------------------

    def place(self, path: str, place: Place, depth: int) -> None:
        try:
            value = place.read()
        except Exception:
            return
        for kind, make in variants(value):
            if kind.startswith("tensor size") and id(value) in self.recurrent:
                continue  # torch reads as many numbers as the layer says, and crashes in eager where there are fewer
            self.add(path, kind, lambda make=make: place.put(make))
        if place.delete is not None:
            self.add(path, "removed", place.remove)
        if isinstance(value, (tuple, functools.partial)):
            self.pending.append((self.immutable, (path, value, place, depth)))
        self.value(path, value, depth)

    def value(self, path: str, value: Any, depth: int) -> None:
        """Have what is inside a value walked later; each object once."""
        if id(value) in self.seen or depth > _DEEPEST or value is None:
            return
        for kind, walk in _WALKS:
            if isinstance(value, kind):
                self.seen[id(value)] = value
                self.pending.append((walk, (self, path, value, depth + 1)))
                return

    def immutable(self, path: str, value: Any, place: Place, depth: int) -> None:
        """Items of tuples and of partial objects: a new one is put in its place."""
        if isinstance(value, functools.partial):

            def make(args: tuple, keywords: dict) -> Any:
                return functools.partial(value.func, *args, **keywords)

            for index in range(len(value.args)):
                self.place(
                    f"{path}.args[{index}]",
                    tuple_place(place, lambda: place.read().args, index, lambda args: make(args, value.keywords)),
                    depth + 1,
                )
            self.value(f"{path}.func", value.func, depth)
            self.value(f"{path}.keywords", value.keywords, depth)
            return
        for index in range(len(value)):
            self.place(
                f"{path}[{index}]",
                tuple_place(place, place.read, index, functools.partial(tuple_like, value)),
                depth + 1,
            )

    # -- what values are made of --------------------------------------------------------------------------------------

    def sequence(self, path: str, value: Any, depth: int) -> None:
        for index in range(min(len(value), 4)):
            self.place(f"{path}[{index}]", item_place(value, index), depth)
        self.inside(path, value, "append", lambda: value.append(1), lambda: value.pop())
        self.inside(path, value, "reverse", value.reverse, value.reverse)
        self.attributes(path, value, depth)

    def mapping(self, path: str, value: dict, depth: int) -> None:
        for key in list(value)[:6]:
            if isinstance(key, (str, int)):
                self.place(f"{path}[{key!r}]", item_place(value, key), depth)
                self.add(f"{path}[{key!r}]", "removed", lambda key=key: popped(value, key))
                self.add(f"{path}[{key!r}]", "dict key moved to the end", lambda key=key: moved(value, key))
        self.add(path, "dict key added", lambda: added(value, "a new key"))
        if isinstance(value, collections.defaultdict):
            self.place(f"{path}.default_factory", attribute_place(value, "default_factory"), depth)
        self.attributes(path, value, depth)

    def collection(self, path: str, value: set, depth: int) -> None:
        self.inside(path, value, "add", lambda: value.add(101), lambda: value.discard(101))
        for item in sorted(value, key=repr)[:1]:
            self.inside(path, value, "discard", lambda: value.discard(item), lambda: value.add(item))

    def inside(self, path: str, value: Any, kind: str, do: Callable[[], Any], undo: Undo) -> None:
        def apply() -> Undo:
            do()
            return undo

        self.add(path, f"{type(value).__name__} {kind}", apply)

    def cell(self, path: str, value: types.CellType, depth: int) -> None:
        def write(content: Any) -> None:
            value.cell_contents = content

        def delete() -> None:
            del value.cell_contents

        self.place(path, Place(lambda: value.cell_contents, write, delete), depth)

    def function(self, path: str, value: types.FunctionType, depth: int) -> None:
        if of_library(value):
            return
        code = value.__code__
        changed = other_code(code)
        if changed is not None:
            self.add(path, "__code__", lambda: attribute_place(value, "__code__").put(lambda: changed))
        if value.__defaults__:
            self.place(f"{path}.__defaults__", attribute_place(value, "__defaults__"), depth)
        if value.__kwdefaults__:
            self.add(
                f"{path}.__kwdefaults__", "to None", lambda: attribute_place(value, "__kwdefaults__").put(lambda: None)
            )
            self.value(f"{path}.__kwdefaults__", value.__kwdefaults__, depth)
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            self.value(f"{path}<{name}>", cell, depth)
        for name in code_names(code):
            self.name(f"{path}:{name}", value.__globals__, name, depth)
        for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
            self.place(f"{path}.{name}", attribute_place(value, name), depth)
        self.add(path, "function attribute added", lambda: added(value.__dict__, "added_attribute", 1))
        if value.__dict__:
            for name in [name for name in value.__dict__ if not name.startswith("__kiln_")]:
                self.place(f"{path}.{name}", item_place(value.__dict__, name), depth)

    def name(self, path: str, namespace: dict, name: str, depth: int) -> None:
        """A name that code reads: a global, a builtin that a global could shadow, or an attribute of something."""
        if name in namespace:
            if (id(namespace), name) in self.seen:
                return
            self.seen[id(namespace), name] = namespace  # type: ignore[index]
            self.place(path, item_place(namespace, name, delete=True), depth)
        elif hasattr(builtins, name):
            found = getattr(builtins, name)
            if isinstance(found, type) and issubclass(found, BaseException):
                self.add(
                    path, "builtin shadowed by a global", lambda: added(namespace, name, type(name, (Exception,), {}))
                )
            elif callable(found):
                self.add(path, "builtin shadowed by a global", lambda: added(namespace, name, bumped(found)))

    def module(self, path: str, value: types.ModuleType, depth: int) -> None:
        """Attributes of a Python module that code names: `math.pi`, `torch.relu`, another file's globals."""
        for name in self.names:
            found = value.__dict__.get(name, MISSING)
            if found is MISSING:
                continue
            if value is builtins or found is torch.Tensor:  # Kiln, torch and the tests run on them
                continue
            if value.__name__.split(".")[0] in LIBRARIES and isinstance(found, types.ModuleType):
                if depth < 3:
                    self.value(f"{path}.{name}", found, depth)
                continue
            self.place(f"{path}.{name}", attribute_place(value, name, delete=False), depth)

    def method(self, path: str, value: types.MethodType, depth: int) -> None:
        self.value(f"{path}.__func__", value.__func__, depth)
        self.value(f"{path}.__self__", value.__self__, depth)

    def wrapped(self, path: str, value: Any, depth: int) -> None:
        self.value(f"{path}.__func__", value.__func__, depth)

    def prop(self, path: str, value: property, depth: int) -> None:
        self.value(f"{path}.fget", value.fget, depth)

    # -- objects and classes ------------------------------------------------------------------------------------------

    def attributes(self, path: str, value: Any, depth: int) -> None:
        """What an instance of a Python class has, and what its class says."""
        cls = type(value)
        if not cls.__flags__ & HEAP_TYPE:
            return
        namespace = getattr(value, "__dict__", None)
        if isinstance(namespace, dict):
            for name in list(namespace)[:24]:
                if isinstance(value, torch.nn.RNNBase) and name in _RNN_FLAGS:
                    continue  # torch reads as many weights as they say, and aborts in eager where there are fewer
                self.place(f"{path}.{name}", item_place(namespace, name, delete=True), depth)
            for name in self.names:
                if name not in namespace and isinstance(raw_attribute(cls, name), types.FunctionType):
                    self.add(
                        f"{path}.{name}",
                        "method shadowed on the instance",
                        lambda name=name: added(namespace, name, bumped(getattr(value, name))),
                    )
            self.add(path, "__dict__ replaced", lambda: attribute_place(value, "__dict__").put(namespace.copy))
            self.add(path, "attribute added", lambda: added(namespace, "added_attribute", 1))
        for name in slot_names(cls):
            self.place(f"{path}.{name}", attribute_place(value, name), depth)
        if not isinstance(value, (type, types.ModuleType)):
            for kind, make in other_classes(cls, self.names):
                self.add(path, kind, lambda make=make: attribute_place(value, "__class__").put(make))
        self.value(f"type({path})", cls, depth)

    def instance(self, path: str, value: Any, depth: int) -> None:
        self.attributes(path, value, depth)
        if isinstance(value, torch.nn.Module):
            self.torch_module(path, value, depth)

    def torch_module(self, path: str, value: torch.nn.Module, depth: int) -> None:
        def handle(register: str, hook: Any, **options: Any) -> Callable[[], Undo]:
            return lambda: getattr(value, register)(hook, **options).remove

        self.add(path, "forward hook", handle("register_forward_hook", output_hook))
        self.add(
            path,
            "forward hook with kwargs",
            handle("register_forward_hook", lambda m, a, k, o: bump(o), with_kwargs=True),
        )
        self.add(path, "forward hook always called", handle("register_forward_hook", output_hook, always_call=True))
        self.add(path, "forward pre hook", handle("register_forward_pre_hook", input_hook))
        self.add(path, "backward hook", handle("register_full_backward_hook", gradient_hook))
        self.add(
            path,
            "backward pre hook",
            handle("register_full_backward_pre_hook", lambda m, g: tuple(x * 2 if x is not None else x for x in g)),
        )
        self.add(path, "train or eval", lambda: training_flipped(value))
        self.add(path, "requires_grad of all parameters", lambda: frozen(value))
        for name, parameter in value._parameters.items():
            if parameter is not None:
                self.add(f"{path}.{name}", "parameter becomes a buffer", lambda name=name: as_buffer(value, name))
                self.add(
                    f"{path}.{name}", "parameter becomes an attribute", lambda name=name: as_attribute(value, name)
                )
        for name, child in value._modules.items():
            if child is not None:
                self.add(
                    f"{path}.{name}",
                    "submodule replaced",
                    lambda name=name: item_place(value._modules, name).put(torch.nn.Identity),
                )
                self.add(
                    f"{path}.{name}",
                    "submodule a copy",
                    lambda name=name, child=child: item_place(value._modules, name).put(lambda: copy.deepcopy(child)),
                )
        children = [(name, child) for name, child in value._modules.items() if child is not None]
        for (_, a), (name, b) in zip(children, children[1:], strict=False):
            if type(a) is type(b):
                self.add(
                    f"{path}.{name}",
                    "submodule shared",
                    lambda name=name, a=a: item_place(value._modules, name).put(lambda: a),
                )

    def cls(self, path: str, value: type, depth: int) -> None:
        """Attributes of a class and of its bases; special methods it could have; its bases; its metaclass."""
        if not value.__flags__ & HEAP_TYPE:
            return
        library = of_library(value)
        for name, raw in list(vars(value).items()):
            if name in _NO_SITES or (library and name not in self.names):
                continue
            if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                if not library:
                    self.add(
                        f"{path}.{name}",
                        "slot becomes a class attribute",
                        lambda name=name, raw=raw: class_changed(
                            value, name, property(lambda self, raw=raw: bump(raw.__get__(self)))
                        ),
                    )
                continue
            place = class_place(value, name)
            self.class_attribute(f"{path}.{name}", raw, place, depth, library)
        if library:
            return
        for name in self.names:
            raw = raw_attribute(value, name)
            if name not in vars(value) and isinstance(raw, (types.FunctionType, int, str, float, property)):
                self.add(
                    f"{path}.{name}",
                    "inherited attribute overridden",
                    lambda name=name, raw=raw: class_changed(value, name, other_raw(raw)),
                )
        for name, method in SPECIAL.items():
            if name == "__hash__" and isinstance(value, enum.EnumMeta):
                continue  # results with members as keys cannot be compared any more once the change is undone
            if name not in vars(value):
                self.add(
                    f"{path}.{name}",
                    "special method added to a class",
                    lambda name=name, method=method: class_changed(value, name, method),
                )
        for name in ("__name__", "__qualname__"):
            self.add(
                f"{path}.{name}", f"class {name}", lambda name=name: attribute_place(value, name).put(lambda: "Renamed")
            )
        bases = [base for base in value.__bases__ if base.__flags__ & HEAP_TYPE]
        if bases and not of_library(bases[0]):
            self.add(path, "bases", lambda: other_bases(value, self.names))
        for base in value.__mro__[1:]:
            self.value(f"{path}<{base.__name__}>", base, depth)
        if type(value) is not type and not of_library(type(value)):
            self.value(f"type({path})", type(value), depth)
        if hasattr(type(value), "register"):
            self.add(path, "int registered as a subclass", lambda: registered(value))

    def class_attribute(self, path: str, raw: Any, place: Place, depth: int, library: bool) -> None:
        if isinstance(raw, (types.FunctionType, property, staticmethod, classmethod)):
            self.add(path, "method or descriptor replaced", lambda: place.put(lambda: other_raw(raw)))
            if isinstance(raw, types.FunctionType) and not library:
                self.add(path, "method becomes a staticmethod", lambda: place.put(lambda: staticmethod(raw)))
            if isinstance(raw, property):
                self.add(path, "property becomes a value", lambda: place.put(lambda: 3))
            if not library:  # Kiln, torch and the tests run on those
                self.add(path, "class attribute removed", place.remove)
            self.value(path, raw, depth)
        else:
            self.place(path, place, depth)

    def tensor(self, path: str, value: torch.Tensor, depth: int) -> None:
        """Changes of a tensor in place."""
        if value.is_leaf and value.is_floating_point() and not value.is_inference():
            self.add(path, "requires_grad in place", lambda: requires_flipped(value))
            self.add(path, "grad set", lambda: attribute_place(value, "grad").put(lambda: torch.ones_like(value)))
        if value.requires_grad:
            self.add(path, "tensor hook", lambda: value.register_hook(lambda g: g * 2).remove)
            if value.is_leaf:
                self.add(
                    path,
                    "post accumulate hook",
                    lambda: value.register_post_accumulate_grad_hook(lambda t: t.grad.mul_(2)).remove,
                )
        if value.layout is torch.strided and value.is_leaf and value.is_floating_point() and not value.is_inference():
            for kind, make in (
                ("data of another dtype", lambda t: t.double()),
                ("data of another size", lambda t: torch.cat([t, t[:1]]) if t.dim() else t.expand(2).clone()),
                ("data of other strides", lambda t: torch.stack([t, t], -1)[..., 0]),
            ):
                self.add(path, kind, lambda make=make: attribute_place(value, "data").put(lambda: make(value.data)))
        self.add(path, "tensor attribute", lambda: added(value.__dict__, "mark", 1))
        for name in list(getattr(value, "__dict__", {})):
            self.place(f"{path}.{name}", item_place(value.__dict__, name, delete=True), depth)
        if type(value) is not torch.Tensor:
            self.value(f"type({path})", type(value), depth)
        names = [*_TENSOR_OPERATORS, *(name for name in self.names if name in _TENSOR_METHODS)]
        if id(torch.Tensor) not in self.seen:
            self.seen[id(torch.Tensor)] = torch.Tensor
            for name in names:
                raw = raw_attribute(torch.Tensor, name)
                if callable(raw):
                    self.add(
                        f"torch.Tensor.{name}",
                        "method of tensors replaced",
                        lambda name=name, raw=raw: class_changed(torch.Tensor, name, bumped(raw)),
                    )

    def getter(self, path: str, value: Any, depth: int) -> None:
        self.value(f"{path}.mapping", value.mapping, depth)


_WALKS: list[tuple[Any, Callable[..., None]]] = [
    (torch.Tensor, _Walk.tensor),
    (types.ModuleType, _Walk.module),
    (types.FunctionType, _Walk.function),
    (types.MethodType, _Walk.method),
    ((staticmethod, classmethod), _Walk.wrapped),
    (property, _Walk.prop),
    (types.CellType, _Walk.cell),
    (type, _Walk.cls),
    ((list, collections.deque), _Walk.sequence),
    (dict, _Walk.mapping),
    (set, _Walk.collection),
    ((type({}.keys()), type({}.values()), type({}.items())), _Walk.getter),
    (
        (int, float, complex, str, bytes, types.BuiltinFunctionType, types.CodeType, functools.partial),
        lambda *args: None,
    ),
    (object, _Walk.instance),
]

_RNN_FLAGS = ("bias", "bidirectional", "num_layers", "proj_size", "mode")
# Methods of tensors that a program may replace: those that compute, where it names them, and operators. The tests and
# torch itself call the others (and `+`, which tells a replaced method's results from the ones before).
_TENSOR_OPERATORS = "__abs__ __neg__ __mul__ __rsub__ __truediv__ __getitem__ __len__ __iter__".split()
_TENSOR_METHODS = frozenset(
    "abs add cos exp log matmul mean mul neg norm pow relu round sigmoid sin softmax split sqrt sub sum tanh".split()
)
# Of a class: the descriptors that Python makes for every class; and `__new__`, which object does not take back in full
# (a class that had one in Python keeps a slot that refuses arguments).
_NO_SITES = frozenset("__dict__ __weakref__ __new__".split())


def networks_in(world: ProgramCopy) -> list[torch.nn.Module]:
    """The modules among the arguments, and the program, with all that is inside them."""
    roots = [value for value in (world.program, *world.calls[0].args) if isinstance(value, torch.nn.Module)]
    return [module for root in roots for module in root.modules()]


def names_in(world: ProgramCopy) -> list[str]:
    """All names in the code of a program and of the functions that it can reach, sorted."""
    from kiln.testing.program_copies import reachable

    functions, _ = reachable([world.program, [(call.args, call.kwargs) for call in world.calls]])
    found: set[str] = set()
    for function in functions:
        found.update(code_names(function.__code__))
    return sorted(found)


def code_names(code: types.CodeType) -> list[str]:
    """The names in a code object and in the code nested in it."""
    names = dict.fromkeys(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names.update(dict.fromkeys(code_names(const)))
    return list(names)
