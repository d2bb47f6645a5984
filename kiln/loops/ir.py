"""The loop IR: an element of a tensor as a function of the position in a space of loops.

An `Expr` is a scalar expression over a space of some rank. Its leaves are affine in the position: a load reads
``buffer[offset + sum(stride * position)]``, an iota is such a sum itself. A view of an expression only changes these
strides and offsets (tensor_views.py). So no index arithmetic has to be simplified, and one number tells whether a load
is contiguous, constant or strided along a loop.

A `Write` stores an expression in a buffer at each point of a space, or its reduction along some axes. Lowering
(lower/lowering.py) turns a graph into a list of writes and calls of ATen; fusion (lower/schedule/fusion.py) makes
kernels of writes. `show` prints expressions.

Expressions are interned: equal expressions are one object, so they are compared with ``is``. Sizes, strides and offsets
are ints, or sympy expressions where shapes are dynamic.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import torch

from ..platform.light_dataclass import dataclass
from .philox import Draws
from .sizes import Size, Strides, is_zero, plain_size, span_of


@dataclass(eq=False)
class Buffer:
    """Memory with a type and a layout. ``span`` is the number of elements from its first one to its last one.

    ``kind``: "input" (an input of the program, number ``index``), "constant" (a tensor of the graph), "made" (written
    by kernels of the program), "called" (the result of an ATen call), "drawn" (seed and offset of random numbers, which
    kernels take as parameters) or "scratch" (private to a kernel).
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    strides: Strides
    kind: str
    index: int = -1
    tensor: Any = None  # of a constant
    is_pieced: bool = False  # it is made by several writes that do not overlap

    @property
    def span(self) -> Size:
        return span_of(self.shape, self.strides)

    def __repr__(self) -> str:
        return self.name


HALF_TYPES = (torch.float16, torch.bfloat16)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which ATen's kernels compute without intermediate rounding: float32 for float16 and bfloat16."""
    return torch.float32 if dtype in HALF_TYPES else dtype


# ---- expressions -----------------------------------------------------------------------------------------------------

# The result types of scalar operations. "same": the type of the arguments, which all have one type; "bool": a truth
# value; "other": the type is an argument. `where` takes a bool and two values; `cast` any one value. In float16 and
# bfloat16 each operation computes in float32 and rounds its result, as ATen's kernels do. Integers wrap around.
# `maximum`/`minimum` propagate NaN. `div` is for floats; `floordiv`/`truncdiv`, `remainder` (the sign of the divisor,
# Python's) and `fmod` (of the dividend, C's) for both. `round` goes to even.
OPERATIONS: dict[str, tuple[int, str]] = {
    **dict.fromkeys("add sub mul div floordiv truncdiv remainder fmod pow maximum minimum".split(), (2, "same")),
    **dict.fromkeys("atan2 copysign nextafter hypot and or xor shl shr".split(), (2, "same")),
    **dict.fromkeys("eq ne lt le gt ge".split(), (2, "bool")),
    **dict.fromkeys("neg abs sign not relu sqrt rsqrt reciprocal square".split(), (1, "same")),
    **dict.fromkeys("exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan".split(), (1, "same")),
    **dict.fromkeys("sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid".split(), (1, "same")),
    **dict.fromkeys("floor ceil trunc round".split(), (1, "same")),
    **dict.fromkeys("isnan isinf signbit".split(), (1, "bool")),
    "where": (3, "same"),
    "fma": (3, "same"),
    "cast": (1, "other"),
    "bitcast": (1, "other"),
    "gelu_erf": (1, "same"),  # v * normal_cdf(v), as one function
}

# "argmax" and "argmin" give the position (int64) in the reduced part of the space, counted in its own order, of the
# first greatest or least value; NaN counts as such. "any"/"all" are for bool.
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


class Expr:
    """A node of an expression. It is made by `op`, `load`, `iota`, `constant`, `size_value`, `philox`, `assured` or
    `reduced`."""

    __slots__ = ("kind", "args", "dtype", "payload", "order", "__weakref__")

    kind: str  # "load", "iota", "const", "size", "reduced", "running", "philox", "assured" or the name of an operation
    args: tuple[Expr, ...]
    dtype: torch.dtype
    payload: Any  # Access of a load, (strides, offset) of an iota, the value, Size, Draws, the reduction's number, text
    order: tuple[Expr, ...] | None  # all that it is made of, parts first, once that is known

    def __init__(self, kind: str, args: tuple[Expr, ...], dtype: torch.dtype, payload: Any) -> None:
        self.kind, self.args, self.dtype, self.payload = kind, args, dtype, payload
        self.order = None

    def __repr__(self) -> str:
        return show(self)


