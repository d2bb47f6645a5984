"""The state of one capture: graph, guards, records of outside objects, globals written, and where we are.

Everything the interpreter, the recorder and the rebuilder share lives here, and nothing else. A trace is used once:
when something learnt late changes the beginning (a break inside an inlined call), capture starts over with a new one.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.nn import Parameter

from ...platform.light_dataclass import dataclass
from ...program.graph import Graph
from ..guards.guards import GuardSet
from ..guards.hints import Hints
from ..state.operations import Args, Kwargs
from .autograd_state import AutogradState, HookState
from .deferred_work import DeferredWork
from .exceptions import ExceptionState, as_native
from .fakes import Fakes
from .graph_effects import GraphEffects
from .graph_inputs import GraphInputs, ObjectInput, SymbolInput
from .operations import operations
from .outside_objects import OutsideObjects
from .progress import Progress
from .torch_modes import Overrides, SwitchChanges
from .unbuildable import Unbuildable
from .values import GraphBreak, Kind, Place, TensorInfo, Trampoline

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ..interpreter.frame import Frame, RootFrame


@dataclass
class Options:
    """What ``kiln.compile`` was told, for every frame compiled on its behalf."""

    backend: object
    backend_name: str
    fullgraph: bool = False
    dynamic: bool | None = None
    options: dict[Any, Any] = field(default_factory=dict)
    on_recompile: Callable[[types.FunctionType, str], object] | None = None
    compiled_autograd: bool = False  # what is called enables the engine; captured code is the same
    backward: Callable[..., Any] | None = field(default=None, compare=False, repr=False)  # compiles the engine's graphs
    users: weakref.WeakSet[Any] = field(
        default_factory=weakref.WeakSet, compare=False, repr=False
    )  # what compile() gave
    routed: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet, compare=False, repr=False)  # see routing.py
    torch_routes: dict[Any, Any] = field(
        default_factory=dict, compare=False, repr=False
    )  # of functions that torch defines

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have what was asked for, and nothing that was compiled."""
        return Options, tuple(getattr(self, each.name) for each in fields(self) if each.compare)


class Trace:
    """One attempt at capturing one frame. What belongs together is a component, with a file of its own."""

    __slots__ = (
        "__weakref__",
        "autograd",
        "deferred",
        "effects",
        "exceptions",
        "fakes",
        "frames",
        "function",
        "graph",
        "guards",
        "hints",
        "hooks",
        "inputs",
        "options",
        "outside",
        "overrides",
        "progress",
        "root",
        "switches",
        "unbuildable",
    )

    def __init__(self, function: types.FunctionType, options: Options, hints: Hints):
        self.function = function
        self.options = options
        self.hints = hints  # what varied between calls
        self.root: RootFrame
        self.frames: list[Frame] = []
        self.graph = Graph()
        self.guards = GuardSet()
        self.fakes = Fakes()
        self.inputs = GraphInputs.of(function)
        self.outside = OutsideObjects(function, self.guards)
        self.effects = GraphEffects()
        self.hooks = HookState()
        self.autograd = AutogradState()
        self.overrides = Overrides()
        self.switches = SwitchChanges()
        self.exceptions = ExceptionState()
        self.unbuildable = Unbuildable()
        self.deferred = DeferredWork()
        self.progress = Progress()

    def discard(self) -> None:
        """Let go of the program's objects now, not when the garbage collector comes round: dropping one can be seen."""
        self.unbuildable.active = False
        self.outside.forget_reals()
        for guard in self.guards.tensors:
            guard.real = None
        self.fakes.infos.clear()
        for component in (
            *(self.inputs, self.outside, self.effects, self.hooks, self.autograd, self.overrides, self.switches),
            *(self.exceptions, self.unbuildable, self.deferred),
        ):
            empty(component)
        for frame in (self.root, *self.frames):
            frame.stack.clear()
            frame.locals.clear()
            frame.cells.clear()
            frame.result = None
        self.root.arguments.clear()
        self.frames.clear()
        self.exceptions.handled = None

    # -- places ---------------------------------------------------------------------------------------------------

    def location(self) -> list[tuple[str, int, str]]:
        """(file, line, function) of each interpreted frame, outermost first."""
        return [frame.location() for frame in self.frames if frame.is_of_user()]

    def stack_trace(self) -> str:
        import linecache

        return "".join(
            f'  File "{file}", line {line}, in {name}\n    {linecache.getline(file, line).strip()}\n'
            for file, line, name in self.location()
        )

    def fail(self, reason: str, hint: str = "", **details: Any) -> GraphBreak:
        """The graph break to raise: ``raise trace.fail("…")``."""
        error = GraphBreak(reason, hint, **details)
        error.places = [
            Place(frame.code, frame.index, frame.looped, frame.location() if frame.is_of_user() else None)
            for frame in self.frames
        ]
        return error

    # -- where values are made -----------------------------------------------------------------------------------

    def mark_unbuildable(self, value: object) -> None:
        """Note where a value was made that no code can make again (a running generator)."""
        self.unbuildable.made[id(value)] = (value, self.place())

    def place(self) -> tuple[int, int]:
        """The root instruction being executed, and for which time."""
        return self.root.index, self.root.visits[self.root.index]

    # -- tensors --------------------------------------------------------------------------------------------------

    def tensor_info(self, value: object) -> TensorInfo:
        info = self.fakes.infos.get(id(value))
        if info is None:
            raise self.fail("a tensor that capture has not seen being made", "report this to Kiln's authors")
        return info

    def add_tensor(self, info: TensorInfo) -> object:
        self.fakes.infos[id(info.fake)] = info
        self.outside.keep.append(info)
        if info.kind is not torch.Tensor and info.kind is not Parameter:
            self.overrides.has_subclasses = True
        return info.fake

    def invoke(self, function: object, args: Args, kwargs: Kwargs) -> Any:
        """Native code calls a Python callable of the program: back into the interpreter."""
        with as_native(self), operations.back_from_native():
            return operations.force(
                self, operations.call(self, function, tuple([operations.unproxy(arg) for arg in args]), kwargs)
            )

    def trampoline(self, function: object) -> Trampoline:
        return Trampoline(function, self.invoke)


def empty(component: DataclassInstance) -> None:
    """Empty the containers of a component."""
    for each in fields(component):
        part = getattr(component, each.name)
        if type(part) in (dict, list, set):
            part.clear()


__all__ = ["Kind", "ObjectInput", "Options", "SymbolInput", "Trace"]
