"""The emitter: machine code of kernels does what their expressions mean."""

from __future__ import annotations

import collections
import math

import pytest
import sympy
import torch

from kiln.loops.ir import OPERATIONS, Access, constant, iota, op, reduced, size_value
from kiln.loops.kernel import Kernel, Loop, Output, Reduction
from kiln.loops.reference import FUNCTIONS
from kiln.platform import cpu_info
from kiln.target.cpu import jit, workload
from kiln.target.cpu.emit import llvm_module
from kiln.target.cpu.kernel_call import call_kernel
from tests.target.kernel_runs import Memory
from tests.target.random_kernels import RandomKernel, with_symbols

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TYPES = (*FLOATS, *INTEGERS, torch.bool)
HALVES = (torch.float16, torch.bfloat16)
TOLERANCES = {
    torch.float32: 2e-4,
    torch.float64: 3e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,
}  # float64 of float32s
EXTREME = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 127, 128, -129, 255, 300, -300, 32768, 7e4, 2.0**31, -(2.0**31) - 1, 1e10]
EXTREME += [-1e10, 9.3e18, -9.3e18, 1e30, -1e30, math.inf, -math.inf, math.nan, 1e-40, 3.4e38, 65504, 65520]
INTEGRAL = [0, 1, -1, 127, 128, -128, -129, 255, 256, 32768, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1]
INTEGRAL += [-(2**63), 2**24 + 1, 65520]


def names(values: tuple[torch.dtype, ...]) -> list[str]:
    return [str(value).removeprefix("torch.") for value in values]


def check_random(seed: int, threads: int, varies: bool = False, has_scans: bool = False) -> None:
    made = RandomKernel(seed, has_scans)
    kernel, sizes = made.kernel(), None
    wanted = made.memory.expected(kernel)
    if varies:
        kernel, sizes = with_symbols(kernel, seed)
    found = made.memory.run(kernel, sizes, threads)
    for buffer, tensor in wanted.items():
        tolerance = TOLERANCES.get(buffer.dtype, 0)
        torch.testing.assert_close(
            found[buffer], tensor, equal_nan=True, rtol=tolerance, atol=tolerance / 2,
            msg=lambda text: f"seed {seed}\n{kernel.text}\n{text}",
        )  # fmt: skip


@pytest.mark.parametrize("start", range(0, 160, 20))
def test_random_kernels(start: int) -> None:
    for seed in range(start, start + 20):
        check_random(seed, 1)


@pytest.mark.parametrize("varies", [False, True])
def test_random_scans(varies: bool) -> None:
    for seed in range(2000, 2020):
        check_random(seed, 1 + seed % 2, varies, has_scans=True)


def test_random_kernels_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "WORK_PER_THREAD", 1)
    for seed in range(500, 540):
        check_random(seed, 2 + seed % 2)


@pytest.mark.parametrize("start", range(900, 940, 20))
def test_random_kernels_of_sizes_that_vary(start: int) -> None:
    for seed in range(start, start + 20):
        check_random(seed, 2, varies=True)


