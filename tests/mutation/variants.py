"""Other values for a value: what a program could find in its place that guards must tell apart, or the result shows."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

Variant = tuple[str, Callable[[], Any]]  # the kind of the change, and a function that makes the other value


class Text(str):
    """A string that is none by its type."""


class Whole(int):
    """An int that is none by its type."""


class Real(float):
    """A float that is none by its type."""


class Row(list):
    """A list that is none by its type."""


class Mapping(dict):
    """A dictionary that is none by its type."""


class TensorSubclass(torch.Tensor):
    """A tensor of another class that behaves like one."""


class Level(enum.IntEnum):
    """Members that equal ints."""

    ZERO = 0
    ONE = 1
    TWO = 2
    THREE = 3
    FOUR = 4


def variants(value: Any) -> Iterator[Variant]:
    """Other values for this one, each with the kind of the change. Made anew for each world."""
    rows = _BY_TYPE.get(type(value))
    if rows is not None:
        yield from rows(value)
    elif isinstance(value, torch.Tensor):
        yield from _tensors(value)
    elif isinstance(value, enum.Enum):
        members = list(type(value))
        yield "enum member", lambda: members[(members.index(value) + 1) % len(members)]
        yield "enum to its value", lambda: value.value
    elif isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType)):
        yield from _callables(value)
    elif isinstance(value, tuple):
        yield from _tuples(value)
    elif isinstance(value, type):
        yield "class to a subclass", lambda: type(value)(value.__name__, (value,), {})


def bump(value: Any) -> Any:
    """A result that is told from the one before."""
    if isinstance(value, torch.Tensor):
        return value + 1 if value.dtype != torch.bool else ~value
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if type(value) is str:
        return value + "~"
    if type(value) in (list, tuple):
        return value[::-1]
    return value


def bumped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that answers something else."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return bump(function(*args, **kwargs))

    return wrapper


def _bools(value: bool) -> Iterator[Variant]:
    yield "bool flipped", lambda: not value
    yield "bool to int", lambda: int(value)
    yield "bool to float", lambda: float(value)
    yield "to None", lambda: None


def _ints(value: int) -> Iterator[Variant]:
    yield "int changed", lambda: value + 1
    yield "int changed", lambda: value + 2
    yield "int to 0 or 1", lambda: 0 if value else 1
    yield "int to 0 or 1", lambda: 1 if value != 1 else 2
    yield "int negated", lambda: -value
    yield "int grows large", lambda: value + 2**62
    if value in (0, 1):
        yield "int to bool", lambda: bool(value)
    yield "int to float", lambda: float(value)
    yield "int to subclass", lambda: Whole(value)
    if 0 <= value <= 4:
        yield "int to IntEnum", lambda: Level(value)
    yield "int to tensor", lambda: torch.tensor(value)
    yield "to None", lambda: None


def _floats(value: float) -> Iterator[Variant]:
    yield "float changed", lambda: value + 0.5
    yield "float to nan", lambda: float("nan")
    yield "float to inf", lambda: float("inf")
    yield "float negated", lambda: -value
    yield "float to zero", lambda: -0.0 if value == 0 else 0.0
    if value == value and abs(value) < 1e9 and value == int(value):
        yield "float to int", lambda: int(value)
    yield "float to subclass", lambda: Real(value)
    yield "float to tensor", lambda: torch.tensor(value)


def _strings(value: str) -> Iterator[Variant]:
    yield "str changed", lambda: value + "x"
    yield "str changed", lambda: ""
    yield "str to subclass", lambda: Text(value)
    yield "str to bytes", lambda: value.encode("utf-8", "replace")
    yield "to None", lambda: None


def _nones(value: None) -> Iterator[Variant]:
    yield "from None", lambda: 0
    yield "from None", lambda: 2.0
    yield "from None", lambda: torch.ones(3)
    yield "from None", lambda: False


def _lists(value: list) -> Iterator[Variant]:
    yield "list shorter", lambda: value[:-1]
    yield "list longer", lambda: value + value[-1:] if value else [1]
    yield "list reversed", lambda: value[::-1]
    yield "list to tuple", lambda: tuple(value)
    yield "list to subclass", lambda: Row(value)
    yield "list to deque", lambda: collections.deque(value)


def _tuples(value: tuple) -> Iterator[Variant]:
    yield "tuple shorter", lambda: tuple(value)[:-1]
    yield "tuple longer", lambda: tuple(value) + tuple(value)[-1:]
    yield "tuple reversed", lambda: tuple(value)[::-1]
    yield "tuple to list", lambda: list(value)
    pair = collections.namedtuple("Pair", [f"field_{index}" for index in range(len(value))])
    yield "tuple to namedtuple", lambda: pair(*value)
    if value and all(type(item) is int and item >= 0 for item in value):
        yield "tuple to Size", lambda: torch.Size(value)


def _dicts(value: dict) -> Iterator[Variant]:
    yield "dict order", lambda: dict(reversed(list(value.items())))
    yield "dict key gone", lambda: dict(list(value.items())[:-1])
    yield "dict key more", lambda: {**value, "more": 1}
    yield "dict to subclass", lambda: Mapping(value)
    yield "dict to OrderedDict", lambda: collections.OrderedDict(value)
    yield "dict to defaultdict", lambda: collections.defaultdict(int, value)


def _sets(value: set) -> Iterator[Variant]:
    yield "set content", lambda: value | {101}
    yield "set content", lambda: type(value)(list(value)[:-1])
    yield "set to frozenset", lambda: frozenset(value) if type(value) is set else set(value)
    yield "set to list", lambda: list(value)


def _callables(value: Callable[..., Any]) -> Iterator[Variant]:
    yield "function replaced", lambda: bumped(value)
    if isinstance(value, types.FunctionType):
        yield "function of equal code", lambda: function_twin(value)


def function_twin(function: types.FunctionType) -> types.FunctionType:
    """Another function object of the same code, closure and defaults."""
    twin = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__ = dict(function.__kwdefaults__) if function.__kwdefaults__ else None
    return twin


def other_code(code: types.CodeType) -> types.CodeType | None:
    """The same code with other numbers in it; None where it has none."""
    consts = tuple(
        const + 1 if type(const) in (int, float) and abs(const) < 1e6 else const + "~" if type(const) is str else const
        for const in code.co_consts
    )
    consts = (*code.co_consts[:1], *consts[1:])  # the first one may be the documentation
    return code.replace(co_consts=consts) if consts != code.co_consts else None


def _complexes(value: complex) -> Iterator[Variant]:
    yield "complex changed", lambda: value + 1j
    yield "complex to float", lambda: value.real


def _bytes(value: bytes) -> Iterator[Variant]:
    yield "bytes changed", lambda: value + b"x"
    yield "bytes to bytearray", lambda: bytearray(value)


def _ranges(value: range) -> Iterator[Variant]:
    yield "range longer", lambda: range(value.start, value.stop + value.step, value.step)
    yield "range to list", lambda: list(value)


def _slices(value: slice) -> Iterator[Variant]:
    yield "slice changed", lambda: slice(1, value.stop, value.step)
    yield "slice changed", lambda: slice(value.start, 2, value.step)


def _dtypes(value: torch.dtype) -> Iterator[Variant]:
    yield "dtype changed", lambda: torch.float64 if value != torch.float64 else torch.float32
    yield "to None", lambda: None


def _devices(value: torch.device) -> Iterator[Variant]:
    yield "device changed", lambda: torch.device("meta")
    yield "device to str", lambda: str(value)


# -- tensors ----------------------------------------------------------------------------------------------------------


def _like(value: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """A leaf that asks for gradients as the other did, a parameter where that was one."""
    made = made.detach()
    if isinstance(value, torch.nn.Parameter):
        wants = value.requires_grad and (made.is_floating_point() or made.is_complex())
        return torch.nn.Parameter(made, requires_grad=wants)
    if value.requires_grad and (made.is_floating_point() or made.is_complex()):
        made.requires_grad_()
    return made


def _tensors(value: torch.Tensor) -> Iterator[Variant]:
    if value.layout is not torch.strided or value.device.type == "meta":
        yield "tensor dense", lambda: torch.ones(value.shape)
        return
    plain = value.detach()

    def like(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: _like(value, make(plain))

    yield "tensor values", like(lambda t: bump(t.clone()))
    yield "tensor zeros", like(torch.zeros_like)
    other = torch.float64 if value.dtype != torch.float64 else torch.float32
    yield "tensor dtype", like(lambda t: t.to(other))
    yield "tensor dtype", like(lambda t: t.to(torch.int64 if t.is_floating_point() else torch.float32))
    yield "tensor dtype", like(lambda t: t.to(torch.complex64))
    yield "tensor requires_grad", lambda: _flipped(value)
    yield "tensor class", lambda: plain.clone().as_subclass(TensorSubclass)
    yield "tensor class", lambda: torch.nn.Parameter(plain.clone(), requires_grad=value.is_floating_point())
    yield "tensor storage offset", like(_with_offset)
    if not isinstance(value, torch.nn.Parameter):  # convolutions read whatever is there in place of a meta bias
        yield "tensor device", like(lambda t: t.to("meta"))
    yield "tensor to number", lambda: plain.flatten()[0].item() if plain.numel() else 0
    yield "tensor to list", lambda: plain.tolist()
    yield "tensor inference", lambda: _inference(plain)
    yield "tensor has history", lambda: _with_history(value)
    yield "tensor negative bit", like(lambda t: torch._neg_view(-t))
    yield "tensor new dimension", like(lambda t: t.clone().unsqueeze(0))
    yield "to None", lambda: None
    if value.dim():
        last = value.dim() - 1
        yield "tensor size 0", like(lambda t: t[:0].clone())
        yield "tensor size 1", like(lambda t: t[:1].clone())
        yield "tensor size changed", like(lambda t: torch.cat([t, t[-1:]]))
        yield "tensor size changed", like(lambda t: torch.cat([t, t, t]))
        yield "tensor size changed", like(lambda t: torch.cat([t, t.narrow(last, 0, min(1, t.shape[last]))], last))
        yield "tensor fewer dimensions", like(lambda t: t.clone().flatten()[0] if t.numel() else t.clone())
        yield "tensor strides", like(_strided)
        yield "tensor strides", like(lambda t: t[:1].expand(t.shape) if t.shape[0] else t.clone())
        yield "tensor is a view", like(lambda t: torch.stack([t, t])[1])
    if value.dim() > 1:
        yield "tensor strides", like(lambda t: t.transpose(0, -1).contiguous().transpose(0, -1))
        yield "tensor transposed", like(lambda t: t.transpose(0, -1).contiguous())
    if value.dim() == 4:
        yield "tensor strides", like(lambda t: t.to(memory_format=torch.channels_last))


def _flipped(value: torch.Tensor) -> torch.Tensor:
    made = value.detach().clone()
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=not value.requires_grad and made.is_floating_point())
    return made.requires_grad_(not value.requires_grad and made.is_floating_point())


def _with_offset(value: torch.Tensor) -> torch.Tensor:
    memory = torch.zeros(value.numel() + 3, dtype=value.dtype)
    memory[3:] = value.flatten()
    return memory[3:].view(value.shape)


def _strided(value: torch.Tensor) -> torch.Tensor:
    return torch.stack([value, value], -1)[..., 0]


def _inference(value: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return value.clone()


def _with_history(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point():
        return value.detach().clone()
    return value.detach().clone().requires_grad_() * 1


_BY_TYPE: dict[type, Callable[[Any], Iterator[Variant]]] = {
    bool: _bools,
    int: _ints,
    float: _floats,
    str: _strings,
    type(None): _nones,
    list: _lists,
    tuple: _tuples,
    torch.Size: _tuples,
    dict: _dicts,
    collections.OrderedDict: _dicts,
    set: _sets,
    frozenset: _sets,
    complex: _complexes,
    bytes: _bytes,
    range: _ranges,
    slice: _slices,
    torch.dtype: _dtypes,
    torch.device: _devices,
}
