"""Kernels made at random from a seed, with the data they read: all types, layouts, phases, masks, indirect places."""

from __future__ import annotations

import random
from dataclasses import replace

import sympy
import torch

from kiln.loops.ir import Access, Expr, constant, iota, load, op, reduced, rewrite, running
from kiln.loops.kernel import Kernel, Loop, Output, Reduction
from kiln.loops.sizes import Size
from tests.target.kernel_runs import Memory

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TYPES = (*FLOATS, *INTEGERS, torch.bool)
FLOAT_PAIRS = "add sub mul div maximum minimum".split()
FLOAT_ONES = "neg abs sign relu sqrt reciprocal square floor ceil trunc round exp tanh sigmoid erf".split()
INTEGER_PAIRS = "add sub mul maximum minimum and or xor floordiv remainder truncdiv fmod shl shr".split()
INTEGER_ONES = "neg abs sign not square".split()
# Of plain values only: of others, a small difference in the argument may be a large one in the result.
FUNCTIONS = "sin cos tan lgamma digamma erfc expm1 log1p asin atan sinh log2".split()
FUNCTIONS_OF_TWO = "fmod remainder floordiv atan2 hypot".split()
DIVISIONS = ("floordiv", "remainder", "truncdiv", "fmod")
SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 33, 40, 70, 150)
MOST = 20000  # points of a kernel