MACHINES = {
    "x86-64": "sse sse2",
    "sandybridge": "sse4_1 avx",
    "haswell": "sse4_1 avx avx2 fma f16c",
    "skylake-avx512": "sse4_1 avx avx2 fma f16c avx512f avx512bw avx512dq avx512vl",
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Code as for another CPU, where this one runs it as well."""
    flags = frozenset(MACHINES[request.param].split())
    if not flags <= cpu_info.flags():
        pytest.skip(
            f"code for {request.param} does not run on this CPU, which lacks {sorted(flags - cpu_info.flags())}"
        )
    monkeypatch.setattr(cpu_info, "flags", lambda: flags)
    monkeypatch.setattr(jit, "host_target", lambda: (request.param, ""))
    monkeypatch.setattr(jit.compilers, "idle", collections.deque())
    return request.param


def test_random_kernels_of_other_machines(machine: str) -> None:
    for seed in range(700, 720):
        check_random(seed, 1)
    text = jit.assembly(llvm_module.emit(rows("sum", torch.randn(4, 50), 1, 1)[1], "sum"))
    assert ("%zmm" in text, "%ymm" in text) == (machine == "skylake-avx512", machine in ("haswell", "skylake-avx512"))


def test_casts_of_other_machines(machine: str) -> None:
    for source in TYPES:
        check_casts(source, 0)


# ---- casts and operations --------------------------------------------------------------------------------------------


def is_same(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Where two tensors agree, NaN and the sign of 0 included."""
    both_nan = (found != found) & (wanted != wanted)
    same = found == wanted
    if wanted.dtype.is_floating_point:
        same &= torch.signbit(found) == torch.signbit(wanted)
    return same | both_nan


@pytest.mark.parametrize("vector", [0, None], ids=["vectors", "scalars"])
@pytest.mark.parametrize("source", TYPES, ids=names(TYPES))
def test_casts_are_eagers(source: torch.dtype, vector: int | None) -> None:
    check_casts(source, vector)


def check_casts(source: torch.dtype, vector: int | None) -> None:
    values = torch.tensor(EXTREME, dtype=torch.float64) if source.is_floating_point else torch.tensor(INTEGRAL)
    values = values.to(source).repeat(3)
    memory = Memory()
    value = memory.load(values)
    targets = {dtype: memory.add(torch.zeros(len(values), dtype=dtype)) for dtype in TYPES}
    outputs = tuple(Output(Access(t, (1,), 0), op("cast", value, dtype=d), True) for d, t in targets.items())
    found = memory.run(Kernel("casts", (Loop(len(values)),), (), outputs, vector))
    for dtype, buffer in targets.items():
        assert is_same(found[buffer], values.to(dtype)).all(), dtype


EXACT = (
    "add sub mul div maximum minimum copysign floordiv truncdiv neg abs sign relu reciprocal square floor ceil trunc"
)
EXACT = frozenset((EXACT + " round isnan isinf signbit eq ne lt le gt ge and or xor not shl shr pow").split())


def operations_for(dtype: torch.dtype) -> list[str]:
    """Those that are exact, and that eager has for a type."""
    bits = {"and", "or", "xor", "not", "shl", "shr"}
    if dtype.is_floating_point:
        return sorted(EXACT - bits - {"pow"})
    if dtype is torch.bool:
        return sorted({"and", "or", "xor", "not", "eq", "ne", "lt", "maximum", "minimum"})
    return sorted((EXACT | {"remainder", "fmod"}) - {"div", "reciprocal", "copysign", "relu"})


@pytest.mark.parametrize("vector", [0, None], ids=["vectors", "scalars"])
@pytest.mark.parametrize("dtype", TYPES, ids=names(TYPES))
def test_operations_are_eagers(dtype: torch.dtype, vector: int | None) -> None:
    plain = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 127, 3, -3, math.inf, -math.inf, math.nan, 1e38, 0.1]
    values = torch.tensor(plain, dtype=torch.float64).to(dtype)
    if not dtype.is_floating_point:
        values = torch.tensor([0, 1, -1, 127, -128, 3, -3, 7, 2, 5, 100, -100]).to(dtype)
    a, b = values.repeat_interleave(len(values)), values.repeat(len(values))
    memory = Memory()
    wanted = {}
    outputs = []
    first, second = memory.load(a), memory.load(b)
    some = memory.load(torch.where(b == 0, torch.ones_like(b), b))  # a divisor
    small = memory.load((b.long().abs() % 7).to(dtype)) if not dtype.is_floating_point else second
    for name in operations_for(dtype):
        count, gives = OPERATIONS[name]
        is_division = not dtype.is_floating_point and name in ("floordiv", "truncdiv", "remainder", "fmod")
        other = some if is_division else small if name in ("shl", "shr", "pow") else second
        given = [first, other][:count]
        tensors = [memory.tensors[value.payload.buffer] for value in given]
        if dtype in HALVES:
            tensors = [tensor.float() for tensor in tensors]
        expected = FUNCTIONS[name](*tensors).to(torch.bool if gives == "bool" else dtype)
        buffer = memory.add(torch.zeros(len(a), dtype=expected.dtype))
        wanted[name] = buffer, expected
        outputs.append(Output(Access(buffer, (1,), 0), op(name, *given), True))
    found = memory.run(Kernel("operations", (Loop(len(a)),), (), tuple(outputs), vector))
    for name, (buffer, expected) in wanted.items():
        same = is_same(found[buffer], expected) if name in ("neg", "copysign") else (found[buffer] == expected)
        same |= (found[buffer] != found[buffer]) & (expected != expected)
        assert same.all(), (name, a[~same], b[~same], found[buffer][~same], expected[~same])


