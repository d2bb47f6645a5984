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
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

PEER = "torch._dy" + "namo"
KEPT_OUT = "__dy" + "namo_disable"  # where torch remembers a function that its compiler leaves alone
SETTINGS = {"fake_tensor_cache_enabled": True, "fake_tensor_cache_crosscheck_enabled": False}


def make_mode(**arguments: Any) -> Any:
    """A new ``FakeTensorMode``."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if PEER not in sys.modules:
        try:
            mode = FakeTensorMode.__new__(FakeTensorMode)
            light_constructor(FakeTensorMode)(mode, **arguments)
        except Exception:
            return FakeTensorMode(**arguments)
        return mode
    return FakeTensorMode(**arguments)


@contextlib.contextmanager
def without_peer() -> Iterator[None]:
    """While capturing in a process that has not loaded torch's compiler: do not load it for a fake operation."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    handler = getattr(FakeTensorMode.__torch_dispatch__, "__wrapped__", None)
    if PEER in sys.modules or handler is None or hasattr(handler, KEPT_OUT):
        yield
        return
    setattr(handler, KEPT_OUT, handler)
    try:
        yield
    finally:
        if getattr(handler, KEPT_OUT, None) is handler:
            delattr(handler, KEPT_OUT)


@functools.cache
def light_constructor(cls: type) -> Callable[..., None]:
    """The class's constructor, its imports answered by :func:`import_light`."""
    original = cls.__init__  # type: ignore[misc]
    names = {**vars(builtins), "__import__": import_light}
    made = types.FunctionType(
        original.__code__,
        {**original.__globals__, "__builtins__": names},
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    made.__kwdefaults__ = original.__kwdefaults__
    return made


def import_light(name: str, *rest: Any) -> Any:
    """``import`` as the constructor uses it: a settings module of the peer is not loaded, only stood in for."""
    return TorchWithSettings() if name.startswith(PEER) else builtins.__import__(name, *rest) and TorchWithSettings()


class TorchWithSettings:
    """``torch``, with the two settings where the constructor looks for them."""

    def __getattr__(self, name: str) -> Any:
        if name == PEER.split(".")[1]:
            return types.SimpleNamespace(config=types.SimpleNamespace(**SETTINGS))
        return getattr(torch, name)


PLAIN_KINDS = (torch.Tensor, torch.nn.Parameter)


def static_fake(mode: Any, real: torch.Tensor, storages: dict[int, Any]) -> torch.Tensor | None:
    """The fake of an ordinary tensor, made directly; None where torch's own converter has to think.

    Tensors that share storage get fakes that share storage: ``storages`` is the memory of one trace.
    """
    if type(real) not in PLAIN_KINDS or real.is_conj() or real.is_neg() or real.is_inference() or real._is_zerotensor():
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(real) or real.device.type == "meta":
        return None
    from torch._subclasses.fake_tensor import FakeTensor

    bare = real.untyped_storage()
    storage = storages.get(bare._cdata)
    if storage is None:
        storage = storages[bare._cdata] = torch.UntypedStorage(bare.nbytes(), device="meta")
    with torch.no_grad():
        elem = torch.empty(0, dtype=real.dtype, device="meta")
        elem.set_(storage, real.storage_offset(), real.size(), real.stride())
    elem.requires_grad_(real.requires_grad)
    fake = FakeTensor(mode, elem, real.device)
    if not real.is_leaf:
        with torch.enable_grad(), mode:
            fake = fake.view_as(fake)
    elif isinstance(real, torch.nn.Parameter):
        fake._is_param = True
    return fake
