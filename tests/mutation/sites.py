"""What a program can reach: a walk from a function and its arguments to everything that can be changed.

The walk follows arguments, closures, defaults, the globals that code names, attributes, items and classes, through the
functions that the program could call. Each place that it finds holds a value, and other values can be put there. Two
worlds of one program are walked alike, so a site is known by its label in both.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kiln.testing.worlds import World

from .switches import SWITCHES, throw
from .variants import bump, bumped, other_code, variants

Undo = Callable[[], Any]
_MISSING = object()
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "kiln", "transformers", "pytest", "mutation", "_pytest"}
_HEAP_TYPE = 1 << 9
_DEEPEST = 6


@dataclass
class Site:
    """One change: `apply` makes it and gives what takes it back."""

    label: str
    kind: str
    apply: Callable[[], Undo]


@dataclass
class Place:
    """Something that holds a value and can be given another one."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    delete: Callable[[], Any] | None = None

    def put(self, make: Callable[[], Any]) -> Undo:
        before = self.read()
        self.write(make())
        return lambda: self.write(before)

    def remove(self) -> Undo:
        before = self.read()
        self.delete()  # type: ignore[misc]
        return lambda: self.write(before)


def sites_of(world: World) -> list[Site]:
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
    def __init__(self, world: World) -> None:
        self.call = world.calls[0]
        self.program = world.program
        self.sites: list[Site] = []
        self.seen: dict[int, Any] = {}
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
            self.place(f"kwargs[{name!r}]", _item(self.call.kwargs, name), 0)
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
                    self.add(path, f"view of args[{first}]", lambda place=place, a=a: place.put(lambda: _view(a)))
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
                    _in_tuple(place, lambda: place.read().args, index, lambda args: make(args, value.keywords)),
                    depth + 1,
                )
            self.value(f"{path}.func", value.func, depth)
            return
        for index in range(len(value)):
            self.place(
                f"{path}[{index}]",
                _in_tuple(place, place.read, index, functools.partial(_tuple_like, value)),
                depth + 1,
            )

    # -- what values are made of --------------------------------------------------------------------------------------

    def sequence(self, path: str, value: Any, depth: int) -> None:
        for index in range(min(len(value), 4)):
            self.place(f"{path}[{index}]", _item(value, index), depth)
        self.inside(path, value, "append", lambda: value.append(1), lambda: value.pop())
        self.inside(path, value, "reverse", value.reverse, value.reverse)
        self.attributes(path, value, depth)

    def mapping(self, path: str, value: dict, depth: int) -> None:
        for key in list(value)[:6]:
            if isinstance(key, (str, int)):
                self.place(f"{path}[{key!r}]", _item(value, key), depth)
                self.add(f"{path}[{key!r}]", "removed", lambda key=key: _pop(value, key))
                self.add(f"{path}[{key!r}]", "dict key moved to the end", lambda key=key: _moved(value, key))
        self.add(path, "dict key added", lambda: _added(value, "a new key"))
        if isinstance(value, collections.defaultdict):
            self.place(f"{path}.default_factory", _attribute(value, "default_factory"), depth)
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
        if _of_library(value):
            return
        code = value.__code__
        changed = other_code(code)
        if changed is not None:
            self.add(path, "__code__", lambda: _attribute(value, "__code__").put(lambda: changed))
        if value.__defaults__:
            self.place(f"{path}.__defaults__", _attribute(value, "__defaults__"), depth)
        if value.__kwdefaults__:
            self.add(f"{path}.__kwdefaults__", "to None", lambda: _attribute(value, "__kwdefaults__").put(lambda: None))
            self.value(f"{path}.__kwdefaults__", value.__kwdefaults__, depth)
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            self.value(f"{path}<{name}>", cell, depth)
        for name in code_names(code):
            self.name(f"{path}:{name}", value.__globals__, name, depth)
        if value.__dict__:
            for name in [name for name in value.__dict__ if not name.startswith("__kiln_")]:
                self.place(f"{path}.{name}", _item(value.__dict__, name), depth)

    def name(self, path: str, namespace: dict, name: str, depth: int) -> None:
        """A name that code reads: a global, a builtin that a global could shadow, or an attribute of something."""
        if name in namespace:
            if (id(namespace), name) in self.seen:
                return
            self.seen[id(namespace), name] = namespace  # type: ignore[index]
            if not name.startswith("__"):  # what a module is called is not the program's to change
                self.place(path, _item(namespace, name, delete=True), depth)
        elif hasattr(builtins, name) and name not in ("__build_class__", "super", "locals", "globals"):
            found = getattr(builtins, name)
            if isinstance(found, type) and issubclass(found, BaseException):
                self.add(
                    path, "builtin shadowed by a global", lambda: _added(namespace, name, type(name, (Exception,), {}))
                )
            elif callable(found):
                self.add(path, "builtin shadowed by a global", lambda: _added(namespace, name, bumped(found)))

    def module(self, path: str, value: types.ModuleType, depth: int) -> None:
        """Attributes of a Python module that code names: `math.pi`, `torch.relu`, another file's globals."""
        for name in self.names:
            found = value.__dict__.get(name, _MISSING)
            if found is _MISSING or name.startswith("__"):
                continue
            if isinstance(found, type) or value.__name__.startswith(("torch._C", "builtins")):
                continue
            if value.__name__.split(".")[0] in _LIBRARIES and not callable(found):
                if isinstance(found, types.ModuleType) and depth < 3:
                    self.value(f"{path}.{name}", found, depth)
                continue
            self.place(f"{path}.{name}", _attribute(value, name, delete=False), depth)

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
        if not cls.__flags__ & _HEAP_TYPE:
            return
        namespace = getattr(value, "__dict__", None)
        if isinstance(namespace, dict):
            for name in list(namespace)[:24]:
                if isinstance(value, torch.nn.Module) and name.endswith("hooks") and not namespace[name]:
                    continue
                self.place(f"{path}.{name}", _item(namespace, name, delete=True), depth)
            for name in self.names:
                if name not in namespace and isinstance(_raw(cls, name), types.FunctionType):
                    self.add(
                        f"{path}.{name}",
                        "method shadowed on the instance",
                        lambda name=name: _added(namespace, name, bumped(getattr(value, name))),
                    )
            self.add(path, "attribute added", lambda: _added(namespace, "added_attribute", 1))
        for name in _slots(cls):
            self.place(f"{path}.{name}", _attribute(value, name), depth)
        if not isinstance(value, (type, types.ModuleType)):
            for kind, make in other_classes(cls, self.names):
                self.add(path, kind, lambda make=make: _attribute(value, "__class__").put(make))
        self.value(f"type({path})", cls, depth)

    def instance(self, path: str, value: Any, depth: int) -> None:
        self.attributes(path, value, depth)
        if isinstance(value, torch.nn.Module):
            self.torch_module(path, value, depth)

    def torch_module(self, path: str, value: torch.nn.Module, depth: int) -> None:
        from .switches import _gradient_hook, _input_hook, _output_hook

        def handle(register: str, hook: Any, **options: Any) -> Callable[[], Undo]:
            return lambda: getattr(value, register)(hook, **options).remove

        self.add(path, "forward hook", handle("register_forward_hook", _output_hook))
        self.add(
            path,
            "forward hook with kwargs",
            handle("register_forward_hook", lambda m, a, k, o: bump(o), with_kwargs=True),
        )
        self.add(path, "forward hook always called", handle("register_forward_hook", _output_hook, always_call=True))
        self.add(path, "forward pre hook", handle("register_forward_pre_hook", _input_hook))
        self.add(path, "backward hook", handle("register_full_backward_hook", _gradient_hook))
        self.add(
            path,
            "backward pre hook",
            handle("register_full_backward_pre_hook", lambda m, g: tuple(x * 2 if x is not None else x for x in g)),
        )
        self.add(path, "train or eval", lambda: _trained(value))
        self.add(path, "requires_grad of all parameters", lambda: _frozen(value))
        for name, parameter in value._parameters.items():
            if parameter is not None:
                self.add(f"{path}.{name}", "parameter becomes a buffer", lambda name=name: _as_buffer(value, name))
                self.add(
                    f"{path}.{name}", "parameter becomes an attribute", lambda name=name: _as_attribute(value, name)
                )
        for name, child in value._modules.items():
            if child is not None:
                self.add(
                    f"{path}.{name}",
                    "submodule replaced",
                    lambda name=name: _item(value._modules, name).put(torch.nn.Identity),
                )
                self.add(
                    f"{path}.{name}",
                    "submodule a copy",
                    lambda name=name, child=child: _item(value._modules, name).put(lambda: copy.deepcopy(child)),
                )
        children = [(name, child) for name, child in value._modules.items() if child is not None]
        for (_, a), (name, b) in zip(children, children[1:], strict=False):
            if type(a) is type(b):
                self.add(
                    f"{path}.{name}",
                    "submodule shared",
                    lambda name=name, a=a: _item(value._modules, name).put(lambda: a),
                )

    def cls(self, path: str, value: type, depth: int) -> None:
        """Attributes of a class and of its bases; special methods it could have; its bases; its metaclass."""
        if not value.__flags__ & _HEAP_TYPE:
            return
        library = _of_library(value)
        for name, raw in list(vars(value).items()):
            if (
                name in _NO_SITES
                or (library and name not in self.names)
                or (name.startswith("__") and name not in _SPECIAL and name not in ("__init__", "__slots__"))
            ):
                continue
            if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                if not library:
                    self.add(
                        f"{path}.{name}",
                        "slot becomes a class attribute",
                        lambda name=name, raw=raw: _class_changed(
                            value, name, property(lambda self, raw=raw: bump(raw.__get__(self)))
                        ),
                    )
                continue
            place = _class_place(value, name)
            self.class_attribute(f"{path}.{name}", raw, place, depth)
        if library:
            return
        for name in self.names:
            raw = _raw(value, name)
            if name not in vars(value) and isinstance(raw, (types.FunctionType, int, str, float, property)):
                self.add(
                    f"{path}.{name}",
                    "inherited attribute overridden",
                    lambda name=name, raw=raw: _class_changed(value, name, _other_raw(raw)),
                )
        for name, method in _SPECIAL.items():
            if name not in vars(value):
                self.add(
                    f"{path}.{name}",
                    f"{name} added to a class",
                    lambda name=name, method=method: _class_changed(value, name, method),
                )
        bases = [base for base in value.__bases__ if base.__flags__ & _HEAP_TYPE]
        if bases and not _of_library(bases[0]):
            self.add(path, "bases", lambda: _other_bases(value, self.names))
        for base in value.__mro__[1:]:
            self.value(f"{path}<{base.__name__}>", base, depth)
        if type(value) is not type and not _of_library(type(value)):
            self.value(f"type({path})", type(value), depth)
        if hasattr(type(value), "register"):
            self.add(path, "int registered as a subclass", lambda: _registered(value))

    def class_attribute(self, path: str, raw: Any, place: Place, depth: int) -> None:
        if isinstance(raw, (types.FunctionType, property, staticmethod, classmethod)):
            self.add(path, "method or descriptor replaced", lambda: place.put(lambda: _other_raw(raw)))
            if isinstance(raw, types.FunctionType):
                self.add(path, "method becomes a staticmethod", lambda: place.put(lambda: staticmethod(raw)))
            if isinstance(raw, property):
                self.add(path, "property becomes a value", lambda: place.put(lambda: 3))
            self.add(path, "class attribute removed", place.remove)
            self.value(path, raw, depth)
        elif not path.endswith("__"):
            self.place(path, place, depth)

    def tensor(self, path: str, value: torch.Tensor, depth: int) -> None:
        """Changes of a tensor in place."""
        if value.is_leaf and value.is_floating_point() and not value.is_inference():
            self.add(path, "requires_grad in place", lambda: _requires(value))
            self.add(path, "grad set", lambda: _attribute(value, "grad").put(lambda: torch.ones_like(value)))
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
                self.add(path, kind, lambda make=make: _attribute(value, "data").put(lambda: make(value.data)))
        self.add(path, "tensor attribute", lambda: _added(value.__dict__, "mark", 1))
        for name in list(getattr(value, "__dict__", {})):
            self.place(f"{path}.{name}", _item(value.__dict__, name, delete=True), depth)
        if type(value) is not torch.Tensor:
            self.value(f"type({path})", type(value), depth)
        names = [name for name in self.names if name in _TENSOR_METHODS]
        if id(torch.Tensor) not in self.seen:
            self.seen[id(torch.Tensor)] = torch.Tensor
            for name in names:
                raw = _raw(torch.Tensor, name)
                if callable(raw):
                    self.add(
                        f"torch.Tensor.{name}",
                        "method of tensors replaced",
                        lambda name=name, raw=raw: _class_changed(torch.Tensor, name, bumped(raw)),
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

# Methods of tensors that a program may replace: those that compute. Kiln and torch themselves call the others.
_TENSOR_METHODS = frozenset(
    "abs add cos exp log matmul mean mul neg norm pow relu round sigmoid sin softmax split sqrt sub sum tanh".split()
)
_NO_SITES = frozenset(
    "__dict__ __weakref__ __module__ __doc__ __qualname__ __annotations__ __abstractmethods__".split()
)


class _Plain:
    """Special methods that a class can get."""

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 5

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 9

    def __getattribute__(self, name: str) -> Any:
        return (
            bump(object.__getattribute__(self, name))
            if not name.startswith("_")
            else object.__getattribute__(self, name)
        )

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, bump(value))

    def __call__(self, *args: Any) -> Any:
        return args

    def __iter__(self) -> Iterator[Any]:
        return iter((1, 2))

    def __contains__(self, item: Any) -> bool:
        return item == 2

    def __getitem__(self, index: Any) -> Any:
        return 11

    def __add__(self, other: Any) -> Any:
        return 12

    def __radd__(self, other: Any) -> Any:
        return 13

    def __repr__(self) -> str:
        return "plain"

    def __lt__(self, other: Any) -> bool:
        return True

    def __index__(self) -> int:
        return 1


