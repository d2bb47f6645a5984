"""The state of one capture: graph, guards, records of outside objects, globals written, and where we are.

Everything the interpreter, the recorder and the rebuilder share lives here, and nothing else. A trace is used once:
when something learnt late changes the beginning (a break inside an inlined call), capture starts over with a new one.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.nn import Parameter

from ..._native import is_instance as isinstance
from ...config import config
from ...program.graph import Graph
from ...program.shapes.fake_tensors import make_mode
from ..guards.guards import GuardSet, plain
from ..guards.hints import Hints
from ..guards.source import Attribute, GlobalsOf, Identity, InstanceAttribute, Item, Pinned, Source
from .annotations import Tables
from .operations import operations
from .values import DELETED, GraphBreak, Kind, Lazy, Place, Raised, Record, TensorInfo, Trampoline

if TYPE_CHECKING:
    from ..interpreter.frame import Frame, RootFrame
    from ..interpreter.generators import InterpretedGenerator
    from ..python.logging_calls import LogLine


@dataclass
class Options:
    """What ``kiln.compile`` was told, for every frame compiled on its behalf."""

    backend: object
    backend_name: str
    fullgraph: bool = False
    dynamic: bool | None = None
    options: dict = field(default_factory=dict)
    on_recompile: Callable[[types.FunctionType, str], object] | None = None
    compiled_autograd: bool = False  # what is called enables the engine; captured code is the same
    backward: Callable | None = field(default=None, compare=False, repr=False)  # compiles the engine's graphs
    users: weakref.WeakSet = field(default_factory=weakref.WeakSet, compare=False, repr=False)  # what compile() gave
    routed: weakref.WeakSet = field(default_factory=weakref.WeakSet, compare=False, repr=False)  # see routing.py

    def __reduce__(self) -> tuple:
        """Copies and pickles have what was asked for, and nothing that was compiled."""
        return Options, tuple(getattr(self, each.name) for each in fields(self) if each.compare)


LOOK_EVERY = 1000
"""After how many steps to see whether capture gets anywhere."""


class Trace:
    """One attempt at capturing one frame."""

    def __init__(self, function: types.FunctionType, options: Options, hints: Hints):
        from ...program.consumed_lists import consumed  # which needs this file

        self.function = function
        self.options = options
        self.hints = hints  # what varied between calls
        self.stolen, self.examples = consumed(function)  # lists that the graph consumes, and what is told of items
        self.lines_shown: dict[tuple[str, int, str], str] = {}  # lines of the program as stack traces show them
        self.tampered: dict[int, int] = {}  # memory that hooks changed -> facts known then
        self.facts: list[tuple[object, object, tuple[int, int]]] = []  # getter, object, root instruction
        self.deferred: list[tuple[object, tuple, dict]] = []  # calls to be made after the graph (deferring.py)
        self.guards = GuardSet()
        self.listed = Tables()  # functions that annotations of torch's are about
        self.graph = Graph()
        self.tensors: dict[int, TensorInfo] = {}
        self.inputs: list[TensorInfo | SymbolInput | ObjectInput] = []
        self.numbers: dict[str | Source, SymbolInput] = {}  # of these, the symbols, by their names and by their sources
        self.memory: dict[int, list[TensorInfo]] = {}  # inputs by the memory of their fakes, the first so many of them
        self.placed = 0
        self.numbered: dict[tuple[str, int], int] = {}  # tensors and memory from outside (input_state.py)
        self.by_real: dict[int, Record] = {}
        self.by_shadow: dict[int, Record] = {}
        self.pending: dict[int, Any] = {}  # id of a list only appended to -> appending.Pending
        self.sources: dict[int, Source] = {}  # id of an identity value (function, class, module …) -> source
        self.globals: dict[int, tuple[dict, dict[str, object]]] = {}  # globals written: id -> (dict, name -> value)
        self.created: dict[int, tuple[object, tuple[int, int]]] = {}  # id of what cannot be rebuilt -> (it, where)
        self.tracebacks: dict[int, types.TracebackType] = {}  # id of an exception -> what stands for its traceback
        self.foreign: dict[int, object] = {}  # outside objects of unknown kinds: themselves, not to be looked into
        self.copies: dict[int, tuple[object, Source]] = {}  # id of an immutable object from outside -> (copy, source)
        self.disordered: dict[int, set] = {}  # sets from outside whose shadows iterate in another order
        self.iterated: dict[int, tuple[object, object]] = {}  # id of an iterator over one of them -> (it, the set)
        self.namespaces: dict[int, tuple[object, str]] = {}  # id of a dictionary that is an attribute -> owner, name
        self.registrations: dict[int, Any] = {}  # id of a handle made here -> registrations.Registration
        self.handles: dict[int, Any] = {}  # id of a handle made here for a dictionary of hooks -> handles.MadeHandle
        self.removals: dict[int, Any] = {}  # id of a handle from outside -> handles.Removal
        self.function_calls: dict[int, Any] = {}  # id -> function_backward.FunctionCall
        self.origins: dict[object, TensorInfo] = {}  # where inputs with a history join autograd's graph
        self.approximate = False  # the history of some fake is not that of the real tensor
        self.reads: list[tuple[Source, object]] | None = None  # what the program looks at, where somebody asks
        self.contexts: dict[Source, dict[str, object]] = {}  # of autograd functions -> what was read natively
        self.gradient_nodes: dict[int, TensorInfo] = {}  # id of a node of autograd's graph -> a tensor that it makes
        self.rehearsing = 0  # inside a method that native code is going to run again (hashing.py)
        self.rehearsed = False
        self.ordered: list[Record] = []  # dictionaries of hooks that are guarded by order (module_hooks.py)
        self.glanced: dict[int, Lazy] = {}  # what the program reached, by id
        self.instance_dictionaries: set[int] = set()  # ids of those of objects that have shadows
        self.keep: list[object] = []  # ids above stay valid while these live
        self.root: RootFrame
        self.frames: list[Frame] = []
        self.links: dict[int, tuple] = {}  # id of an exception on its way through native code -> (it, what it links to)
        self.generators: weakref.WeakSet[InterpretedGenerator] = weakref.WeakSet()  # of the program, alive
        self.unsettled: tuple[int, int] | None = None  # where a generator was made that could not be closed
        self.active = True  # objects that are dropped now are dropped by the program
        self.caller_handles = sys.exception() is not None  # the captured function was called in an except block
        self.handled: BaseException | None = None  # what sys.exc_info() would say in the program
        self.instructions = 0  # steps of loops, and calls
        self.next_look = min(LOOK_EVERY, config.max_instructions + 1)
        self.progress = (0, 0)  # how much had been interpreted when the graph was last seen to grow, and its size
        self.entered = 0  # frames inlined and builtins run so far: an instruction that breaks after one runs again
        self.outdated = False  # capture is to start over: what it was told at its beginning is no longer true
        self.effects: list[str] = []  # why re-running the frame in eager would not be the same (mutation, RNG)
        self.locks: dict[int, Any] = {}  # id -> a lock that the program took
        self.locks_held: list[object] = []
        self.logged: list[LogLine] = []  # lines for loggers
        self.changed: dict[int, TensorInfo] = {}  # inputs that operations of the graph change
        self.rewritten: dict[int, TensorInfo] = {}  # those of them that autograd follows through the change
        self.beyond_rewind = False  # something may raise after that (only under fullgraph)
        self.raises_late = False  # an operation that may raise comes after such an effect
        self.written_from: dict[int, TensorInfo] = {}  # inputs written to from other inputs, and those others
        self.protected = False  # an operation was captured inside a try block
        self.sheltered = False  # or inside a with block, whose manager may swallow what it raises
        self.modes: list[object] = []  # torch-function modes that the program sees as active
        self.outer_modes: list[object] = []  # those of them that were entered outside
        self.function_level = self.outer_level = 0  # how much of __torch_function__ is off (see overrides.py)
        self.subclassed = False  # a tensor of a class of the program's was seen
        self.overriding = False  # a tensor whose class has a __torch_function__ of its own was seen
        self.copied: dict[int, TensorInfo] = {}  # inputs that were deep-copied, each into memory of its own
        self.conversions: dict[int, type] = {}  # place among the graph's outputs -> class that it gets afterwards
        self.constants: dict[str, object] = {}  # attributes of the graph module
        self.regions: list[Any] = []  # checkpoints.Region: nodes that the backward pass computes anew
        self.inference_modes: list[object] = []  # entered by the program while tracing, and so for real
        self.inference_used = False  # the graph enters inference mode
        self.state_changed = False  # grad mode, autocast … were set while tracing
        self.symbols: dict[str, Source] = {}  # symbolic size name -> where it is read
        self.environment = FakeEnvironment()

    def discard(self) -> None:
        """Let go of the program's objects now, not when the garbage collector comes round: dropping one can be seen."""
        self.active = False
        for record in self.by_shadow.values():
            forget(record)
        for part in vars(self).values():
            if type(part) is dict:
                part.clear()
        self.facts.clear()
        self.deferred.clear()
        for frame in (self.root, *self.frames):
            frame.stack.clear()
            frame.locals.clear()
            frame.cells.clear()
            frame.result = None
        self.root.arguments.clear()
        for held in (self.keep, self.inputs, self.frames, self.facts, self.deferred):
            held.clear()  # type: ignore[attr-defined]
        self.handled = None

    # -- places ---------------------------------------------------------------------------------------------------

    def location(self) -> list[tuple[str, int, str]]:
        """(file, line, function) of each interpreted frame, outermost first."""
        return [frame.location() for frame in self.frames if frame.is_of_user()]

    def stack_trace(self) -> str:
        import linecache

        text, known = "", self.lines_shown
        for place in self.location():
            if place not in known:
                file, line, name = place
                known[place] = f'  File "{file}", line {line}, in {name}\n    {linecache.getline(file, line).strip()}\n'
            text += known[place]
        return text

    def fail(self, reason: str, hint: str = "", **details: object) -> GraphBreak:
        """The graph break to raise: ``raise trace.fail("…")``."""
        error = GraphBreak(reason, hint, **details)  # type: ignore[arg-type]
        error.places = [
            Place(frame.code, frame.index, frame.looped, frame.location() if frame.is_of_user() else None)
            for frame in self.frames
        ]
        return error

    # -- records and sources --------------------------------------------------------------------------------------

    def remember(self, record: Record) -> object:
        self.by_real[id(record.real)] = record
        self.by_shadow[id(record.shadow)] = record
        self.keep.append(record)
        self.guards.distinct.setdefault(record.source)
        return record.shadow

    def record_of(self, value: object) -> Record | None:
        return self.by_shadow.get(id(value))

    def name_source(self, value: object, source: Source) -> None:
        if id(value) not in self.sources:
            self.sources[id(value)] = source
            self.keep.append(value)

    def source_of(self, value: object) -> Source | None:
        record = self.by_shadow.get(id(value))
        return record.source if record is not None else self.sources.get(id(value))

    def pinned(self, value: object) -> Source:
        """The value's source; one that holds it if nothing else leads there."""
        source = self.source_of(value)
        if source is None:
            source = Pinned(Identity(value))
            self.name_source(value, source)
        return source

    def mark_unbuildable(self, value: object) -> None:
        """Note where a value was made that no code can make again (a running generator)."""
        self.created[id(value)] = (value, self.place())

    def place(self) -> tuple[int, int]:
        """The root instruction being executed, and for which time."""
        return self.root.index, self.root.visits[self.root.index]

    def place_made(self, value: object) -> tuple[int, int] | None:
        made = self.created.get(id(value))
        return made[1] if made is not None else getattr(value, "made_at", None)

    # -- globals --------------------------------------------------------------------------------------------------

    def globals_source(self, namespace: dict) -> Source:
        return GlobalsOf(None if namespace is self.function.__globals__ else Identity(namespace))

    def written_globals(self, namespace: dict) -> dict[str, object]:
        return self.globals.setdefault(id(namespace), (namespace, {}))[1]

    def load_global(self, namespace: dict, name: str) -> object:
        """A global as the program sees it: written by it, or outside (guarded), or a builtin."""
        written = self.globals.get(id(namespace))
        if written is not None and name in written[1]:
            value = written[1][name]
            if value is DELETED:
                raise Raised(NameError(f"name {name!r} is not defined", name=name))
            return value
        source = self.globals_source(namespace)
        if name in namespace:
            return self.glance(Lazy(namespace[name], Item(source, name)))
        builtins = namespace.get("__builtins__", __builtins__)
        builtins = builtins.__dict__ if isinstance(builtins, types.ModuleType) else builtins
        self.guards.add(source, "lacks_key", name)
        if name not in builtins:
            raise Raised(NameError(f"name {name!r} is not defined", name=name))
        value = builtins[name]
        self.guards.add(Item(GlobalsOf(Identity(builtins)), name), "identity", value)
        return value

    def glance(self, value: object) -> object:
        """The program has reached a value, and perhaps never looks at it: at least that it is there is assumed."""
        if type(value) is Lazy and not value.done:
            self.glanced[id(value)] = value
        return value

    def assume_presence(self) -> None:
        """Guard what was reached and not looked at, once capture is done. (Of sequences the length is guarded.)"""
        types = {guard.source: plain(guard.value) for guard in self.guards if guard.kind == "type"}
        for value in self.glanced.values():
            source = value.source
            if value.done:
                continue
            if isinstance(source, InstanceAttribute):
                self.guards.add(source.base, "has_attribute", source.name)
            elif isinstance(source, Item) and issubclass(types.get(source.base, dict), dict):
                self.guards.add(source.base, "has_key", source.key)
            elif isinstance(source, Attribute) and source.name == "cell_contents":
                self.guards.add(source.base, "full_cell")

    def count_jump(self) -> None:
        """A step of a loop, or a call: bound the length of a capture, since a loop without end must end in a break."""
        self.instructions += 1
        if self.instructions >= self.next_look:
            self.look_at_progress()

    def look_at_progress(self) -> None:
        """Give up where capture does not come to an end, or only computes what Python computes much faster."""
        self.next_look = min(self.instructions + LOOK_EVERY, config.max_instructions + 1)
        if self.instructions > config.max_instructions:
            raise self.fail("a loop that goes on and on", "is it without end? Otherwise let it run outside the graph")
        work, nodes = self.instructions + self.entered, len(self.graph.nodes)
        if nodes != self.progress[1]:
            self.progress = (work, nodes)
        elif work - self.progress[0] > config.max_idle_steps and not self.options.fullgraph:
            raise self.long_computation()

    def long_computation(self) -> GraphBreak:
        """The break for what Python computes much faster; for the whole frame where nothing was captured yet."""
        nothing = all(node.op == "placeholder" for node in self.graph.nodes)
        hint = "compute it outside the compiled function"
        return self.fail("a long computation without tensors", hint, whole=nothing)

    # -- tensors --------------------------------------------------------------------------------------------------

    def tensor_info(self, value: object) -> TensorInfo:
        info = self.tensors.get(id(value))
        if info is None:
            raise self.fail("a tensor that capture has not seen being made", "report this to Kiln's authors")
        return info

    def add_tensor(self, info: TensorInfo) -> object:
        self.tensors[id(info.fake)] = info
        self.keep.append(info)
        if info.kind is not torch.Tensor and info.kind is not Parameter:
            self.subclassed = True
        return info.fake

    def invoke(self, function: object, args: tuple, kwargs: dict) -> object:
        """Native code calls a Python callable of the program: back into the interpreter."""
        from .exceptions import as_native

        with as_native(self), operations.back_from_native():
            return operations.force(
                self, operations.call(self, function, tuple([operations.unproxy(arg) for arg in args]), kwargs)
            )

    def trampoline(self, function: object) -> Trampoline:
        return Trampoline(function, self.invoke)


