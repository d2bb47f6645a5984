"""Deep comparison of what two runs of a program left behind.

Both sides are walked together. Objects that can be changed, and tensors, are paired as they are met: one that is met
again must be met again on the other side too, at the same place. So the comparison sees not only values but which
things are the same object, and which tensors share storage.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import math
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from kiln.platform.torch_dispatch import DisableTorchFunctionSubclass
from kiln.platform.torch_tensors import accumulation_hooks_on, base_of, hooks_on, version_of
from kiln.testing.program_copies import own_attributes

numpy: Any = importlib.import_module("numpy") if importlib.util.find_spec("numpy") else None  # torch needs none, either

_ATOMS: tuple[type, ...] = (
    int,
    bool,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    torch.dtype,
    torch.device,
)
_ATOMS += (torch.layout, torch.memory_format, range, slice, types.CodeType)
_BY_IDENTITY = (types.ModuleType, types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_LONGEST_VALUE_SHOWN = 120


def same(left: Any, right: Any, **options: Any) -> bool:
    """Whether two values are equal all the way down; see `differences` for the options. Identities do not count."""
    return not differences(left, right, **{"identity": False, **options})


def differences(left: Any, right: Any, *, name: str = "value", limit: int = 20, **options: Any) -> list[str]:
    """Each place where two values differ, in words, `left` being the expected side; empty when they are equal.

    Options: `rtol`, `atol` for floats and float tensors (default: exact, NaN equals NaN); `strides`,
    `requires_grad`, `gradients` of tensors; `identity`: also which objects and storages are shared, what
    tensors are views of and, unless `versions` is False, how often they were changed.
    """
    comparison = Comparison(**options)
    found: list[str] = []
    for text in comparison.walk(left, right, name):
        found.append(text)
        if len(found) >= limit:
            found.append("… and maybe more")
            break
    return found


def shown(value: Any) -> str:
    """A value in few words, whatever its repr does."""
    try:
        text = repr(value)
    except Exception as error:  # a half-made object of the tested program
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= _LONGEST_VALUE_SHOWN else text[: _LONGEST_VALUE_SHOWN - 1] + "…"


@dataclasses.dataclass
class Comparison:
    """One walk over two values; see `differences` for the options."""

    rtol: float = 0.0
    atol: float = 0.0
    strides: bool = True
    requires_grad: bool = True
    gradients: bool = True
    identity: bool = True
    versions: bool = True

    def __post_init__(self) -> None:
        self._pairs: dict[tuple[int, int], str] = {}
        self._left: dict[int, str] = {}  # id -> the path where it was first met
        self._right: dict[int, str] = {}
        self._storages_left: dict[int, tuple[int, str]] = {}
        self._storages_right: dict[int, tuple[int, str]] = {}
        self._types: dict[type, type] = {}
        self._alive: list[Any] = []  # ids are only good while what they belong to lives

    def walk(self, left: Any, right: Any, path: str) -> Iterator[str]:
        """Yield each difference between the two values found at `path`."""
        if not self._same_type(type(left), type(right)):
            yield (
                f"{path}: type {type(left).__name__} expected, {type(right).__name__} seen "
                f"({shown(left)} against {shown(right)})"
            )
            return
        if isinstance(left, _ATOMS) and type(left) in _ATOMS:
            if left is not right and left != right:
                yield f"{path}: {shown(left)} expected, {shown(right)} seen"
            return
        if left is right and isinstance(left, tuple):  # shared by both runs, and perhaps part of a circle
            return
        if not isinstance(left, (tuple, float, complex, frozenset)):
            met, complaint = self._pair(left, right, path)
            if complaint:
                yield complaint
            if met:
                return
        yield from self._inside(left, right, path)

    def _same_type(self, left: type, right: type) -> bool:
        if left is right:
            return True
        if (left.__module__, left.__qualname__) != (right.__module__, right.__qualname__):
            return False
        # A class made anew by each run of the set-up: each has its one partner.
        return self._types.setdefault(left, right) is right

    def _pair(self, left: Any, right: Any, path: str) -> tuple[bool, str]:
        """Pair two objects: (whether they were paired before, what is wrong with that)."""
        key = (id(left), id(right))
        if key in self._pairs:
            return True, ""
        first_left, first_right = self._left.get(key[0]), self._right.get(key[1])
        self._pairs[key] = path
        self._left.setdefault(key[0], path)
        self._right.setdefault(key[1], path)
        self._alive.append((left, right))
        if not self.identity or isinstance(left, (type, *_BY_IDENTITY, types.FunctionType, types.MethodType)):
            return False, ""  # bound methods are made on each look-up; functions are compared by what they are
        if first_left is not None:
            return False, f"{path}: expected to be the same object as {first_left}, but is another"
        if first_right is not None:
            return False, f"{path}: is the same object as {first_right}, expected another"
        return False, ""

    def _inside(self, left: Any, right: Any, path: str) -> Iterator[str]:
        for kinds, compare in _COMPARE:
            if isinstance(left, kinds):
                yield from compare(self, left, right, path)
                return
        yield from _compare_objects(self, left, right, path)

    def close(self, left: float, right: float) -> bool:
        """Whether two Python floats agree; exactly (also in the sign of zero) unless a tolerance was given."""
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        if self.rtol == self.atol == 0.0:
            return left == right and math.copysign(1.0, left) == math.copysign(1.0, right)
        return math.isclose(left, right, rel_tol=self.rtol, abs_tol=self.atol)

    def share_storage(self, left: torch.Tensor, right: torch.Tensor, path: str) -> Iterator[str]:
        """Complain where two tensors do not share memory with the same earlier tensors."""
        left_key, right_key = _storage_key(left), _storage_key(right)
        if left_key is None or right_key is None:
            return
        seen_left = self._storages_left.setdefault(left_key, (right_key, path))
        seen_right = self._storages_right.setdefault(right_key, (left_key, path))
        if seen_left[0] != right_key:
            yield f"{path}: expected to share storage with {seen_left[1]}, but does not"
        elif seen_right[0] != left_key:
            yield f"{path}: shares storage with {seen_right[1]}, expected its own"


def _storage_key(tensor: torch.Tensor) -> int | None:
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr() if storage.nbytes() else None
    except (RuntimeError, NotImplementedError):  # sparse, meta, wrapper subclasses
        return None


def _compare_floats(self: Comparison, left: float, right: float, path: str) -> Iterator[str]:
    if not self.close(left, right):
        yield f"{path}: {left!r} expected, {right!r} seen"


def _compare_complex(self: Comparison, left: complex, right: complex, path: str) -> Iterator[str]:
    if not (self.close(left.real, right.real) and self.close(left.imag, right.imag)):
        yield f"{path}: {left!r} expected, {right!r} seen"


def _compare_sequences(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    if len(left) != len(right):
        yield f"{path}: length {len(left)} expected, {len(right)} seen ({shown(left)} against {shown(right)})"
        return
    names = getattr(left, "_fields", None)
    for index, (one, other) in enumerate(zip(list(left), list(right), strict=True)):
        yield from self.walk(one, other, f"{path}.{names[index]}" if names else f"{path}[{index}]")
    if isinstance(left, collections.deque):
        yield from self.walk(left.maxlen, right.maxlen, f"{path}.maxlen")
    yield from _compare_attributes(self, left, right, path)


def _compare_dicts(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    if len(left) != len(right):
        yield f"{path}: keys {shown(list(left))} expected, {shown(list(right))} seen"
        return
    # In order: the order of a dictionary is part of what a program can see. Raw iteration, past any overrides.
    keys = collections.OrderedDict.keys if isinstance(left, collections.OrderedDict) else dict.keys
    for one, other in zip(list(keys(left)), list(keys(right)), strict=True):
        complaints = list(self.walk(one, other, f"{path} key {shown(one)}"))
        yield from complaints
        if not complaints:
            yield from self.walk(dict.__getitem__(left, one), dict.__getitem__(right, other), f"{path}[{shown(one)}]")
    if hasattr(left, "default_factory"):
        yield from self.walk(left.default_factory, right.default_factory, f"{path}.default_factory")
    yield from _compare_attributes(self, left, right, path)


def _compare_sets(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    if left == right:
        return
    if len(left) != len(right):
        yield f"{path}: {shown(left)} expected, {shown(right)} seen"
        return
    # Elements without value equality (or of twin classes): pair each with an element that looks the same.
    remaining = list(right)
    for one in left:
        for index, other in enumerate(remaining):
            if one is other or not differences(one, other, identity=False, rtol=self.rtol, atol=self.atol):
                del remaining[index]
                break
        else:
            yield f"{path}: element {shown(one)} expected, not found in {shown(right)}"
            return


def _compare_tensors(self: Comparison, left: torch.Tensor, right: torch.Tensor, path: str) -> Iterator[str]:
    properties = ["dtype", "device", "layout", "shape"]
    if self.requires_grad:
        properties += ["requires_grad", "is_leaf"]
    complaint = ""
    for name in properties:
        expected, seen = getattr(left, name), getattr(right, name)
        if expected != seen:
            complaint = f"{path}: {name} {expected} expected, {seen} seen"
            yield complaint
    if complaint:
        return
    if self.strides and left.layout is torch.strided:
        expected, seen = [(tensor.stride(), tensor.storage_offset()) for tensor in (left, right)]
        if expected != seen:
            yield f"{path}: strides and offset {expected} expected, {seen} seen"
    yield from _compare_values(self, left, right, path)
    if self.identity:
        yield from self.share_storage(left, right, path)
        yield from _compare_views(self, left, right, path)
    if self.gradients and left.is_leaf:
        # How often gradients were accumulated is not compared.
        versions, self.versions = self.versions, False
        yield from self.walk(left.grad, right.grad, f"{path}.grad")
        self.versions = versions
    if self.gradients:
        yield from self.walk(_hooks_on(left), _hooks_on(right), f"{path}: hooks")
    yield from _compare_attributes(self, left, right, path)


def _compare_views(self: Comparison, left: torch.Tensor, right: torch.Tensor, path: str) -> Iterator[str]:
    """What tensors are views of, and how often their memory was changed, as autograd counts it."""
    with DisableTorchFunctionSubclass():
        bases = base_of(left), base_of(right)
        versions = [None if tensor.is_inference() else version_of(tensor) for tensor in (left, right)]
    if self.versions and versions[0] != versions[1]:
        yield f"{path}: version {versions[0]} expected, {versions[1]} seen"
    if (bases[0] is None) != (bases[1] is None):
        yield f"{path}: {'a' if bases[1] is None else 'no'} view expected"
    elif bases[0] is not None:
        complaint = self._pair(*bases, f"{path}._base")[1]
        if complaint:
            yield complaint


def _hooks_on(tensor: torch.Tensor) -> list[list[Any]]:
    """The hooks on a tensor, in order. (What they are numbered with goes on from run to run.)"""
    with DisableTorchFunctionSubclass():
        tables = (hooks_on(tensor), accumulation_hooks_on(tensor))
    return [list(table.values()) if table else [] for table in tables]


def _compare_handles(self: Comparison, left: RemovableHandle, right: RemovableHandle, path: str) -> Iterator[str]:
    """Handles, by the hooks beside theirs and their place among them."""
    tables = [handle.hooks_dict_ref() or {} for handle in (left, right)]
    places = [
        list(table).index(handle.id) if handle.id in table else None
        for handle, table in zip((left, right), tables, strict=True)
    ]
    yield from self.walk(places[0], places[1], f"{path}: place")
    yield from self.walk(list(tables[0].values()), list(tables[1].values()), f"{path}: hooks")


SMALL_COMPLEX = (torch.complex32, getattr(torch, "bcomplex32", torch.complex32))  # the second from torch 2.14 on


def _compare_values(self: Comparison, left: torch.Tensor, right: torch.Tensor, path: str) -> Iterator[str]:
    if left.device.type == "meta":
        return
    with torch.no_grad(), DisableTorchFunctionSubclass():
        left, right = left.detach(), right.detach()
        if left.layout is not torch.strided:
            left, right = left.to_dense(), right.to_dense()
        if left.dtype in SMALL_COMPLEX:  # torch cannot compare these
            left, right = left.to(torch.complex64), right.to(torch.complex64)
        if torch.equal(left, right):
            return
        if not (left.is_floating_point() or left.is_complex()):
            yield f"{path}: values {shown(left)} expected, {shown(right)} seen"
            return
        agree = torch.isclose(left, right, rtol=self.rtol, atol=self.atol, equal_nan=True)
        if not bool(agree.all()):
            worst = (left - right).abs().nan_to_num(nan=math.inf).max().item()
            yield (
                f"{path}: {int((~agree).sum())} of {left.numel()} values differ, by {worst:.3g} at most: "
                f"{shown(left)} expected, {shown(right)} seen"
            )


def _compare_arrays(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    if left.dtype != right.dtype or left.shape != right.shape:
        yield f"{path}: array {left.dtype}{left.shape} expected, {right.dtype}{right.shape} seen"
    elif left.dtype == object:
        yield from self.walk(left.tolist(), right.tolist(), path)
    elif left.dtype.kind in "fc":
        if not numpy.allclose(left, right, rtol=self.rtol, atol=self.atol, equal_nan=True):
            yield f"{path}: {shown(left)} expected, {shown(right)} seen"
    elif not numpy.array_equal(left, right):
        yield f"{path}: {shown(left)} expected, {shown(right)} seen"


def message_of(error: BaseException) -> str:
    """What an exception says; its class may be unable to."""
    try:
        return str(error)
    except Exception as broken:
        return f"<str() raises {type(broken).__name__}>"


def _compare_exceptions(self: Comparison, left: BaseException, right: BaseException, path: str) -> Iterator[str]:
    yield from self.walk(left.args, right.args, f"{path}.args")
    if message_of(left) != message_of(right):
        yield f"{path}: message {message_of(left)!r} expected, {message_of(right)!r} seen"
    for name in ("__cause__", "__context__"):
        expected, seen = getattr(left, name), getattr(right, name)
        if not self._same_type(type(expected), type(seen)):
            yield f"{path}.{name}: {shown(expected)} expected, {shown(seen)} seen"
    if left.__suppress_context__ != right.__suppress_context__:
        yield f"{path}.__suppress_context__: {left.__suppress_context__} expected"
    yield from _compare_attributes(self, left, right, path)


def _compare_functions(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    if left is right:
        return
    one, other = left.__code__, right.__code__
    if (left.__name__, one.co_filename, one.co_firstlineno) != (
        right.__name__,
        other.co_filename,
        other.co_firstlineno,
    ):
        yield f"{path}: function {shown(left)} expected, {shown(right)} seen"
        return
    yield from self.walk(left.__defaults__, right.__defaults__, f"{path}.__defaults__")
    yield from self.walk(left.__kwdefaults__, right.__kwdefaults__, f"{path}.__kwdefaults__")
    yield from self.walk(own_attributes(left), own_attributes(right), f"{path}.__dict__")
    for name, cell, twin in zip(one.co_freevars, left.__closure__ or (), right.__closure__ or (), strict=False):
        yield from self.walk(_cell_content(cell), _cell_content(twin), f"{path} closure variable {name}")


def _cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return NotImplemented  # an empty cell: any value that a program does not keep in one


def _compare_methods(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    yield from self.walk(left.__func__, right.__func__, f"{path}.__func__")
    yield from self.walk(left.__self__, right.__self__, f"{path}.__self__")


def _compare_identity(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    if left is not right and left != right:
        owners = getattr(left, "__self__", None), getattr(right, "__self__", None)
        if None in owners or left.__name__ != right.__name__:
            yield f"{path}: {shown(left)} expected, {shown(right)} seen"
        else:  # a builtin method bound to an object of each side's own
            yield from self.walk(*owners, f"{path}.__self__")


def _compare_types(self: Comparison, left: type, right: type, path: str) -> Iterator[str]:
    if not self._same_type(left, right):
        yield f"{path}: {left!r} expected, {right!r} seen"


def _compare_weak(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    yield from self.walk(left(), right(), f"{path}()")


def _compare_generators(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    for name in ("__name__", "gi_running"):
        if getattr(left, name) != getattr(right, name):
            yield f"{path}.{name}: {getattr(left, name)} expected, {getattr(right, name)} seen"
    lines = [generator.gi_frame and generator.gi_frame.f_lineno for generator in (left, right)]
    if lines[0] != lines[1]:
        yield f"{path}: generator suspended at line {lines[0]} expected, at {lines[1]} seen"


def _compare_torch_generators(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    if not torch.equal(left.get_state(), right.get_state()):
        yield f"{path}: the states of the random generators differ"


def _compare_attributes(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    """Instance attributes: what `__dict__` and `__slots__` hold."""
    one, other = _attributes(left), _attributes(right)
    for name in one.keys() - other.keys():
        yield f"{path}.{name}: expected, but missing"
    for name in other.keys() - one.keys():
        yield f"{path}.{name}: not expected, but there: {shown(other[name])}"
    for name in one.keys() & other.keys():
        yield from self.walk(one[name], other[name], f"{path}.{name}")


def _attributes(value: Any) -> dict[str, Any]:
    namespace = getattr(value, "__dict__", None)
    found = (
        dict(namespace) if isinstance(namespace, (dict, types.MappingProxyType)) else {}
    )  # of a super object: anything
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _compare_objects(self: Comparison, left: Any, right: Any, path: str) -> Iterator[str]:
    """Anything else: by its attributes; what has none, by equality or by what it would be pickled as."""
    if left is right:
        return
    if _attributes(left) or _attributes(right):
        yield from _compare_attributes(self, left, right, path)
        return
    try:
        if left == right or type(left) is object:
            return
    except Exception:  # an __eq__ of the tested program
        pass
    reduced = _reduced(left), _reduced(right)
    if None not in reduced:
        yield from self.walk(*reduced, f"{path} (as reduced)")
    elif has_equality(type(left)):
        yield f"{path}: {shown(left)} expected, {shown(right)} seen"


def has_equality(kind: Any) -> bool:
    return kind.__eq__ is not object.__eq__


def _reduced(value: Any) -> Any:
    try:
        return value.__reduce_ex__(2)
    except Exception:  # not picklable: locks, files, sockets
        return None


_Comparer = Callable[[Comparison, Any, Any, str], Iterator[str]]

# The first row whose types fit decides.
_COMPARE: list[tuple[Any, _Comparer]] = [
    (torch.Tensor, _compare_tensors),
    (float, _compare_floats),
    (complex, _compare_complex),
    ((tuple, list, collections.deque, *_VIEWS), _compare_sequences),
    (dict, _compare_dicts),
    ((set, frozenset), _compare_sets),
    (BaseException, _compare_exceptions),
    (types.FunctionType, _compare_functions),
    (types.MethodType, _compare_methods),
    (type, _compare_types),
    (_BY_IDENTITY, _compare_identity),
    (weakref.ref, _compare_weak),
    (RemovableHandle, _compare_handles),
    (types.GeneratorType, _compare_generators),
    (torch.Generator, _compare_torch_generators),
]
if numpy is not None:
    _COMPARE.append(((numpy.ndarray, numpy.generic), _compare_arrays))