_SPECIAL = {name: method for name, method in vars(_Plain).items() if isinstance(method, types.FunctionType)}


# -- small things ---------------------------------------------------------------------------------------------------


def names_in(world: World) -> list[str]:
    """All names in the code of a program and of the functions that it can reach, sorted."""
    from kiln.testing.worlds import reachable

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


def other_classes(cls: type, names: list[str]) -> Iterator[tuple[str, Callable[[], type]]]:
    """Subclasses that an instance can be given: an empty one, and one that overrides what the program uses."""
    yield "__class__ to a subclass", lambda: type(cls)(cls.__name__, (cls,), {})
    for name in names:
        raw = _raw(cls, name)
        if isinstance(raw, (types.FunctionType, property, int, str, float)):
            yield (
                f"__class__ overrides {name}",
                lambda name=name, raw=raw: type(cls)(cls.__name__, (cls,), {name: _other_raw(raw)}),
            )


def _other_raw(raw: Any) -> Any:
    if isinstance(raw, property):
        return property(bumped(raw.fget), raw.fset)
    if isinstance(raw, (staticmethod, classmethod)):
        return type(raw)(bumped(raw.__func__))
    return bumped(raw) if callable(raw) else bump(raw)


def _raw(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return _MISSING


def _slots(cls: type) -> list[str]:
    found: list[str] = []
    for base in cls.__mro__:
        if not _of_library(base):
            found += [name for name, raw in vars(base).items() if isinstance(raw, types.MemberDescriptorType)]
    return found


def _of_library(value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    return str(module).split(".")[0] in _LIBRARIES or value in (object, type)


def _item(owner: Any, key: Any, delete: bool = False) -> Place:
    def write(value: Any) -> None:
        owner[key] = value

    def remove() -> None:
        del owner[key]

    return Place(lambda: owner[key], write, remove if delete else None)


def _attribute(owner: Any, name: str, delete: bool = False) -> Place:
    return (
        Place(
            lambda: getattr(owner, name),
            lambda value: setattr(owner, name, value),
            lambda: delattr(owner, name) if delete else None,
        )
        if delete
        else Place(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))
    )


def _class_place(cls: type, name: str) -> Place:
    return Place(
        lambda: vars(cls)[name], lambda value: type.__setattr__(cls, name, value), lambda: type.__delattr__(cls, name)
    )


def _class_changed(cls: type, name: str, value: Any) -> Undo:
    before = vars(cls).get(name, _MISSING)
    type.__setattr__(cls, name, value)
    if before is _MISSING:
        return lambda: type.__delattr__(cls, name)
    return lambda: type.__setattr__(cls, name, before)


def _in_tuple(place: Place, read: Callable[[], tuple], index: int, make: Callable[[tuple], Any]) -> Place:
    def write(value: Any) -> None:
        items = tuple(read())
        place.write(make((*items[:index], value, *items[index + 1 :])))

    return Place(lambda: read()[index], write)


def _tuple_like(original: tuple, items: tuple) -> tuple:
    if hasattr(original, "_make"):
        return original._make(items)
    return tuple.__new__(type(original), items) if type(original) is not torch.Size else torch.Size(items)


def _pop(owner: dict, key: Any) -> Undo:
    before = list(owner.items())
    del owner[key]

    def undo() -> None:
        """Put the item back where it was: what came before it stays, what came after is moved behind it."""
        place = [name for name, _ in before].index(key)
        for name, value in before[place:]:
            owner.pop(name, None)
            owner[name] = value

    return undo


def _moved(owner: dict, key: Any) -> Undo:
    value = owner.pop(key)
    owner[key] = value
    return lambda: None


def _added(owner: dict, key: Any, value: Any = 1) -> Undo:
    owner[key] = value
    return lambda: owner.pop(key, None)


def _view(value: torch.Tensor) -> torch.Tensor:
    return value.detach()[...] if value.requires_grad else value[...]


def _requires(value: torch.Tensor) -> Undo:
    before = value.requires_grad
    value.requires_grad_(not before)
    return lambda: value.requires_grad_(before)


def _trained(value: torch.nn.Module) -> Undo:
    before = value.training
    value.train(not before)
    return lambda: value.train(before)


def _frozen(value: torch.nn.Module) -> Undo:
    before = [(parameter, parameter.requires_grad) for parameter in value.parameters()]
    value.requires_grad_(False)
    return lambda: [parameter.requires_grad_(flag) for parameter, flag in before]


def _as_buffer(module: torch.nn.Module, name: str) -> Undo:
    parameter = module._parameters.pop(name)
    module._buffers[name] = parameter.detach() * 2

    def undo() -> None:
        del module._buffers[name]
        module._parameters[name] = parameter

    return undo


def _as_attribute(module: torch.nn.Module, name: str) -> Undo:
    parameter = module._parameters.pop(name)
    module.__dict__[name] = parameter.detach() * 2

    def undo() -> None:
        del module.__dict__[name]
        module._parameters[name] = parameter

    return undo


def _other_bases(cls: type, names: list[str]) -> Undo:
    before = cls.__bases__
    first = next(base for base in before if base.__flags__ & _HEAP_TYPE)
    changed = {name: _other_raw(raw) for name in names if isinstance(raw := vars(first).get(name), types.FunctionType)}
    other = type(first)(first.__name__, (first,), changed)
    cls.__bases__ = tuple(other if base is first else base for base in before)

    def undo() -> None:
        cls.__bases__ = before

    return undo


def _registered(cls: Any) -> Undo:
    """An abstract class cannot forget what was registered: a class of its own each time, for isinstance to ask."""
    cls.register(type("Registered", (), {}))
    return lambda: None
