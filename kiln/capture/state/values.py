"""Values of the symbolic interpreter.

Kiln interprets bytecode over *shadows*: ordinary Python objects that stand for what the program would have. A list
made by the program is a real list, its string a real string; only what must not be touched while tracing differs:

- a tensor is a ``FakeTensor`` (no data) that the :class:`~kiln.capture.state.trace.Trace` maps to a graph node;
- an argument, global or attribute that nobody has looked at yet is a :class:`Lazy`;
- a mutable object that came from outside (a list, a dict, an instance, a cell) is a *copy*, described by a
  :class:`Record`, so that mutations stay in the copy until the graph has run;
- a size or number that may vary is a ``torch.SymInt``/``SymFloat``.

So builtins, containers, strings and iterators need no re-implementation: they run natively, on shadows.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import torch
import torch.fx

from ...platform.light_dataclass import dataclass
from ..guards.source import Source

CONSTANT_TYPES: frozenset[type] = frozenset(
    {int, float, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), types.CodeType, range}
)

DELETED = object()  # marks a name or attribute that the program deleted


@dataclass(frozen=True)
class Place:
    """Where a frame is."""

    code: types.CodeType
    index: int  # of the instruction
    looped: bool  # it may have been there before
    location: tuple[str, int, str] | None  # None in Kiln's own code


class GraphBreak(BaseException):
    """Capture cannot go on past the current instruction. Not an ``Exception``: user code must never catch it."""

    def __init__(
        self,
        reason: str,
        hint: str = "",
        *,
        culprit: object = None,
        error: BaseException | None = None,
        whole: bool = False,
        instead: BaseException | None = None,
        raises: type[BaseException] | None = None,
    ):
        super().__init__(reason)
        self.whole = whole  # nothing of the frame is to be captured: it runs in eager
        self.reason = reason
        self.hint = hint
        self.culprit = culprit  # the value to blame, where its creation should have been the break
        self.error = error  # what the operation raised on fake tensors: eager would most likely raise it too
        self.instead = instead  # what to raise, where no break is allowed, in place of the error that says so
        self.raises = raises  # what the program raises there, which leaves the frame
        self.places: list[Place] = []  # of each interpreted frame, outermost first

    @property
    def stack(self) -> list[tuple[str, int, str]]:
        """(file, line, function) of each frame that is the user's."""
        return [place.location for place in self.places if place.location is not None]


def forget_frames(error: BaseException) -> None:
    """Take the traceback off an exception that is kept, and cut it off from the exceptions behind it.

    Frames of the compiler hold the program's objects, and the exception, in a circle that waits for the garbage
    collector. Until then a tensor among them keeps its autograd graph, and that the nodes that accumulate into leaves.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None


class Raised(BaseException):
    """The *program* raised this exception (as opposed to a bug in Kiln)."""

    def __init__(self, error: BaseException):
        super().__init__(error)
        self.error = error


class Restart(BaseException):
    """Trace the frame again: something learnt on the way changes its beginning."""


class Lazy:
    """A real value behind a source, not looked at yet, hence not guarded."""

    __slots__ = ("done", "real", "source", "value")

    def __init__(self, real: object, source: Source):
        self.real = real
        self.source = source
        self.done = False
        self.value: object = None  # the shadow, once somebody looked

    def _leaked(self, *_: object) -> Any:
        """Native code must never look at one of these: better no graph than a wrong one."""
        raise GraphBreak(f"{self.source.describe()} reached native code unseen", "report this to Kiln's authors")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _leaked
    __hash__ = __bool__ = __str__ = __repr__ = __format__ = __len__ = __iter__ = __contains__ = _leaked
    __int__ = __float__ = __index__ = __call__ = __getitem__ = __add__ = __radd__ = __mul__ = __rmul__ = _leaked


class Kind(enum.Enum):
    """How a record's contents are compared and written back."""

    LIST = "list"
    DICT = "dict"
    SET = "set"
    DEQUE = "deque"
    OBJECT = "object"
    CELL = "cell"


@dataclass(eq=False)
class Record:
    """A mutable object from outside: its shadow, and what it held when capture first saw it."""

    shadow: Any
    real: Any
    source: Source
    kind: Kind
    items: Any = None  # contents on arrival (list, dict or tuple of shadows)
    attributes: dict[str, object] | None = None  # instance dictionary on arrival
    slots: dict[str, object] = field(default_factory=dict)  # slot name -> value on arrival, as read
    loaded: bool = False  # the keys or the whole contents are guarded
    order: tuple[Any, ...] = ()  # a set's iteration order
    iterator: Iterator[Any] | None = None  # over a deque's shadow: raises once elements came or went


@dataclass(eq=False)
class TensorInfo:
    """What capture knows of a fake tensor."""

    fake: torch.Tensor
    node: torch.fx.Node
    kind: type  # the Python type that the program sees
    source: Source | None = None
    real: Any = None  # the real tensor, for graph inputs
    attributes: dict[str, object] = field(default_factory=dict)  # Python attributes the program set on it
    grad_set: bool = False
    data_set: bool = False  # the program has given it other memory

    @property
    def input_source(self) -> Source:
        """The source of a tensor that is a graph input."""
        assert self.source is not None
        return self.source


class Opaque:
    """A graph value that is not a tensor (a handle returned by an operator): only another graph call may take it."""

    def __init__(self, node: torch.fx.Node) -> None:
        self.node = node


class HandleNumber(int):
    """Stands for the number that the handle of a hook is going to have: more than any that there is."""


class Trampoline:
    """A Python callable handed to native code: calling it comes back into the interpreter."""

    __slots__ = ("__weakref__", "function", "invoke")

    def __init__(self, function: object, invoke: Callable[..., Any]):
        self.function = function
        self.invoke = invoke

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.invoke(self.function, args, kwargs)


class SpecialMethod:
    """A special method that is no function: called with an object, it is first bound to it, as an attribute is."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name


EVALUATED: weakref.WeakKeyDictionary[types.FunctionType, tuple[object, object]] = weakref.WeakKeyDictionary()
"""Functions made inside (from 3.14 on) -> what evaluated their annotations when they were read, and the annotations.

A function in Python keeps both, too, but nothing in Python can put both there.
"""


def same_value(before: object, now: object) -> bool:
    """Whether a place still holds what it held: the same shadow, looked at since or not."""
    return before is now or (type(before) is Lazy and before.done and before.value is now)


def new_tuple(kind: type, items: list[Any]) -> tuple[Any, ...]:
    """A tuple of some class with these elements, past any ``__new__`` in Python."""
    if kind is tuple:
        return tuple(items)
    native = kind.__module__ in ("torch", "torch.return_types")  # they check their elements and refuse tuple.__new__
    return kind(items) if native else tuple.__new__(kind, items)


def is_struct(kind: type) -> bool:
    """Whether a class of tuples is a native one that may have more fields than elements (``time.struct_time``)."""
    return "n_sequence_fields" in kind.__dict__ and kind.__module__ != "torch.return_types"


def unwrap(value: object) -> object:
    """The program's callable behind a trampoline; anything else as it is."""
    return value.function if type(value) is Trampoline else value


@dataclass(eq=False)
class TensorSuper:
    """``super(start, tensor)``: Python's own would look at the class of the fake."""

    start: type
    owner: torch.Tensor


@dataclass(eq=False)
class BreakPoint:
    """Where a root frame has to stop: an instruction, the n-th time it is reached."""

    index: int
    visit: int
    reason: GraphBreak


class InterpretedIterator:
    """The base of iterators whose code is interpreted."""
