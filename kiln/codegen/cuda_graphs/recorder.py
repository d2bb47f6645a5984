"""Recording work of a GPU into a CUDA graph with torch's public interface, and running it on torch's current stream.

`Recorder` is what recorded programs need of a device. `CudaRecorder` is that of a GPU; tests have one without.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ...platform.locks import new_lock
from ...platform.torch_devices import raw_stream_reader
from ...program.quiet import without_collections

Boxed = Callable[[list[Any]], Any]


class Recorder(Protocol):
    """Records programs of one device. Arguments are copied into a recording, it runs, and results are copied out of it
    in a block of ``turn``: nothing that other threads or streams do with recordings comes in between."""

    turn: contextlib.AbstractContextManager[None]

    def is_recording(self) -> bool:
        """Whether the current stream is recorded, by whomever: then nothing else can be."""

    def new_pool(self) -> Any:
        """A pool of memory for recordings."""

    def record(self, program: Boxed, arguments: list[Any], pool: Any) -> tuple[tuple[Any, ...], Callable[[], None]]:
        """The results of a program, whose content is there once the function that comes with them has run. It runs the
        work again that the program does for these arguments, at the same addresses."""


@functools.cache
def recorder_for(device: torch.device) -> Recorder:
    return CudaRecorder(device.index or 0)


class CudaRecorder:
    """Records on a stream of its own, so that all recordings use the same workspaces of libraries, outside of any pool.

    Therefore, and because recordings of a pool share memory, they run one after the other, on whichever streams."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.stream = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        self.raw_stream = raw_stream_reader()
        self.lock = new_lock()
        self.last_stream: int | None = None  # that a recording ran on
        # After the last recording, if that ran on a stream that a user made.
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.threads = threading.local()
        self.turn: contextlib.AbstractContextManager[None] = Turn(self)

    def is_recording(self) -> bool:
        if torch.cuda.current_device() == self.index:
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(self.index):
            return torch.cuda.is_current_stream_capturing()

    def new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def record(self, program: Boxed, arguments: list[Any], pool: Any) -> tuple[tuple[Any, ...], Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        # Errors in other threads, which may well call what this thread must not while it records, are theirs.
        with self.lock, torch.cuda.device(self.index), torch.cuda.stream(self.stream), without_collections():
            self.prepare_thread()
            torch.cuda.synchronize()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                results = program(list(arguments))
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the recording is not complete
                    graph.capture_end()
                raise
            graph.capture_end()
        return tuple(results), graph.replay

    def prepare_thread(self) -> None:
        """Have the thread's handle and workspace of cuBLAS made, which would otherwise lie in the first pool."""
        if not hasattr(self.threads, "is_ready"):
            small = torch.zeros(8, 8, device=torch.device("cuda", self.index))
            torch.mm(small, small)
            self.threads.is_ready = True

    def wait_for_last(self) -> None:
        """Have the current stream wait for what runs on the stream of the last recording."""
        current = torch.cuda.current_stream(self.index)
        if self.last_stream == 0:
            current.wait_stream(torch.cuda.default_stream(self.index))
        elif self.last_stream is not None:
            current.wait_event(self.done)


class Turn(contextlib.AbstractContextManager[None]):
    """A block in which recordings run on the current stream: after all that ran in earlier blocks, on any stream."""

    def __init__(self, recorder: CudaRecorder) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        recorder = self.recorder
        recorder.lock.acquire()
        try:
            stream = recorder.raw_stream(recorder.index)
            if stream != recorder.last_stream:
                recorder.wait_for_last()
                recorder.last_stream = stream
        except BaseException:
            recorder.lock.release()
            raise

    def __exit__(self, *raised: object) -> None:
        recorder = self.recorder
        try:
            if recorder.last_stream:  # not the default one, which lives as long as the process
                recorder.done.record(torch.cuda.current_stream(recorder.index))
        finally:
            recorder.lock.release()