@pytest.mark.parametrize("vector", [0, None], ids=["vectors", "scalars"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=names(INTEGERS))
def test_odd_divisions_do_not_stop_the_process(dtype: torch.dtype, vector: int | None) -> None:
    limits = torch.iinfo(dtype)
    a = torch.tensor([5, limits.min, limits.max, -7 if dtype.is_signed else 7] * 9, dtype=dtype)
    b = torch.tensor([0, limits.max if not dtype.is_signed else -1, 0, 2] * 9, dtype=dtype)
    memory = Memory()
    pair = memory.load(a), memory.load(b)
    outputs = {}
    for name in ("floordiv", "truncdiv", "remainder", "fmod"):
        buffer = memory.add(torch.zeros(len(a), dtype=dtype))
        outputs[name] = buffer, Output(Access(buffer, (1,), 0), op(name, *pair), True)
    kernel = Kernel("divisions", (Loop(len(a)),), (), tuple(output for _, output in outputs.values()), vector)
    found = memory.run(kernel)
    if dtype.is_signed:
        assert found[outputs["floordiv"][0]][1] == limits.min  # it wraps
        assert found[outputs["floordiv"][0]][3] == -4
        assert found[outputs["truncdiv"][0]][3] == -3
        assert found[outputs["remainder"][0]][3] == 1
        assert found[outputs["fmod"][0]][3] == -1


def test_powers_of_integers() -> None:
    a = torch.tensor([2, -3, 0, 1, -1, 7, -1, 1, 5, 2] * 4)
    b = torch.tensor([10, 3, 0, 99, 5, 0, -3, -2, -1, 64] * 4)
    memory = Memory()
    buffer = memory.add(torch.zeros(len(a), dtype=torch.int64))
    value = op("pow", memory.load(a), memory.load(b))
    found = memory.run(Kernel("powers", (Loop(len(a)),), (), (Output(Access(buffer, (1,), 0), value, True),), 0))
    assert found[buffer][:10].tolist() == [1024, -27, 1, 1, -1, 1, -1, 1, 0, 0]


# ---- reductions ------------------------------------------------------------------------------------------------------


def rows(kind: str, values: torch.Tensor, axis: int, vector: int | None) -> tuple[Memory, Kernel]:
    """A kernel that reduces a matrix along an axis."""
    memory = Memory()
    kept, gone = values.shape[1 - axis], values.shape[axis]
    value = memory.load(values, (values.stride(1 - axis), values.stride(axis)))
    dtype = torch.int64 if kind.startswith("arg") else values.dtype
    position = iota((0, 1)) if kind.startswith("arg") else None
    target = memory.add(torch.full((kept,), 77).to(dtype))
    output = Output(Access(target, (1, 0), 0), reduced(0, dtype), False)
    reduction = Reduction(0, kind, value, dtype, position)
    return memory, Kernel("rows", (Loop(kept), Loop(gone, True)), (reduction,), (output,), vector)


@pytest.mark.parametrize("vector", [0, 1, None])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["argmax", "argmin", "max", "min"])
def test_nan_and_first_place(kind: str, axis: int, vector: int | None) -> None:
    values = torch.randint(0, 4, (41, 57)).float()
    values[3, 5] = values[3, 40] = values[30, 9] = math.nan
    values[7] = -math.inf if kind.endswith("max") else math.inf
    memory, kernel = rows(kind, values, axis, vector)
    memory.check(kernel, rtol=0, atol=0)


@pytest.mark.parametrize("vector", [0, 1, None])
@pytest.mark.parametrize(("kind", "dtype", "start"), [
    ("sum", torch.float32, 0), ("prod", torch.float64, 1), ("max", torch.float32, -math.inf),
    ("min", torch.int32, 2**31 - 1), ("any", torch.bool, False), ("all", torch.bool, True),
])  # fmt: skip
def test_reductions_of_nothing_give_their_start(
    kind: str, dtype: torch.dtype, start: float, vector: int | None
) -> None:
    memory, kernel = rows(kind, torch.zeros(20, 0, dtype=dtype), 1, vector)
    found = memory.run(kernel)[kernel.outputs[0].target.buffer]
    assert found.tolist() == [start] * 20