class RandomKernel:
    def __init__(self, seed: int, has_scans: bool = False, has_functions: bool = False) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.memory = Memory()
        self.has_specials = seed % 3 == 0
        self.kept = self.random.choice([0, 1, 1, 2, 2, 3])
        reduced_count = self.random.choice([0, 0, 1, 1, 2])
        if self.kept + reduced_count == 0:
            self.kept = 1
        self.sizes: list[int] = []
        points = 1
        for _ in range(self.kept + reduced_count):
            size = self.random.choice(SIZES)
            self.sizes.append(size if points * size <= MOST else 3)
            points *= self.sizes[-1]
        if self.kept and self.random.random() < 0.03:
            self.sizes[self.random.randrange(self.kept)] = 0
        self.loads: list[Expr] = []
        self.has_scans = has_scans and reduced_count == 1
        self.has_functions = has_functions

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def is_reduction(self) -> bool:
        return self.rank > self.kept

    def happens(self, chance: float) -> bool:
        return self.random.random() < chance

    # ---- data and leaves ---------------------------------------------------------------------------------------------

    def data(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.rand(count, generator=self.generator) > 0.5
        if not dtype.is_floating_point:
            limits = torch.iinfo(dtype)
            low, high = max(limits.min, -100), min(limits.max, 100) + 1
            return torch.randint(low, high, (count,), generator=self.generator).to(dtype)
        found = torch.randn(count, generator=self.generator, dtype=torch.float64) * 3
        if self.has_specials:
            for value in (float("nan"), float("inf"), float("-inf"), -0.0):
                found[torch.rand(count, generator=self.generator) < 0.03] = value
        return found.to(dtype)

    def leaf(self, dtype: torch.dtype, is_plain: bool, is_outer: bool) -> Expr:
        kind = self.random.random()
        if kind < 0.12:
            value = self.random.uniform(-2, 2) if dtype.is_floating_point else self.random.randrange(4)
            return constant(value, dtype)
        loops = self.kept if is_outer else self.rank
        if kind < 0.2:
            strides = [self.random.choice([0, 1, 2, -1]) for _ in range(loops)] + [0] * (self.rank - loops)
            return op("cast", iota(tuple(strides), self.random.randrange(6)), dtype=dtype)
        known = [load for load in self.loads if load.dtype is dtype]
        if known and kind < 0.35 and not is_outer:
            return self.random.choice(known)
        return self.load(dtype, loops, is_plain, is_outer)

    def load(self, dtype: torch.dtype, loops: int, is_plain: bool, is_outer: bool) -> Expr:
        order = list(range(loops))
        if self.happens(0.4):
            self.random.shuffle(order)
        strides, offset, step = [0] * self.rank, 0, self.random.choice([1, 1, 1, 2])
        for loop in reversed(order):
            if self.happens(0.75):
                strides[loop] = step
                step *= max(1, self.sizes[loop]) + self.random.choice([0, 0, 1])
                if self.happens(0.1) and self.sizes[loop]:
                    offset += strides[loop] * (self.sizes[loop] - 1)
                    strides[loop] *= -1
        more, room = {}, 8
        if not is_plain and self.happens(0.15):
            index = op("remainder", self.expression(torch.int64, 1, True, is_outer), constant(7, torch.int64))
            stride = self.random.choice([1, 3])
            more["indirect"], room = ((index, stride),), room + 7 * stride
        if not is_plain and self.happens(0.15):
            more["mask"] = self.expression(torch.bool, 1, True, is_outer)
        found = self.memory.load(self.data(step + room, dtype), strides, offset, **more)
        if not is_outer:
            self.loads.append(found)
        return found

    # ---- expressions -------------------------------------------------------------------------------------------------

    def expression(self, dtype: torch.dtype, depth: int, is_plain: bool = False, is_outer: bool = False) -> Expr:
        def part(kind: torch.dtype) -> Expr:
            return self.expression(kind, depth - 1, is_plain, is_outer)

        if depth == 0 or self.happens(0.15):
            return self.leaf(dtype, is_plain, is_outer)
        if self.has_functions and dtype.is_floating_point and self.happens(0.3):
            return self.function(dtype, is_plain, is_outer)
        if self.happens(0.15):
            source = self.random.choice(TYPES)
            if not source.is_floating_point or dtype.is_floating_point or dtype is torch.bool:
                return op("cast", part(source), dtype=dtype)
        if self.happens(0.1):
            return op("where", part(torch.bool), part(dtype), part(dtype))
        if dtype is torch.bool:
            if self.happens(0.4):
                return op(self.random.choice(["and", "or", "xor"]), part(dtype), part(dtype))
            source = self.random.choice(TYPES)
            return op(self.random.choice("eq ne lt le gt ge".split()), part(source), part(source))
        pairs, ones = (FLOAT_PAIRS, FLOAT_ONES) if dtype.is_floating_point else (INTEGER_PAIRS, INTEGER_ONES)
        if self.happens(0.35):
            return op(self.random.choice(ones), part(dtype))
        name, a, b = self.random.choice(pairs), part(dtype), part(dtype)
        if name in DIVISIONS:
            b = op("where", op("eq", b, constant(0, dtype)), constant(3, dtype), b)
        return op(name, a, op("and", b, constant(7, dtype)) if name in ("shl", "shr") else b)

    def function(self, dtype: torch.dtype, is_plain: bool, is_outer: bool) -> Expr:
        a = self.leaf(dtype, is_plain, is_outer)
        if self.happens(0.5):
            return op(self.random.choice(FUNCTIONS), a)
        return op(self.random.choice(FUNCTIONS_OF_TWO), a, self.leaf(dtype, is_plain, is_outer))

    # ---- the kernel --------------------------------------------------------------------------------------------------

    def target(self, dtype: torch.dtype, is_inner: bool) -> Access:
        order = list(range(self.rank if is_inner else self.kept))
        if self.happens(0.3):
            self.random.shuffle(order)
        strides, step = [0] * self.rank, 1
        for loop in reversed(order):
            strides[loop] = step
            step *= max(1, self.sizes[loop])
        return Access(self.memory.add(torch.zeros(step, dtype=dtype)), tuple(strides), 0)

    def reduction(self, number: int, results: list[Expr]) -> Reduction:
        kind = self.random.choice(["sum", "sum", "max", "min", "prod", "any", "all", "argmax", "argmin"])
        is_place = kind.startswith("arg")
        dtype = self.random.choice([torch.float32, torch.float64, torch.int64, torch.int32])
        if kind in ("any", "all"):
            dtype = torch.bool
        value = self.expression(dtype, 0 if is_place else self.random.randrange(3))
        if results and dtype.is_floating_point and not is_place and self.happens(0.6):
            value = op("add", value, op("cast", self.random.choice(results), dtype=dtype))
        if not is_place:
            return Reduction(number, kind, value, dtype)
        strides, step = [0] * self.rank, 1
        for loop in range(self.rank - 1, self.kept - 1, -1):
            strides[loop] = step
            step *= self.sizes[loop]
        return Reduction(number, kind, value, torch.int64, iota(tuple(strides)))

    def scans(self) -> list[Reduction]:
        """Scans of types that the order of additions matters little to; the later ones read the earlier ones."""
        found: list[Reduction] = []
        for number in range(self.random.choice([1, 2])):
            dtype = self.random.choice([torch.float64, torch.int64, torch.int32])
            value = self.expression(dtype, 1)
            if found and self.happens(0.5):
                value = op("add", value, op("cast", running(0, found[0].dtype), dtype=dtype))
            found.append(Reduction(number, "sum", value, dtype, is_scan=True))
        return found

    def scatter(self) -> Output:
        """Points that meet in one place: some loops only choose it by an index."""
        dtype = self.random.choice([torch.float32, torch.int64, torch.int32, torch.float64, torch.uint8])
        strides, places = [0] * self.rank, [0] * self.rank
        step, count = 1, 1
        for loop in range(self.rank - 1, -1, -1):
            size = max(1, self.sizes[loop])
            if self.happens(0.6):
                places[loop], count = count, count * size
            else:
                strides[loop] = step
            step *= size
        index = self.memory.load(torch.randint(0, 5, (count,), generator=self.generator), places)
        mask = self.expression(torch.bool, 1, True) if self.happens(0.3) else None
        target = Access(self.memory.add(self.data(6 * step, dtype)), tuple(strides), 0, ((index, step),), mask)
        return Output(target, self.expression(dtype, 1), True, self.random.choice(["add", "add", "max", "min", None]))

    def kernel(self) -> Kernel:
        loops = tuple(Loop(size, number >= self.kept) for number, size in enumerate(self.sizes))
        reductions: list[Reduction] = []
        results: list[Expr] = []
        scans = self.scans() if self.has_scans else []
        reductions += scans
        runs = [running(scan.number, scan.dtype) for scan in scans]
        first, count = len(scans), self.random.choice([1, 1, 2, 3]) if self.is_reduction else 0
        for number in range(first, first + count):
            reductions.append(self.reduction(number, results + runs))
            results.append(reduced(number, reductions[-1].dtype))
        outputs = [Output(self.target(run.dtype, True), run, True) for run in runs]
        if not self.is_reduction and self.happens(0.25):
            outputs.append(self.scatter())
        else:
            outputs += [self.output(results) for _ in range(self.random.choice([1, 1, 2]))]
        outputs += [Output(self.target(result.dtype, False), result, False) for result in results]
        vector = self.random.choice([None, *(list(range(self.rank)) * 3)])
        return Kernel("random_kernel", loops, tuple(reductions), tuple(outputs), vector)

    def output(self, results: list[Expr]) -> Output:
        dtype = self.random.choice(TYPES)
        is_inner = not self.is_reduction or self.happens(0.5)
        value = self.expression(dtype, self.random.choice([1, 2, 3]), False, not is_inner)
        if results and dtype is not torch.bool:
            result = self.random.choice(results)
            if dtype.is_floating_point or not result.dtype.is_floating_point:
                value = op("add", value, op("cast", result, dtype=dtype))
        return Output(self.target(dtype, is_inner), value, is_inner)


def with_symbols(kernel: Kernel, seed: int) -> tuple[Kernel, dict[sympy.Symbol, int]]:
    """The kernel with some of its sizes, strides and offsets as symbols, and what these stand for."""
    chooser = random.Random(seed)
    chosen: dict[int, sympy.Symbol] = {}
    numbers = {size for size in kernel.all_sizes() if isinstance(size, int) and abs(size) > 1}
    for value in sorted(numbers):
        if chooser.random() < 0.6:
            chosen[value] = sympy.Symbol(f"s{value}" if value > 0 else f"m{-value}", integer=True)

    def size(value: Size) -> Size:
        return chosen.get(value, value)  # type: ignore[call-overload]

    def access_of(access: Access) -> Access:
        strides = tuple(size(stride) for stride in access.strides)
        indirect = tuple((changed(expr), size(stride)) for expr, stride in access.indirect)
        mask = changed(access.mask) if access.mask is not None else None
        return Access(access.buffer, strides, size(access.offset), indirect, mask)

    def leaf(part: Expr) -> Expr:
        if part.kind == "iota":
            return iota(tuple(size(stride) for stride in part.payload[0]), size(part.payload[1]))
        if part.kind == "load":
            access = part.payload  # whose index expressions are changed already
            strides = tuple(size(stride) for stride in access.strides)
            indirect = tuple((expr, size(stride)) for expr, stride in access.indirect)
            return load(Access(access.buffer, strides, size(access.offset), indirect, access.mask))
        return part

    def changed(expr: Expr) -> Expr:
        return rewrite(expr, leaf)

    reductions = tuple(
        replace(r, value=changed(r.value), position=changed(r.position) if r.position is not None else None)
        for r in kernel.reductions
    )
    outputs = tuple(Output(access_of(o.target), changed(o.value), o.is_inner, o.accumulate) for o in kernel.outputs)
    loops = tuple(Loop(size(loop.size), loop.is_reduced) for loop in kernel.loops)
    made = Kernel(kernel.name, loops, reductions, outputs, kernel.vector)
    return made, {symbol: value for value, symbol in chosen.items()}
