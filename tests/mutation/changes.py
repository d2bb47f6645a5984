"""Changes that can be made and taken back: of places that hold values, of classes, of modules of torch."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .variants import bump, bumped

Undo = Callable[[], Any]
MISSING = object()
LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "kiln", "transformers", "pytest", "mutation", "_pytest"}
HEAP_TYPE = 1 << 9


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


def other_classes(cls: type, names: list[str]) -> Iterator[tuple[str, Callable[[], type]]]:
    """Subclasses that an instance can be given: an empty one, and one that overrides what the program uses."""
    yield "__class__ to a subclass", lambda: type(cls)(cls.__name__, (cls,), {})
    for name in names:
        raw = raw_attribute(cls, name)
        if isinstance(raw, (types.FunctionType, property, int, str, float)):
            yield (
                f"__class__ overrides {name}",
                lambda name=name, raw=raw: type(cls)(cls.__name__, (cls,), {name: other_raw(raw)}),
            )


def other_raw(raw: Any) -> Any:
    if isinstance(raw, property):
        return property(bumped(raw.fget), raw.fset)
    if isinstance(raw, (staticmethod, classmethod)):
        return type(raw)(bumped(raw.__func__))
    return bumped(raw) if callable(raw) else bump(raw)


def raw_attribute(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING


def slot_names(cls: type) -> list[str]:
    found: list[str] = []
    for base in cls.__mro__:
        if not of_library(base):
            found += [name for name, raw in vars(base).items() if isinstance(raw, types.MemberDescriptorType)]
    return found


def of_library(value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    return str(module).split(".")[0] in LIBRARIES or value in (object, type)


def item_place(owner: Any, key: Any, delete: bool = False) -> Place:
    def write(value: Any) -> None:
        owner[key] = value

    def remove() -> None:
        del owner[key]

    return Place(lambda: owner[key], write, remove if delete else None)


def attribute_place(owner: Any, name: str, delete: bool = False) -> Place:
    return (
        Place(
            lambda: getattr(owner, name),
            lambda value: setattr(owner, name, value),
            lambda: delattr(owner, name) if delete else None,
        )
        if delete
        else Place(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))
    )


def class_place(cls: type, name: str) -> Place:
    return Place(
        lambda: vars(cls)[name], lambda value: type.__setattr__(cls, name, value), lambda: type.__delattr__(cls, name)
    )


def class_changed(cls: type, name: str, value: Any) -> Undo:
    before = vars(cls).get(name, MISSING)
    type.__setattr__(cls, name, value)
    if before is MISSING:
        return lambda: type.__delattr__(cls, name)
    return lambda: type.__setattr__(cls, name, before)


def tuple_place(place: Place, read: Callable[[], tuple], index: int, make: Callable[[tuple], Any]) -> Place:
    def write(value: Any) -> None:
        items = tuple(read())
        place.write(make((*items[:index], value, *items[index + 1 :])))

    return Place(lambda: read()[index], write)


def tuple_like(original: tuple, items: tuple) -> tuple:
    if hasattr(original, "_make"):
        return original._make(items)
    return tuple.__new__(type(original), items) if type(original) is not torch.Size else torch.Size(items)


def popped(owner: dict, key: Any) -> Undo:
    before = list(owner.items())
    del owner[key]

    def undo() -> None:
        """Put the item back where it was: what came before it stays, what came after is moved behind it."""
        place = [name for name, _ in before].index(key)
        for name, value in before[place:]:
            owner.pop(name, None)
            owner[name] = value

    return undo


def moved(owner: dict, key: Any) -> Undo:
    value = owner.pop(key)
    owner[key] = value
    return lambda: None


def added(owner: dict, key: Any, value: Any = 1) -> Undo:
    owner[key] = value
    return lambda: owner.pop(key, None)


def view_of(value: torch.Tensor) -> torch.Tensor:
    return value.detach()[...] if value.requires_grad else value[...]


def requires_flipped(value: torch.Tensor) -> Undo:
    before = value.requires_grad
    value.requires_grad_(not before)
    return lambda: value.requires_grad_(before)


def training_flipped(value: torch.nn.Module) -> Undo:
    before = value.training
    value.train(not before)
    return lambda: value.train(before)


def frozen(value: torch.nn.Module) -> Undo:
    before = [(parameter, parameter.requires_grad) for parameter in value.parameters()]
    value.requires_grad_(False)
    return lambda: [parameter.requires_grad_(flag) for parameter, flag in before]


def as_buffer(module: torch.nn.Module, name: str) -> Undo:
    parameter = module._parameters.pop(name)
    module._buffers[name] = parameter.detach() * 2

    def undo() -> None:
        del module._buffers[name]
        module._parameters[name] = parameter

    return undo


def as_attribute(module: torch.nn.Module, name: str) -> Undo:
    parameter = module._parameters.pop(name)
    module.__dict__[name] = parameter.detach() * 2

    def undo() -> None:
        del module.__dict__[name]
        module._parameters[name] = parameter

    return undo


def other_bases(cls: type, names: list[str]) -> Undo:
    before = cls.__bases__
    first = next(base for base in before if base.__flags__ & HEAP_TYPE)
    changed = {name: other_raw(raw) for name in names if isinstance(raw := vars(first).get(name), types.FunctionType)}
    other = type(first)(first.__name__, (first,), changed)
    cls.__bases__ = tuple(other if base is first else base for base in before)

    def undo() -> None:
        cls.__bases__ = before

    return undo


def registered(cls: Any) -> Undo:
    """An abstract class cannot forget what was registered: a class of its own each time, for isinstance to ask."""
    cls.register(type("Registered", (), {}))
    return lambda: None