@pytest.mark.parametrize("axis", [0, 1])
def test_long_sums_are_as_exact_as_eagers(axis: int) -> None:
    values = torch.rand((3, 700_001) if axis else (70_001, 30), generator=torch.Generator().manual_seed(0))
    memory, kernel = rows("sum", values, axis, axis if axis else 0)
    found = memory.run(kernel)[kernel.outputs[0].target.buffer]
    exact = values.double().sum(axis)
    error, eager = ((x.double() - exact).abs().max() for x in (found, values.sum(axis)))
    assert error <= 2 * eager + exact.max() * 2e-7


@pytest.mark.parametrize("inner", [3, 40])
@pytest.mark.parametrize("varies", [False, True])
def test_long_sums_over_two_loops_are_exact(inner: int, varies: bool) -> None:
    """However short the inner one: rows of a slice are no single loop."""
    n = sympy.Symbol("n", integer=True, positive=True)
    values = torch.rand(20_011, inner + 1, generator=torch.Generator().manual_seed(0))
    memory = Memory()
    reduction = Reduction(0, "sum", memory.load(values, (inner + 1, 1)), torch.float32)
    target = memory.add(torch.zeros(1))
    output = Output(Access(target, (0, 0), 0), reduced(0, torch.float32), False)
    loops = (Loop(n if varies else 20_011, True), Loop(inner, True))
    found = memory.run(Kernel("slice", loops, (reduction,), (output,), 1), {n: 20_011} if varies else None)[target]
    exact = values[:, :inner].double().sum()
    assert (found.double() - exact).abs() <= 3e-7 * exact


def test_threads_do_not_change_results() -> None:
    values = torch.randn(300, 1000)
    for axis, vector in ((1, 1), (0, 0)):
        memory, kernel = rows("sum", values, axis, vector)
        target = kernel.outputs[0].target.buffer
        first = memory.run(kernel, threads=2)[target]
        assert torch.equal(first, memory.run(kernel, threads=2)[target])
        assert torch.equal(first, memory.run(kernel, threads=1)[target])  # whole rows, or columns, belong to one


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", [0, None], ids=["vectors", "scalars"])
@pytest.mark.parametrize("dtype", TYPES, ids=names(TYPES))
def test_where_the_mask_is_false_nothing_is_touched(dtype: torch.dtype, vector: int | None) -> None:
    """Places far outside of the buffer: reading or writing them would be the end."""
    count, far = 53, 10**12
    memory = Memory()
    inside = op("lt", iota((1,)), constant(20, torch.int64))
    index = op("where", inside, iota((1,)), constant(far, torch.int64))
    values = torch.arange(20).to(dtype)
    loaded = memory.load(values, (0,), indirect=((index, 1),), mask=inside)
    whole = memory.add(torch.ones(count).to(dtype))
    part = memory.add(torch.zeros(20).to(dtype))
    outputs = (
        Output(Access(whole, (1,), 0), loaded, True),
        Output(Access(part, (0,), 0, ((index, 1),), inside), loaded, True),
    )
    found = memory.run(Kernel("masked", (Loop(count),), (), outputs, vector))
    assert torch.equal(found[part], values)
    assert torch.equal(found[whole], torch.cat([values, torch.zeros(count - 20).to(dtype)]))


def test_nothing_is_written_beyond_the_end() -> None:
    for count in (1, 5, 15, 16, 17, 63):
        memory = Memory()
        target = memory.add(torch.full((count + 40,), 7.0))
        value = op("add", memory.load(torch.ones(count)), constant(1, torch.float32))
        found = memory.run(Kernel("short", (Loop(count),), (), (Output(Access(target, (1,), 0), value, True),), 0))
        assert found[target].tolist() == [2.0] * count + [7.0] * 40


@pytest.mark.parametrize("vector", [0, 1])
def test_sizes_that_vary(vector: int) -> None:
    """One kernel for all sizes: loops, strides, offsets and values of sizes."""
    n, m = sympy.symbols("n m", integer=True, positive=True)
    for count, width in ((3, 5), (40, 17), (65, 130), (300, 64)):
        memory = Memory()
        values = memory.load(torch.randn(count, width + 3), (m + 3, 1), 3)
        centred = op(
            "sub", values, op("div", reduced(0, torch.float32), op("cast", size_value(m), dtype=torch.float32))
        )
        target = memory.add(torch.zeros(count * width))
        kernel = Kernel(
            "varying",
            (Loop(n), Loop(m, True)),
            (Reduction(0, "sum", values, torch.float32),),
            (Output(Access(target, (m, 1), 0), centred, True),),
            vector,
        )
        memory.check(kernel, {n: count, m: width}, threads=2)