@dataclass(frozen=True)
class Access:
    """The element of a buffer that a load reads or a write stores: an affine place, plus values times strides.

    Where ``mask`` (a bool expression) is false no memory is touched, and a load is 0. ``indirect`` values must not be
    negative.
    """

    buffer: Buffer
    strides: Strides
    offset: Size
    indirect: tuple[tuple[Expr, Size], ...] = ()
    mask: Expr | None = None

    def __post_init__(self) -> None:
        if not all([type(stride) is int for stride in self.strides]):
            object.__setattr__(self, "strides", tuple(map(plain_size, self.strides)))
        object.__setattr__(self, "offset", plain_size(self.offset))

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The expressions that it depends on."""
        found = tuple(expr for expr, _ in self.indirect)
        return (*found, self.mask) if self.mask is not None else found

    @property
    def is_plain(self) -> bool:
        return not self.indirect and self.mask is None

    def with_parts(self, change: Callable[[Expr], Expr], strides: Strides | None = None) -> Access:
        """The access with its index expressions and its mask changed, and perhaps with other strides."""
        indirect = tuple((change(expr), stride) for expr, stride in self.indirect)
        mask = change(self.mask) if self.mask is not None else None
        return Access(self.buffer, self.strides if strides is None else strides, self.offset, indirect, mask)


class _Interned(threading.local):
    table: dict[Any, Expr]

    def __init__(self) -> None:
        self.table = {}


_interned = _Interned()


@contextlib.contextmanager
def interned_in(table: dict[Any, Expr]) -> Iterator[None]:
    """A block in which expressions are interned in a table, that of one compilation; another may run inside."""
    outer, _interned.table = _interned.table, table
    try:
        yield
    finally:
        _interned.table = outer


def make(kind: str, args: tuple[Expr, ...], dtype: torch.dtype, payload: Any = None) -> Expr:
    key = (kind, args, dtype, payload, type(payload))
    if kind == "const" and isinstance(payload, float):
        key = (kind, args, dtype, payload.hex(), float)  # -0.0 is not 0.0, and NaN is itself
    found = _interned.table.get(key)
    if found is None:
        found = _interned.table[key] = Expr(kind, args, dtype, payload)
    return found


def op(name: str, *args: Expr, dtype: torch.dtype | None = None) -> Expr:
    """An operation on values of one type (`where`: the condition apart); ``dtype`` is the result type of casts."""
    count, gives = OPERATIONS[name]
    assert len(args) == count, (name, args)
    if gives == "bool":
        dtype = torch.bool
    elif gives == "same":
        assert args[-1].dtype is args[-2 if count > 1 else -1].dtype, (name, [arg.dtype for arg in args])
        dtype = args[-1].dtype
    assert dtype is not None
    if name == "cast" and (args[0].dtype is dtype or is_small_constant(args[0], dtype)):
        return args[0] if args[0].dtype is dtype else constant(args[0].payload, dtype)
    return make(name, args, dtype)


def is_small_constant(expr: Expr, dtype: torch.dtype) -> bool:
    """Whether it is an integer constant that every other type but bool holds."""
    return expr.kind == "const" and type(expr.payload) is int and 0 <= expr.payload <= 127 and dtype is not torch.bool


def constant(value: bool | int | float, dtype: torch.dtype) -> Expr:
    if dtype is torch.bool:
        value = bool(value)
    elif dtype.is_floating_point:
        value = float(value)
    else:
        value = int(value)
    return make("const", (), dtype, value)


def size_value(size: Size) -> Expr:
    """A size as a value (int64)."""
    return constant(size, torch.int64) if isinstance(size, int) else make("size", (), torch.int64, size)


def iota(strides: Strides, offset: Size = 0) -> Expr:
    """The sum of stride times position, plus the offset (int64)."""
    return make("iota", (), torch.int64, (tuple(map(plain_size, strides)), plain_size(offset)))


def load(access: Access) -> Expr:
    return make("load", (), access.buffer.dtype, access)


def reduced(number: int, dtype: torch.dtype) -> Expr:
    """The result of a kernel's reduction; only inside kernels."""
    return make("reduced", (), dtype, number)


def running(number: int, dtype: torch.dtype) -> Expr:
    """The value of a kernel's scan at a point, that point included; only inside kernels."""
    return make("running", (), dtype, number)


def assured(condition: Expr, value: Expr, text: str) -> Expr:
    """The value. Where the condition is false the GPU stops with an error of this text: only in kernels for GPUs."""
    return make("assured", (condition, value), value.dtype, text)


