"""A recorder of CUDA graphs for machines without a GPU: programs on the CPU, recorded as torch records them.

As with a CUDA graph, recording changes nothing and results have no content until the recording runs; it then reads and
writes the addresses that it was recorded with, whoever owns that memory now. It also overwrites the results of later
recordings of its pool, since these may lie where its intermediate values are.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import torch

GARBAGE = 77  # the byte that memory without content has


def at_address(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that does not keep it alive."""
    spread = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)) + 1
    count = spread * tensor.element_size() if tensor.numel() else 0
    if not count:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_ubyte * count).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


class StandInGraph:
    """One recording."""

    def __init__(self, recorder: StandInRecorder, program: Any, arguments: list[Any], results: Any, pool: Any) -> None:
        self.recorder, self.program, self.pool = recorder, program, pool
        self.arguments = [at_address(value) if isinstance(value, torch.Tensor) else value for value in arguments]
        given = {value.untyped_storage().data_ptr() for value in arguments if isinstance(value, torch.Tensor)}
        self.results = [
            at_address(value)
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in given
            else None
            for value in results
        ]
        self.spoil()

    def spoil(self) -> None:
        for result in self.results:
            if result is not None and result.numel():
                ctypes.memset(result.data_ptr(), GARBAGE, result.numel() * result.element_size())

    def __call__(self) -> None:
        self.recorder.replays += 1
        found = self.program(list(self.arguments))
        for result, value in zip(self.results, found, strict=True):
            if result is not None:
                result.copy_(value)
        for other in self.recorder.later_in_pool(self):
            other.spoil()


class StandInRecorder:
    def __init__(self) -> None:
        self.turn = contextlib.nullcontext()
        self.records = self.replays = 0
        self.graphs: dict[int, list[weakref.ref[StandInGraph]]] = {}
        self.recording = False  # set it to have a recording of the user's
        self.fails: Exception | None = None  # what recording raises

    def is_recording(self) -> bool:
        return self.recording

    def new_pool(self) -> int:
        self.graphs[len(self.graphs)] = []
        return len(self.graphs) - 1

    def record(
        self, program: Callable[[list[Any]], Any], arguments: list[Any], pool: int
    ) -> tuple[tuple[Any, ...], Callable[[], None]]:
        if self.fails is not None:
            raise self.fails
        self.records += 1
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        before, state = [value.detach().clone() for value in tensors], torch.get_rng_state()
        results = tuple(program(list(arguments)))
        torch.set_rng_state(state)
        for value, content in zip(tensors, before, strict=True):
            at_address(value).copy_(content)
        graph = StandInGraph(self, program, arguments, results, pool)
        self.graphs[pool].append(weakref.ref(graph))
        return results, graph

    def later_in_pool(self, graph: StandInGraph) -> list[StandInGraph]:
        living = [found for reference in self.graphs[graph.pool] if (found := reference()) is not None]
        return living[living.index(graph) + 1 :]

    def living(self) -> int:
        """How many recordings there are."""
        return sum(reference() is not None for references in self.graphs.values() for reference in references)
