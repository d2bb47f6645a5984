"""Fake tensors: modes with the shape cache, made without loading torch's own compiler, and fakes of real tensors."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import Parameter

from ..._native import is_instance as isinstance
from ...platform.torch_dispatch import is_wrapped_by_transform
from ...platform.torch_fake import FakeTensor, FakeTensorMode, is_compiler_loaded, light_fake_mode, refuse_data_pointers
from ...platform.torch_tensors import address_of, base_of, is_plain_view, is_view, is_zero_tensor, mark_parameter


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
    if _compiled.shapes is not None:
        mode.question_log = _compiled.shapes.log
    refuse_data_pointers(mode)
    return mode


def plain_mode(**arguments: Any) -> Any:
    if is_compiler_loaded():
        return shape_caching(FakeTensorMode)(**arguments)
    try:
        return shape_caching(light_fake_mode())(**arguments)
    except Exception:
        return shape_caching(FakeTensorMode)(**arguments)


@functools.cache
def shape_caching(cls: type) -> type:
    """The mode class with the shape cache."""
    from .shape_cache import ShapeCachingMode

    return type(cls.__name__, (ShapeCachingMode, cls), {})


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
    """The fake of an ordinary tensor, made directly; None where torch's own converter is needed.

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
    return not is_wrapped_by_transform(real) and real.device.type != "meta"


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
