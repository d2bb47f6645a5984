"""The reference interpreter of the loop IR: computes a lowered or scheduled graph with torch.

Tests use it, and it tells a wrong lowering from wrong code. Each expression is evaluated over its whole space at once,
which is slow and needs much memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from .ir import HALF_TYPES, Access, Buffer, Expr, Write, walk
from .philox import drawn_bits
from .sizes import Size
from .steps import Call, Launch, Lowered, Opaque, Scheduled, View


def run(lowered: Lowered | Scheduled, inputs: Sequence[Any]) -> list[Any]:
    """The results for these inputs."""
    return Reference(lowered, inputs).run()


class Reference:
    def __init__(self, lowered: Lowered | Scheduled, inputs: Sequence[Any]) -> None:
        self.lowered = lowered
        self.memory: dict[Any, Any] = {}
        self.names: dict[Buffer, Buffer] = {}  # a kernel's buffers, and those it was launched with
        self.kernel_sizes: dict[Any, Size] = {}
        self.symbols: dict[sympy.Symbol, int] = {}
        sizes: list[tuple[Any, int]] = []
        strides: list[tuple[Any, int]] = []
        for place, given in zip(lowered.inputs, inputs, strict=True):
            if isinstance(place, Buffer):
                self.memory[place] = given
                sizes += zip(place.shape, given.shape, strict=True)
                strides += zip(place.strides, given.stride(), strict=True)
            elif isinstance(place, Opaque):
                self.memory[place] = given
            elif isinstance(place, sympy.Expr):
                sizes.append((place, int(given)))
        self.solve(sizes)
        self.solve(strides)  # last: an input may have other strides than expected

    def solve(self, known: list[tuple[Any, int]]) -> None:
        """Finds the symbols that are sizes, then those that only appear inside an expression."""
        for size, actual in known:
            if isinstance(size, sympy.Symbol):
                self.symbols.setdefault(size, int(actual))
        for size, actual in known:
            unknown = (size.free_symbols if isinstance(size, sympy.Expr) else set()) - set(self.symbols)
            if len(unknown) == 1:
                (symbol,) = unknown
                found = sympy.solve(size.subs(self.symbols) - actual, symbol)
                if found and found[0].is_Integer:
                    self.symbols[symbol] = int(found[0])

    def run(self) -> list[Any]:
        for item in self.lowered.items if isinstance(self.lowered, Lowered) else self.lowered.steps:
            if isinstance(item, Write):
                self.write(item)
            elif isinstance(item, Launch):
                self.launch(item)
            else:
                self.call(item)
        return [self.for_call(output) for output in self.lowered.outputs]

    def number(self, size: Size) -> int:
        size = self.kernel_sizes.get(size, size)
        return size if isinstance(size, int) else int(size.subs(self.symbols))

    def numbers(self, sizes: Sequence[Size]) -> list[int]:
        return [self.number(size) for size in sizes]

    def tensor(self, buffer: Buffer) -> torch.Tensor:
        buffer = self.names.get(buffer, buffer)
        found: torch.Tensor | None = buffer.tensor if buffer.kind == "constant" else self.memory.get(buffer)
        if found is None:
            found = torch.empty_strided(self.numbers(buffer.shape), self.numbers(buffer.strides), dtype=buffer.dtype)
            self.memory[buffer] = found
        return found

    def elements(self, buffer: Buffer) -> torch.Tensor:
        """A buffer's memory as one row, from its first element."""
        tensor = self.tensor(buffer)
        count = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        return tensor.as_strided((count,), (1,), tensor.storage_offset())

    # ---- expressions -------------------------------------------------------------------------------------------------

    def places(self, access: Access, shape: list[int], values: dict[Expr, torch.Tensor]) -> torch.Tensor:
        found = self.affine(access.strides, access.offset, shape)
        for expr, stride in access.indirect:
            found = found + values[expr] * self.number(stride)
        return found

    def affine(self, strides: Sequence[Size], offset: Size, shape: list[int]) -> torch.Tensor:
        found = torch.full(shape, self.number(offset))
        for axis, stride in enumerate(self.numbers(strides)):
            along = [1] * len(shape)
            along[axis] = shape[axis]
            found = found + (torch.arange(shape[axis]) * stride).reshape(along)
        return found

    def evaluate(
        self, roots: Sequence[Expr], shape: list[int], results: dict[int, torch.Tensor] | None = None
    ) -> dict[Expr, torch.Tensor]:
        values: dict[Expr, torch.Tensor] = {}
        for expr in walk(*roots):
            if expr.kind in ("reduced", "running"):
                values[expr] = (results or {})[expr.payload].expand(shape)
            else:
                values[expr] = self.evaluate_one(expr, shape, values)
        return values

    def evaluate_one(self, expr: Expr, shape: list[int], values: dict[Expr, torch.Tensor]) -> torch.Tensor:
        if expr.kind == "const":
            return torch.full(shape, expr.payload, dtype=expr.dtype)
        if expr.kind == "size":
            return torch.full(shape, self.number(expr.payload), dtype=expr.dtype)
        if expr.kind == "iota":
            strides, offset = expr.payload
            return self.affine(strides, offset, shape)
        if expr.kind == "load":
            return self.load(expr.payload, shape, values)
        args = [values[arg] for arg in expr.args]
        if expr.kind == "assured":
            if not bool(args[0].all()):
                raise RuntimeError(expr.payload)
            return args[1]
        if expr.kind == "philox":
            draws = expr.payload
            sizes = {"elements": self.number(draws.elements), "threads": self.number(draws.threads)}
            return drawn_bits(draws._replace(**sizes), *args)
        if expr.kind in ("cast", "bitcast"):
            return args[0].to(expr.dtype) if expr.kind == "cast" else args[0].view(expr.dtype)
        if expr.dtype in HALF_TYPES and expr.kind != "where":
            return FUNCTIONS[expr.kind](*(arg.float() for arg in args)).to(expr.dtype)
        return FUNCTIONS[expr.kind](*args).to(expr.dtype)

    def load(self, access: Access, shape: list[int], values: dict[Expr, torch.Tensor]) -> torch.Tensor:
        elements = self.elements(access.buffer)
        places = self.places(access, shape, values)
        if access.mask is not None:
            mask = values[access.mask]
            found = (
                elements[torch.where(mask, places, 0)] if elements.numel() else torch.zeros(shape, dtype=elements.dtype)
            )
            return torch.where(mask, found, torch.zeros((), dtype=found.dtype))
        if places.numel() and (int(places.min()) < 0 or int(places.max()) >= elements.numel()):
            raise IndexError(f"{access.buffer}: a load outside of it")
        return elements[places]

    # ---- items -------------------------------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        shape = self.numbers(write.shape)
        values = self.evaluate([write.value, *write.target.parts], shape)
        value, places = values[write.value], self.places(write.target, shape, values)
        if write.reduce is not None and write.is_scan:
            value = scan(write.reduce, value, write.axes[0])
        elif write.reduce is not None:
            kept = [slice(0, 1) if axis in write.axes else slice(None) for axis in range(len(shape))]
            shape = [1 if axis in write.axes else size for axis, size in enumerate(shape)]
            places = self.affine(write.target.strides, write.target.offset, shape)[tuple(kept)]
            value = reduce(write.reduce, value, write.axes).reshape(places.shape)
        mask = values[write.target.mask] if write.target.mask is not None else None
        self.store(write.buffer, places, value, mask, write.accumulate)

    def store(
        self,
        buffer: Buffer,
        places: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        accumulate: str | None,
    ) -> None:
        elements = self.elements(buffer)
        if mask is not None:
            places, value = places[mask], value[mask]
        places, value = places.reshape(-1), value.reshape(-1)
        if accumulate is None:
            elements[places] = value
        elif accumulate == "add":
            elements.index_put_((places,), value, accumulate=True)
        else:
            kind = {"mul": "prod", "max": "amax", "min": "amin"}[accumulate]
            elements.scatter_reduce_(0, places, value, kind)

    def launch(self, launch: Launch) -> None:
        """A kernel, all its loops at once."""
        kernel = launch.kernel
        self.names = dict(zip(kernel.buffers, launch.buffers, strict=True))
        self.kernel_sizes = dict(zip(kernel.sizes, launch.sizes, strict=True))
        shape = self.numbers([loop.size for loop in kernel.loops])
        results: dict[int, torch.Tensor] = {}
        for reduction in kernel.reductions:
            value = self.evaluate([reduction.value], shape, results)[reduction.value]
            if reduction.is_scan:
                results[reduction.number] = scan(reduction.kind, value, *kernel.reduced)
                continue
            found = reduce(reduction.kind, value, kernel.reduced)
            results[reduction.number] = found.reshape([*found.shape, *(1 for _ in kernel.reduced)])
        for output in kernel.outputs:
            space = shape
            if not output.is_inner:
                space = [1 if loop.is_reduced else size for size, loop in zip(shape, kernel.loops, strict=True)]
            values = self.evaluate([output.value, *output.target.parts], space, results)
            places = self.places(output.target, space, values)
            mask = values[output.target.mask] if output.target.mask is not None else None
            self.store(output.target.buffer, places, values[output.value], mask, output.accumulate)
        self.names, self.kernel_sizes = {}, {}

    def call(self, call: Call) -> None:
        args, kwargs = self.for_call(call.args), self.for_call(call.kwargs)
        self.take(call, call.target(*args, **kwargs))

    def take(self, call: Call, found: Any) -> None:
        """Keeps the results of a call, in the layout that the program expects."""
        results = found if isinstance(found, (list, tuple)) else [found][: len(call.results)]
        for place, result in zip(call.results, results, strict=True):
            if isinstance(place, Buffer):
                sizes, strides = self.numbers(place.shape), self.numbers(place.strides)
                if list(result.shape) != sizes:  # the fake result was wrong: a workspace, whose size does not matter
                    self.memory[place] = result
                    continue
                kept = torch.empty_strided(sizes, strides, dtype=place.dtype)
                self.memory[place] = kept.copy_(result)
            elif place is not None:
                self.memory[place] = result

    def for_call(self, value: Any) -> Any:
        if isinstance(value, View):
            base = self.tensor(value.buffer)
            offset = base.storage_offset() + self.number(value.offset)
            return base.as_strided(self.numbers(value.shape), self.numbers(value.strides), offset)
        if isinstance(value, Opaque) and value.tensor is not None:
            return value.tensor
        if isinstance(value, Opaque):
            return self.memory[value]
        if isinstance(value, sympy.Expr):
            return self.number(value)
        if isinstance(value, (list, tuple)):
            parts = [self.for_call(part) for part in value]
            return parts if isinstance(value, list) else tuple(parts)
        if isinstance(value, dict):
            return {key: self.for_call(part) for key, part in value.items()}
        return value


