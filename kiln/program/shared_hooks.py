"""A hook for the gradients of several tensors (``register_multi_grad_hook``) where a compiled backward computes some.

Each tensor gets a part, a hook of its own. In mode "all" the part that is called last in a backward pass calls the hook
with everybody's gradients; how many will be called is known from the nodes of autograd's graph that torch is going to
run. In mode "any" the first part does. Torch's own function wants every tensor to have a node to itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any

import torch

from ..platform.light_dataclass import dataclass
from ..platform.torch_autograd import current_graph_task_id, current_node, will_execute


class Tasks(threading.local):
    outer: int | None = None  # the backward pass that another one, inside it, works for


_tasks = Tasks()


@dataclass
class Progress:
    """How far a backward pass has come."""

    expected: int
    seen: int
    gradients: list[torch.Tensor | None]


@dataclass(eq=False)
class SharedHook:
    """The hook, and where its parts are."""

    hook: Callable[..., object]
    mode: str
    nodes: list[Any]  # of autograd's graph
    compiled: list[bool]  # which of the nodes are compiled backwards, with the tensor somewhere inside
    lock: threading.Lock = field(default_factory=threading.Lock)
    progress: dict[int, Progress] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def part(self, place: int) -> Callable[[torch.Tensor], None]:
        """The hook of one of the tensors."""

        def inner_hook(gradient: torch.Tensor) -> None:
            self.take(place, gradient)

        attributes: Any = inner_hook
        attributes.shared = self
        return inner_hook

    def begin(self, task: int) -> Progress:
        """The progress of a backward pass; called while the pass runs."""
        if task not in self.progress:
            expected = sum(map(self.runs, range(len(self.nodes))))
            self.progress[task] = Progress(expected, 0, [None] * len(self.nodes))
        return self.progress[task]

    def runs(self, place: int) -> bool:
        """Whether a part is going to be called. Torch does not count the node that a backward pass begins with."""
        node = self.nodes[place]
        if self.compiled[place] and current_node() is node:
            return True
        return will_execute(node)

    def take(self, place: int, gradient: torch.Tensor) -> None:
        task = _tasks.outer if _tasks.outer is not None else current_graph_task_id()
        if task == -1:
            raise AssertionError("expected this hook to be called inside a backward call")
        if self.mode == "any":
            with self.lock:
                first = task not in self.done
                self.done.add(task)
            if first:
                self.hook(gradient)
            return
        with self.lock:
            progress = self.begin(task)
            progress.gradients[place] = gradient
            progress.seen += 1
            complete = progress.seen == progress.expected
        if complete:
            self.hook(progress.gradients)
            del self.progress[task]


@contextlib.contextmanager
def on_behalf(hooks: Iterable[object]) -> Iterator[None]:
    """While one backward pass runs another to do its work: these hooks, called there, are its own."""
    before, task = _tasks.outer, current_graph_task_id()
    if task != -1 and before is None:
        _tasks.outer = task
        for shared in {getattr(hook, "shared", None) for hook in hooks}:
            if isinstance(shared, SharedHook) and shared.mode == "all":
                shared.begin(task)
    try:
        yield
    finally:
        _tasks.outer = before