def forget(record: Record) -> None:
    """Let a shadow know nothing of the real object: shadows that refer to each other live until they are collected."""
    record.real = None
    held = record.items.values() if isinstance(record.items, dict) else record.items
    for value in (*(record.attributes or {}).values(), *(held or ())):  # type: ignore[misc]
        if type(value) is Lazy:
            value.real = value.value = None


@dataclass(eq=False)
class SymbolInput:
    """A symbolic number as a graph input."""

    symbol: str
    source: Source
    node: torch.fx.Node
    value: object
    real: int | float  # what it is in this call


@dataclass(eq=False)
class ObjectInput:
    """An object that operations take (a random generator) as a graph input."""

    source: Source
    node: torch.fx.Node
    value: object


class FakeEnvironment:
    """Fake tensors, and symbolic sizes only once something is symbolic (sympy costs half a second to import)."""

    def __init__(self) -> None:
        self._mode: Any = None
        self._shapes: Any = None
        self.storages: dict[int, Any] = {}  # real storage -> its fake

    @property
    def mode(self) -> Any:
        """The mode under which operations run on fakes."""
        if self._mode is None:
            self._mode = make_mode(shape_env=self._shapes, allow_non_fake_inputs=False)
        return self._mode

    @property
    def shapes(self) -> Any:
        """The symbols and what is assumed of them."""
        if self._shapes is None:
            from torch.fx.experimental.symbolic_shapes import ShapeEnv

            self._shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
            if self._mode is not None:
                self._mode.shape_env = self._shapes
                self._mode.static_shapes = False
        return self._shapes


__all__ = ["FakeEnvironment", "Kind", "ObjectInput", "Options", "SymbolInput", "Trace"]