def reduce(kind: str, value: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    kept = [axis for axis in range(value.dim()) if axis not in axes]
    count = math.prod(value.shape[axis] for axis in axes)
    rows = value.permute([*kept, *axes]).reshape([value.shape[axis] for axis in kept] + [count])
    function: Callable[..., torch.Tensor] = getattr(torch, f"a{kind}" if kind in ("max", "min") else kind)
    return function(rows, -1, dtype=value.dtype) if kind in ("sum", "prod") else function(rows, -1)


def scan(kind: str, value: torch.Tensor, axis: int) -> torch.Tensor:
    if kind in ("max", "min"):
        found: torch.Tensor = getattr(torch, f"cum{kind}")(value, axis).values
        return found
    function: Callable[..., torch.Tensor] = getattr(torch, f"cum{kind}")
    return function(value, axis, dtype=value.dtype)


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "fma": lambda a, b, c: torch.addcmul(c, a, b),
    "gelu_erf": torch.nn.functional.gelu,
    **{
        name: getattr(torch, name)
        for name in (
            "add sub mul div remainder fmod pow maximum minimum atan2 copysign nextafter hypot eq ne lt le gt ge neg "
            "abs sign relu sqrt rsqrt reciprocal square exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan "
            "sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid floor ceil trunc round isnan "
            "isinf signbit where"
        ).split()
    },
}
