"""Fake tensors without loading torch's own compiler.

Making a ``FakeTensorMode`` imports torch's compiler for two of its settings, and its first operation imports it to keep
itself out of that compiler's way: more than a second in a fresh process, nearly all that Kiln's first compile would
cost. Here the constructor's own code runs with an ``import`` that answers for those settings alone, and while Kiln
captures, the mode's handler counts as kept out already. Should a release of torch ask for more, the plain way is taken,
and is merely slow. (Some shape rules of torch load its compiler all the same; that is its business.)
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import Parameter

from ..._native import is_instance as isinstance
from ...platform.locks import new_lock
from ...platform.python_objects import cell_is_empty
from ...platform.torch_fake import FakeTensor, FakeTensorMode, reference_modules, refuse_data_pointers
from ...platform.torch_functorch import is_wrapped
from ...platform.torch_tensors import address_of, base_of, is_plain_view, is_view, is_zero_tensor, mark_parameter

PEER = "torch._dy" + "namo"
KEPT_OUT = "__dy" + "namo_disable"  # where torch remembers a function that its compiler leaves alone
SETTINGS = {
    "fake_tensor_cache_enabled": True,
    "fake_tensor_cache_crosscheck_enabled": False,
    "_custom_ops_profile": None,
}


class Compiled(threading.local):
    """What is compiled in this thread, and the shapes that are kept for it from one process to the next."""

    code: types.CodeType | None = None
    shapes: Any = None


_compiled = Compiled()


@contextlib.contextmanager
def stored_shapes_in_use(code: types.CodeType) -> Iterator[None]:
    """While a function is compiled: what fakes found out for it in an earlier process is known from the start."""
    if _compiled.code is not None:
        yield
        return
    _compiled.code = code
    try:
        yield
        if _compiled.shapes is not None:
            _compiled.shapes.keep()
    finally:
        if _compiled.shapes is not None:
            _compiled.shapes.close()
        _compiled.code = _compiled.shapes = None


def make_mode(**arguments: Any) -> Any:
    """A new ``FakeTensorMode``. Code that asks for the address of a fake's data fails: it has none."""
    if _compiled.code is not None and _compiled.shapes is None:
        from .stored_shapes import StoredShapes

        _compiled.shapes = StoredShapes(_compiled.code)
    mode = plain_mode(**arguments)
    refuse_data_pointers(mode)
    return mode


def plain_mode(**arguments: Any) -> Any:
    if PEER in sys.modules:
        return shape_caching(FakeTensorMode)(**arguments)
    try:
        return shape_caching(without_compiler_settings(FakeTensorMode))(**arguments)
    except Exception:
        return shape_caching(FakeTensorMode)(**arguments)


@functools.cache
def shape_caching(cls: type) -> type:
    """The mode class with the shape cache."""
    from .shape_cache import ShapeCachingMode

    return type(cls.__name__, (ShapeCachingMode, cls), {})