def test_several_kernels_in_one_module() -> None:
    memory, kernel = rows("sum", torch.randn(4, 50), 1, 1)
    other, kernel_too = rows("max", torch.randn(4, 50), 1, 1)
    module = jit.compile_module(llvm_module.emit_module({"one": kernel, "two": kernel_too}))
    assert {"one", "two"} <= set(module.names)
    for name, made, where in (("one", kernel, memory), ("two", kernel_too, other)):
        tensors = {buffer: tensor.clone() for buffer, tensor in where.tensors.items()}
        call_kernel(made, module.address(name), [tensors[buffer].data_ptr() for buffer in made.buffers], ())
        target = made.outputs[0].target.buffer
        torch.testing.assert_close(tensors[target], where.expected(made)[target])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8, torch.bool])
@pytest.mark.parametrize(("n", "m"), [(64, 64), (37, 300), (300, 37), (5, 9), (17, 16), (600, 20)])
def test_transposed_reads_and_writes(dtype: torch.dtype, n: int, m: int) -> None:
    """In the middle of a larger space, from one layout into the other, in both ways at once."""
    memory = Memory()
    values = torch.randint(0, 2, (3, m + 1, n + 2)).to(dtype)
    away = memory.load(values, ((m + 1) * (n + 2), 1, n + 2), 1)
    plain = memory.load(torch.randint(0, 2, (3, n, m)).to(dtype))
    both = op("maximum", away, plain)
    here, there = (memory.add(torch.zeros(3 * n * m).to(dtype)) for _ in range(2))
    outputs = (
        Output(Access(here, (n * m, m, 1), 0), both, False),
        Output(Access(there, (n * m, 1, n), 0), op("minimum", away, plain), False),
    )
    memory.check(Kernel("turned", (Loop(3), Loop(n), Loop(m)), (), outputs, 2), threads=2)


def test_tiles_of_two_heights_in_one_module() -> None:
    """Squares are as high as the widest type of a kernel allows, so those of one type differ between kernels."""
    kernels = {}
    for name, dtypes in (("even", (torch.float32,)), ("mixed", (torch.float32, torch.float64))):
        memory = Memory()
        values = [op("cast", memory.load(torch.ones(40, 30, dtype=d), (1, 30)), dtype=torch.float32) for d in dtypes]
        target = memory.add(torch.zeros(30, 40))
        total = values[0] if len(values) == 1 else op("add", *values)
        output = Output(Access(target, (40, 1), 0), op("neg", total), False)
        kernels[name] = Kernel(name, (Loop(30), Loop(40)), (), (output,), 1)
    assert {*kernels} <= {*jit.compile_module(llvm_module.emit_module(kernels)).names}


def test_transposed_reads_of_sizes_that_vary() -> None:
    n, m = sympy.symbols("n m", integer=True, positive=True)
    for height, width in ((3, 2), (40, 300), (257, 16)):
        memory = Memory()
        away = memory.load(torch.randn(width, height), (1, n))
        target = memory.add(torch.zeros(height, width))
        output = Output(Access(target, (m, 1), 0), op("neg", away), False)
        memory.check(Kernel("turned", (Loop(n), Loop(m)), (), (output,), 1), {n: height, m: width}, threads=2)


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("shape", [(7, 3), (3, 100), (2, 20000), (4, 1, 30), (3, 5, 70), (3, 9, 9)])
def test_dear_values_are_kept_for_later_phases(shape: tuple[int, ...], varies: bool) -> None:
    """A softmax, whose exponentials are needed twice, with rows on the stack and beyond."""
    memory = Memory()
    tensor = torch.randn(shape) * 3
    values = memory.load(tensor)
    raised = op("exp", op("sub", values, reduced(0, torch.float32)))
    target = memory.add(torch.zeros(shape))
    made = Kernel(
        "softmax",
        tuple(Loop(size, place > 0) for place, size in enumerate(shape)),
        (Reduction(0, "max", values, torch.float32), Reduction(1, "sum", raised, torch.float32)),
        (Output(Access(target, tensor.stride(), 0), op("div", raised, reduced(1, torch.float32)), True),),
        len(shape) - 1,
    )
    kernel, sizes = with_symbols(made, 1) if varies else (made, None)
    wanted = torch.softmax(tensor.flatten(1), 1).reshape(shape)
    torch.testing.assert_close(memory.run(kernel, sizes, threads=2)[target], wanted)


