"""Tensors that a traced function closes over: they become inputs like the others.

A function that closes over a parameter computes with it: the compiled graph must read its value in each call, and give
it its gradient. While such a function is traced a mode sees the arguments of every torch function; a real tensor among
them is not an input. The trace is then done again with those tensors as inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..platform.torch_dispatch import active_fake_mode
from ..platform.torch_fake import FakeTensor
from ..platform.torch_pytree import tree_map_only
from .wrapper_subclasses import inner_tensors

ATTEMPTS = 3  # tensors that are made anew in each trace are never inputs


class FoundTensors(BaseException):
    """A trace has used tensors that are no inputs. (No Exception: programs do not catch it.)"""

    def __init__(self, tensors: list[torch.Tensor]):
        super().__init__()
        self.tensors = tensors


class ClosureMode(TorchFunctionMode):
    """Replaces known tensors by inputs, and notes those that are not known."""

    def __init__(self, known: dict[int, Any]):
        super().__init__()
        self.known = known
        self.found: dict[int, tuple[torch.Tensor, Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, self.replace, (args, kwargs or {}))
        return func(*args, **kwargs)

    def replace(self, tensor: torch.Tensor) -> Any:
        if id(tensor) in self.known:
            return self.known[id(tensor)]
        mode = active_fake_mode()
        if mode is None or any(isinstance(inner, FakeTensor) for inner in inner_tensors(tensor)):
            return tensor
        if id(tensor) not in self.found:
            self.found[id(tensor)] = tensor, mode.from_tensor(tensor, static_shapes=True)
        return self.found[id(tensor)][1]


@contextlib.contextmanager
def replaced(held: Sequence[torch.Tensor], tensors: Sequence[Any], is_last: bool) -> Iterator[None]:
    """In the block the held tensors are these. A trace that uses others ends, unless it is the last attempt."""
    tracing = active_fake_mode() is not None and not is_last
    if not held and not tracing:
        yield
        return
    mode = ClosureMode({id(one): other for one, other in zip(held, tensors, strict=True)})
    failed: Exception | None = None
    with mode:
        try:
            yield
        except Exception as error:
            failed = error
    if mode.found and tracing:
        raise FoundTensors([tensor for tensor, _ in mode.found.values()]) from failed
    if failed is not None:
        raise failed


def compile_closure(
    program: Callable[..., Sequence[Any]], compile_with: Callable[[Callable[..., Any], list[Any]], Any]
) -> tuple[Any, list[torch.Tensor]]:
    """Compile a program with the tensors that it closes over as further inputs. Also gives those tensors."""
    held: list[torch.Tensor] = []
    for attempt in range(ATTEMPTS):
        known, is_last = list(held), attempt == ATTEMPTS - 1

        def whole(*tensors: Any, known: list[torch.Tensor] = known, is_last: bool = is_last) -> Sequence[Any]:
            count = len(tensors) - len(known)
            with replaced(known, tensors[count:], is_last):
                return program(*tensors[:count])

        try:
            return compile_with(whole, known), known
        except FoundTensors as found:
            held += found.tensors
    raise AssertionError("the last attempt raises nothing")