class KeptOut:
    """While capturing in a process that has not loaded torch's compiler: it is not loaded for a fake operation.

    Functions that torch keeps out of its compiler count as kept out already, while some thread captures.
    """

    def __init__(self) -> None:
        self.users = 0
        self.lock = new_lock()

    @functools.cached_property
    def functions(self) -> list[tuple[dict[str, Any], types.FunctionType]]:
        return [(function.__dict__, function) for function in functions_disabled_for_compiler()]

    def __enter__(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1 and PEER not in sys.modules:
                for names, function in self.functions:
                    names.setdefault(KEPT_OUT, function)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0 and "functions" in self.__dict__:
                for names, function in self.functions:
                    if names.get(KEPT_OUT) is function:
                        del names[KEPT_OUT]


_kept_out = KeptOut()


def without_torch_compiler() -> contextlib.AbstractContextManager[None]:
    """A block in which operations on fake tensors do not load torch's compiler."""
    return _kept_out


@functools.cache
def functions_disabled_for_compiler() -> list[types.FunctionType]:
    """The functions that torch keeps out of its compiler's way at their first call, among those that fakes need."""
    candidates = [value for module in reference_modules() for value in vars(module).values()]
    found: dict[int, Any] = {}
    pending = [*candidates, FakeTensorMode.__torch_dispatch__]
    seen: set[int] = set()
    while pending:
        function = pending.pop()
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        inside = [cell.cell_contents for cell in function.__closure__ or () if not cell_is_empty(cell)]
        if function.__code__.co_filename.endswith("torch/_compile.py"):
            found.update((id(value), value) for value in inside if isinstance(value, types.FunctionType))
        pending += inside
    return list(found.values())


@functools.cache
def without_compiler_settings(cls: type) -> type:
    """The mode, with the methods that look at settings of torch's compiler seeing their defaults."""
    methods = {name: light(getattr(cls, name)) for name in ("__init__", "_dispatch_impl")}
    return type(cls.__name__, (cls,), methods)


def light(function: types.FunctionType) -> types.FunctionType:
    """The same code in a world where ``torch`` is a stand-in that already has those settings."""
    torch_with_settings = types.SimpleNamespace(**vars(torch))
    setattr(torch_with_settings, PEER.split(".")[1], types.SimpleNamespace(config=types.SimpleNamespace(**SETTINGS)))

    def import_light(name: str, *rest: Any) -> Any:
        if name.startswith(PEER):
            return torch_with_settings
        module = builtins.__import__(name, *rest)
        return torch_with_settings if module is torch else module

    world = {**function.__globals__, "torch": torch_with_settings}
    world["__builtins__"] = {**vars(builtins), "__import__": import_light}
    made = types.FunctionType(function.__code__, world, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class History(torch.autograd.Function):
    """Gives a fake a history, as results of operations have one: it may be changed in place, which a view may not."""

    @staticmethod
    def forward(ctx: Any, fake: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(fake)
        return fake

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("a backward pass over fake tensors")


def is_view_of_leaf(tensor: torch.Tensor) -> bool:
    """Whether torch refuses to change a tensor in place, as that would change a leaf."""
    base = base_of(tensor)
    return base is not None and base.is_leaf and base.requires_grad


def refuses_change(tensor: torch.Tensor) -> bool:
    """Whether torch may refuse to change a tensor in place under autograd because of what it is a view of, or how."""
    return is_view(tensor) and (not is_plain_view(tensor) or is_view_of_leaf(tensor))


PLAIN_KINDS = (torch.Tensor, Parameter)


def static_fake(mode: Any, real: torch.Tensor, storages: dict[int, Any]) -> torch.Tensor | None:
    """The fake of an ordinary tensor, made directly; None where torch's own converter has to think.

    Tensors that share storage get fakes that share storage: ``storages`` is the memory of one trace.
    """
    if not is_ordinary(real):
        return None
    bare = real.untyped_storage()
    key = address_of(bare)
    storage = storages.get(key)
    if storage is None:
        make_storage: Any = torch.UntypedStorage
        storage = storages[key] = make_storage(bare.nbytes(), device="meta")
    with torch.no_grad():
        elem = torch.empty(0, dtype=real.dtype, device="meta")
        elem.set_(storage, real.storage_offset(), real.size(), real.stride())
    return like_in_history(mode, real, elem)


def is_ordinary(real: torch.Tensor) -> bool:
    """Whether a tensor is no more than memory, a form, and a place in autograd's graph."""
    if type(real) not in PLAIN_KINDS or real.is_conj() or real.is_neg() or real.is_inference() or is_zero_tensor(real):
        return False
    return not is_wrapped(real) and real.device.type != "meta"


def like_in_history(mode: Any, real: torch.Tensor, elem: torch.Tensor) -> torch.Tensor:
    """The fake around a tensor without data, with such a place in autograd's graph as the real one has."""
    if not real.is_leaf and not is_view_of_leaf(real):
        with torch.enable_grad():
            give_history: Callable[..., torch.Tensor] = History.apply
            return give_history(FakeTensor(mode, elem, real.device), torch.empty((), requires_grad=True))
    elem.requires_grad_(real.requires_grad)
    fake: torch.Tensor = FakeTensor(mode, elem, real.device)
    if not real.is_leaf:
        with torch.enable_grad(), mode:
            fake = fake.view_as(fake)
    elif isinstance(real, Parameter):
        mark_parameter(fake)
    return fake