def philox(seed: Expr, offset: Expr, element: Expr, draws: Draws) -> Expr:
    """The random number of an element, all int64: from 0 to 2**32 - 1, or any where ``draws.is_wide``."""
    return make("philox", (seed, offset, element), torch.int64, draws)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct parts of an expression; of a load, its index expressions and mask."""
    return expr.payload.parts if expr.kind == "load" else expr.args


def walk(*roots: Expr) -> list[Expr]:
    """Each expression once, parts first."""
    found: list[Expr] = []
    seen: set[Expr] = set()
    for root in roots:
        if root not in seen:
            order = order_of(root)
            found += [expr for expr in order if expr not in seen] if seen else order
            if len(roots) > 1:
                seen.update(order)
    return found


def order_of(root: Expr) -> tuple[Expr, ...]:
    """An expression and all that it is made of, parts first. Expressions do not change, so it is found once."""
    if root.order is None:
        found: list[Expr] = []
        seen: set[Expr] = set()
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            expr, is_ready = stack.pop()
            if is_ready:
                found.append(expr)
            elif expr not in seen:
                seen.add(expr)
                stack.append((expr, True))
                stack += [(child, False) for child in children(expr) if child not in seen]
        found.pop()  # itself: an expression that holds itself would live until a garbage collection
        root.order = tuple(found)
    return (*root.order, root)


def rewrite(expr: Expr, leaf: Callable[[Expr], Expr], known: dict[Expr, Expr] | None = None) -> Expr:
    """The expression with its leaves replaced. ``leaf`` is also given what is assured; in that, and in the indices of
    loads, leaves are replaced before."""
    known = {} if known is None else known
    for part in walk(expr):
        if part in known:
            continue
        if part.kind == "load":
            known[part] = leaf(load(part.payload.with_parts(known.__getitem__)) if part.payload.parts else part)
        elif part.args:
            arguments = tuple(known[arg] for arg in part.args)
            made = part if arguments == part.args else make(part.kind, arguments, part.dtype, part.payload)
            known[part] = leaf(made) if part.kind == "assured" else made
        else:
            known[part] = leaf(part)
    return known[expr]


def varies_along(root: Expr, axis: int) -> bool:
    """Whether an expression changes along an axis."""
    for expr in walk(root):
        strides = expr.payload.strides if expr.kind == "load" else expr.payload[0] if expr.kind == "iota" else ()
        if strides and not is_zero(strides[axis]):
            return True
    return False


def loads_of(*roots: Expr) -> list[Access]:
    return [expr.payload for expr in walk(*roots) if expr.kind == "load"]


# ---- writes ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Write:
    """The elements of a buffer: ``target`` gets ``value`` at each point of the space of this shape.

    With ``reduce``, the value is reduced along ``axes``, where the target's strides are 0. With ``is_scan`` too, each
    point along the one axis gets the reduction of all points up to it, in order. With ``accumulate`` ("add", "mul",
    "max", "min") the value is combined with the element that is there, for scatters: several points may write one
    element, and do so in the order of the space. ``node`` is the graph's node, for messages.
    """

    target: Access
    shape: tuple[Size, ...]
    value: Expr
    reduce: str | None = None
    axes: tuple[int, ...] = ()
    accumulate: str | None = None
    node: Any = None
    is_scan: bool = False
    reads: tuple[Buffer, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        found = loads_of(self.value, *self.target.parts)
        self.reads = tuple(dict.fromkeys(access.buffer for access in found))

    @property
    def buffer(self) -> Buffer:
        return self.target.buffer

    def __repr__(self) -> str:
        how = f" {self.accumulate}" if self.accumulate else ""
        if self.reduce:
            how = f" {'running ' if self.is_scan else ''}{self.reduce} over {self.axes}"
        return f"{self.buffer}{list(self.shape)} ={how} {show(self.value)}"


# ---- printing --------------------------------------------------------------------------------------------------------

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">"}
INFIX |= {"ge": ">=", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}


def short_name(dtype: torch.dtype) -> str:
    """A type's name: f32, bf16, i64, bool."""
    name = str(dtype).removeprefix("torch.")
    for long, brief in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return brief + name[len(long) :]
    return name


def affine_text(strides: Strides, offset: Size, names: list[str] | None = None) -> str:
    """An affine place as text: ``128*i0 + i1``."""
    names = names or [f"i{k}" for k in range(len(strides))]
    parts = [
        name if stride == 1 else f"{stride}*{name}" for name, stride in zip(names, strides, strict=True) if stride != 0
    ]
    if offset != 0 or not parts:
        parts.append(str(offset))
    return " + ".join(parts)


def show_access(access: Access, names: list[str] | None = None) -> str:
    text = affine_text(access.strides, access.offset, names)
    for expr, stride in access.indirect:
        text += f" + {'' if stride == 1 else f'{stride}*'}{show(expr, names)}"
    if access.mask is not None:
        return f"({access.buffer}[{text}] if {show(access.mask, names)} else 0)"
    return f"{access.buffer}[{text}]"


def show(expr: Expr, names: list[str] | None = None) -> str:
    """An expression as one line of text."""
    if expr.kind == "load":
        return show_access(expr.payload, names)
    if expr.kind == "iota":
        strides, offset = expr.payload
        return f"({affine_text(strides, offset, names)})"
    if expr.kind in ("const", "size"):
        return str(expr.payload)
    if expr.kind in ("reduced", "running"):
        return f"r{expr.payload}"
    args = [show(arg, names) for arg in expr.args]
    if expr.kind in INFIX:
        return f"({args[0]} {INFIX[expr.kind]} {args[1]})"
    if expr.kind in ("cast", "bitcast"):
        return (
            f"{short_name(expr.dtype)}({args[0]})"
            if expr.kind == "cast"
            else f"bits_{short_name(expr.dtype)}({args[0]})"
        )
    if expr.kind == "philox":
        args += map(str, expr.payload)
    name = "invert" if expr.kind == "not" else expr.kind  # which Python has another meaning for
    return f"{name}({', '.join(args)})"
