"""Tensors that a traced function uses without being given them: they become inputs like the others.

A function that closes over a parameter computes with it: the compiled graph must see its value at each call, and give
it its gradient. While such a function is traced a mode looks at the arguments of every torch function; a tensor with
data among them came from elsewhere. The trace is then done again with those tensors as inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from .wrapper_subclasses import inner_tensors

ATTEMPTS = 3  # tensors that are made anew in each trace are never known


class Reached(BaseException):
    """A trace has met tensors that it was not given. (No Exception: nobody is to take it for a failure.)"""

    def __init__(self, tensors: list[torch.Tensor]):
        super().__init__()
        self.tensors = tensors


class Reaching(TorchFunctionMode):
    """Puts inputs in place of tensors that are known, and notes those that are not."""

    def __init__(self, known: dict[int, Any]):
        super().__init__()
        self.known = known
        self.met: dict[int, tuple[torch.Tensor, Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, self.stand_in, (args, kwargs or {}))
        return func(*args, **kwargs)

    def stand_in(self, tensor: torch.Tensor) -> Any:
        if id(tensor) in self.known:
            return self.known[id(tensor)]
        mode = fake_mode()
        if mode is None or any(isinstance(inner, FakeTensor) for inner in inner_tensors(tensor)):
            return tensor
        if id(tensor) not in self.met:
            self.met[id(tensor)] = tensor, mode.from_tensor(tensor, static_shapes=True)
        return self.met[id(tensor)][1]


def fake_mode() -> Any:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


@contextlib.contextmanager
def given(held: Sequence[torch.Tensor], tensors: Sequence[Any], patient: bool) -> Iterator[None]:
    """In the block the held tensors are these. A trace that meets others ends, unless it is `patient`."""
    tracing = fake_mode() is not None and not patient
    if not held and not tracing:
        yield
        return
    mode = Reaching({id(one): other for one, other in zip(held, tensors, strict=True)})
    failed: Exception | None = None
    with mode:
        try:
            yield
        except Exception as error:
            failed = error
    if mode.met and tracing:
        raise Reached([tensor for tensor, _ in mode.met.values()]) from failed
    if failed is not None:
        raise failed


def holding(
    program: Callable[..., Sequence[Any]], compile_with: Callable[[Callable[..., Any], list[Any]], Any]
) -> tuple[Any, list[torch.Tensor]]:
    """Compile a program; what it reaches by itself is given to it, after its own inputs. Also gives those tensors."""
    held: list[torch.Tensor] = []
    for attempt in range(ATTEMPTS):
        known, patient = list(held), attempt == ATTEMPTS - 1

        def whole(*tensors: Any, known: list[torch.Tensor] = known, patient: bool = patient) -> Sequence[Any]:
            count = len(tensors) - len(known)
            with given(known, tensors[count:], patient):
                return program(*tensors[:count])

        try:
            return compile_with(whole, known), known
        except Reached as reached:
            held += reached.tensors
    raise AssertionError("the last attempt is patient")