def test_sizes_that_are_numbers_of_sympys_are_numbers() -> None:
    zero = sympy.Integer(0)
    memory = Memory()
    value = memory.load(torch.randn(3, 40), (sympy.Integer(40), sympy.Integer(1)))
    target = memory.add(torch.zeros(3))
    output = Output(Access(target, (1, zero), zero), reduced(0, torch.float32), False)
    memory.check(Kernel("sum", (Loop(3), Loop(40, True)), (Reduction(0, "sum", value, torch.float32),), (output,), 1))
    assert iota((zero, 1)) is iota((0, 1))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 3), (3, 1)])
def test_kernels_of_few_points(shape: tuple[int, ...]) -> None:
    memory = Memory()
    tensor = torch.randn(shape)
    target = memory.add(torch.zeros(shape))
    output = Output(Access(target, tensor.stride(), 0), op("neg", memory.load(tensor)), False)
    vector = len(shape) - 1 if shape else None
    memory.check(Kernel("few", tuple(map(Loop, shape)), (), (output,), vector))


def test_a_loop_without_points_at_run_time() -> None:
    n = sympy.Symbol("n", integer=True)
    memory = Memory()
    target = memory.add(torch.full((100,), 7.0))
    output = Output(Access(target, (1,), 0), memory.load(torch.ones(100)), False)
    found = memory.run(Kernel("none", (Loop(n),), (), (output,), 0), {n: 0}, threads=2)
    assert found[target].tolist() == [7.0] * 100


@pytest.mark.parametrize("sizes", [(0, 40), (40, 0), (2, 40)])
def test_scatters_without_points_at_run_time(sizes: tuple[int, int]) -> None:
    """Threads share the columns, and each runs through all rows: of which there may be none."""
    n, m = sympy.symbols("n m", integer=True)
    memory = Memory()
    rows, columns = sizes
    target = memory.add(torch.full((3, 40), 7.0))
    index = memory.load(torch.tensor([2, 2]), (1, 0))
    output = Output(Access(target, (0, 1), 0, ((index, 40),)), memory.load(torch.ones(2, 40)), False, "add")
    found = memory.run(Kernel("none", (Loop(n), Loop(m)), (), (output,), 1), {n: rows, m: columns}, threads=2)
    assert found[target].sum() == 7 * 120 + rows * columns
    assert (found[target][:2] == 7).all()


def test_deep_expressions() -> None:
    """Chains longer than Python's stack is deep."""
    memory = Memory()
    value = first = memory.load(torch.rand(20))
    for _ in range(1500):
        value = op("add", op("mul", value, constant(0.5, torch.float32)), first)
    target = memory.add(torch.zeros(20))
    memory.check(Kernel("deep", (Loop(20),), (), (Output(Access(target, (1,), 0), value, False),), 0))


@pytest.mark.parametrize("count", [5, 17, 31])
@pytest.mark.parametrize("kind", ["sum", "max", "prod"])
def test_lanes_beyond_the_end_count_for_nothing(kind: str, count: int) -> None:
    """Whatever they would give: here 0 / 0, of masked loads and of positions."""
    memory = Memory()
    mask = memory.load(torch.ones(count, dtype=torch.bool), (0, 1))
    loads = [memory.load(torch.rand(4, count) + 0.5, (count, 1), mask=mask) for _ in range(2)]
    place = op("cast", iota((0, 1), -count), dtype=torch.float32)
    value = op("add", op("div", *loads), op("div", place, place))
    target = memory.add(torch.zeros(4))
    output = Output(Access(target, (1, 0), 0), reduced(0, torch.float32), False)
    reductions = (Reduction(0, kind, value, torch.float32),)
    memory.check(Kernel("beyond", (Loop(4), Loop(count, True)), reductions, (output,), 1))
