"""Kernels for GPUs, without one: LLVM verifies and compiles them; plans and PTX have the form they must have."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import sympy
import torch

from kiln.loops.ir import Access, constant, iota, load, op, reduced, walk
from kiln.loops.kernel import Kernel, Loop, Output, Reduction
from kiln.target import compile_queue, target
from kiln.target.cuda import cuda_target
from kiln.target.cuda.assembler_bugs import without_wrong_instructions
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.kernel_plan import CudaPlan, NotOnGpu, plan_of
from kiln.target.cuda.ptx import PtxError, compile_ptx, ptx_architecture
from kiln.target.cuda.relaxed_functions import relaxed_functions
from kiln.target.cuda.row_registers import kept_after, most_registers
from kiln.target.llvm.math import functions
from tests.target.kernel_runs import Memory
from tests.target.random_kernels import RandomKernel

ARCHITECTURE = "sm_90"


def ptx_of(kernel: Kernel) -> str:
    return compile_ptx(emit_module({"the_kernel": kernel}), ARCHITECTURE).decode()


def pointwise(dtype: torch.dtype, *sizes: int, size: object = None) -> Kernel:
    memory, shape = Memory(), sizes
    a, out = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    buffer = memory.add(out)
    value = op("add", memory.load(a), constant(1, dtype))
    loops = [Loop(one) for one in sizes] if size is None else [Loop(size)]  # type: ignore[arg-type]
    return Kernel("k", tuple(loops), (), (Output(Access(buffer, out.stride(), 0), value, False),), len(loops) - 1)


def row_sums(rows: int, columns: int, dtype: torch.dtype = torch.float32, is_down: bool = False) -> Kernel:
    """Each element minus the sum of its row (``is_down``: the sums of columns)."""
    memory = Memory()
    a = torch.zeros(rows, columns, dtype=dtype)
    value = op("cast", memory.load(a), dtype=torch.float32)
    total = reduced(0, torch.float32)
    if is_down:
        sums = memory.add(torch.zeros(columns))
        # Kept loops come first.
        value = op("cast", load(Access(memory.add(a), (1, columns), 0)), dtype=torch.float32)
        reduction = Reduction(0, "sum", value, torch.float32)
        output = Output(Access(sums, (1, 0), 0), total, False)
        return Kernel("k", (Loop(columns), Loop(rows, True)), (reduction,), (output,), 0)
    out = memory.add(torch.zeros(rows, columns))
    reduction = Reduction(0, "sum", value, torch.float32)
    output = Output(Access(out, (columns, 1), 0), op("sub", value, total), True)
    return Kernel("k", (Loop(rows), Loop(columns, True)), (reduction,), (output,), 1)


def transposed(rows: int, columns: int, dtype: torch.dtype, outer: int = 1) -> tuple[Kernel, Memory]:
    """A copy of matrices, with rows and columns exchanged; kernel and memory."""
    memory = Memory()
    a = memory.load(torch.zeros(outer, rows, columns, dtype=dtype), (rows * columns, 1, columns))
    out = memory.add(torch.zeros(outer, columns, rows, dtype=dtype))
    loops = (Loop(outer), Loop(columns), Loop(rows))
    output = Output(Access(out, (rows * columns, rows, 1), 0), a, False)
    return Kernel("k", loops, (), (output,), 2), memory


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_random_kernels_compile(start):
    compiled = 0
    for seed in range(start, start + 40):
        kernel = RandomKernel(seed).kernel()
        try:
            text = ptx_of(kernel)
        except NotOnGpu:
            continue
        compiled += 1
        assert ".visible .entry the_kernel(" in text
        assert len(re.findall(r"\.param ", text.split("the_kernel(")[1].split(")")[0])) == len(kernel.buffers) + len(
            kernel.sizes
        )
        plan = plan_of(kernel)
        assert f".maxntid {plan.threads}" in text
        assert plan.threads % plan.members == 0 and plan.threads <= 1024
    assert compiled > 30


@pytest.mark.parametrize(
    ("dtype", "lanes", "instruction"),
    [(torch.bfloat16, 8, "ld.global.v4.b32"), (torch.float32, 4, "ld.global.v4.b32"), (torch.float64, 2, "v2.b64")],
)
def test_contiguous_elements_are_loaded_16_bytes_at_once(dtype, lanes, instruction):
    kernel = pointwise(dtype, 4096, 1024)
    assert plan_of(kernel).lanes == lanes and set(plan_of(kernel).aligned) == {16}
    assert instruction in ptx_of(kernel)


def test_loads_and_stores_are_of_global_memory():
    for kernel in (pointwise(torch.float32, 513, 77), row_sums(100, 768)):
        text = ptx_of(kernel)
        assert "ld.global" in text and "st.global" in text
        assert not re.search(r"\b(ld|st)\.(b|u|f|v)", text)  # which would look for the address space at run time


def test_rows_that_are_not_aligned_are_read_element_by_element():
    kernel = pointwise(torch.bfloat16, 4096, 1023)
    assert plan_of(kernel).lanes == 1 and set(plan_of(kernel).aligned) == {1}


def test_a_dynamic_length_has_vectors_and_a_masked_end():
    length = sympy.Symbol("length", integer=True, positive=True)
    kernel = pointwise(torch.float32, 1 << 22, size=length)
    plan = plan_of(kernel)
    assert plan.lanes == 4
    assert plan.blocks.subs({length: 1 << 22}) == (1 << 22) // 4 // 256
    assert plan.blocks.subs({length: 1025}) == 2
    text = ptx_of(kernel)
    assert "ld.global.v4" in text and "ld.global.b32" in text


@pytest.mark.parametrize(
    ("rows", "columns", "members", "copies"), [(1 << 16, 768, 32, 6), (1 << 16, 64, 16, 1), (64, 50304, 1024, 0)]
)
def test_rows_are_shared_by_threads(rows, columns, members, copies):
    plan: CudaPlan = plan_of(row_sums(rows, columns))
    assert (plan.members, plan.copies, plan.is_by_columns) == (members, copies, False)


def test_a_row_in_registers_is_loaded_once():
    text = ptx_of(row_sums(1 << 16, 768, torch.bfloat16))
    assert text.count("ld.global.v2.b32") == plan_of(row_sums(1 << 16, 768, torch.bfloat16)).copies
    assert "shfl.sync.bfly" in text and "bar.sync" not in text and ".shared" not in text


def test_long_rows_use_shared_memory_once():
    text = ptx_of(row_sums(64, 50304))
    assert "shfl.sync.bfly" in text and text.count("bar.sync") == 1 and ".shared" in text


def test_columns_are_contiguous_across_threads():
    kernel = row_sums(4096, 4096, is_down=True)
    plan = plan_of(kernel)
    assert plan.is_by_columns and plan.lanes == 4 and plan.units_of_block == 8 and plan.members == 32
    assert "bar.sync" in ptx_of(kernel)
    wide = plan_of(row_sums(64, 1 << 20, is_down=True))  # so many columns that a thread sums one alone
    assert wide.is_by_columns and wide.members == 1 and wide.at_once > 1


def test_rounds_of_a_loop_load_before_they_compute():
    """Sums down columns have several loads on their way at once."""
    kernel = row_sums(4096, 4096, torch.bfloat16, is_down=True)
    plan, text = plan_of(kernel), ptx_of(kernel)
    assert plan.at_once == 8
    loop = text[text.index("$L__BB") : text.index("bra")]
    assert loop.count("ld.global.v4") == 8 and "st." not in loop


def test_many_reductions_share_the_memory_of_a_block():
    """As in the backward of two layer norms: more sums down columns than fit into shared memory at once."""
    memory = Memory()
    loads = [load(Access(memory.add(torch.zeros(4096, 1024, dtype=torch.bfloat16)), (1, 1024), 0)) for _ in range(9)]
    sums = [Reduction(n, "sum", op("cast", a, dtype=torch.float32), torch.float32) for n, a in enumerate(loads)]
    outputs = [
        Output(Access(memory.add(torch.zeros(1024)), (1, 0), 0), reduced(n, torch.float32), False) for n in range(9)
    ]
    kernel = Kernel("k", (Loop(1024), Loop(4096, True)), tuple(sums), tuple(outputs), 0)
    text = ptx_of(kernel)
    size = int(re.search(r"the_kernel_shared\[(\d+)\]", text).group(1))
    assert 16 * 1024 < size <= 48 * 1024 and text.count("bar.sync") >= 3


def test_a_row_keeps_what_later_phases_need():
    """A row of sums of three matrices: their sum stays in registers, not all three of them."""
    memory = Memory()
    total: object = None
    for dtype in (torch.float32, torch.bfloat16, torch.bfloat16):
        one = op("cast", memory.load(torch.zeros(1 << 16, 768, dtype=dtype)), dtype=torch.float32)
        total = one if total is None else op("add", total, one)
    mean = Reduction(0, "sum", total, torch.float32)
    centred = op("sub", total, reduced(0, torch.float32))
    squares = Reduction(1, "sum", op("mul", centred, centred), torch.float32)
    out = memory.add(torch.zeros(1 << 16, 768))
    value = op("mul", centred, reduced(1, torch.float32))
    output = Output(Access(out, (768, 1), 0), value, True)
    kernel = Kernel("k", (Loop(1 << 16), Loop(768, True)), (mean, squares), (output,), 1)
    plan = plan_of(kernel)
    assert plan.copies == 6 and [len(kept_after(plan.phases, number, 1)) for number in (0, 1)] == [1, 1]
    text = ptx_of(kernel)
    assert text.count("ld.global.v4.b32") == 6 and text.count("ld.global.") == 3 * 6


def test_long_rows_of_bfloat16_stay_in_registers_as_they_are():
    kernel = row_sums(8192, 50304, torch.bfloat16)
    plan = plan_of(kernel)
    assert (plan.members, plan.copies) == (1024, 13) and most_registers(plan.phases, 1) == 0.5
    assert ptx_of(kernel).count("ld.global.v2.b32") == 13


@pytest.mark.parametrize(("columns", "lanes"), [(50304, 8), (50257, 1)])
def test_the_statistics_of_a_softmax_take_one_run(columns, lanes):
    memory = Memory()
    x = op("cast", memory.load(torch.zeros(8192, columns, dtype=torch.bfloat16)), dtype=torch.float32)
    most = Reduction(0, "max", x, torch.float32)
    powers = op("exp", op("sub", x, reduced(0, torch.float32)))
    total = Reduction(1, "sum", powers, torch.float32)
    outputs = [
        Output(Access(memory.add(torch.zeros(8192)), (1, 0), 0), reduced(n, torch.float32), False) for n in (0, 1)
    ]
    kernel = Kernel("k", (Loop(8192), Loop(columns, True)), (most, total), tuple(outputs), 1)
    plan, text = plan_of(kernel), ptx_of(kernel)
    assert plan.online is not None and plan.lanes == lanes and not plan.copies
    loop = text[text.index("$L__BB") : text.index("bra")]
    kind = "ld.global.v4.b32" if lanes == 8 else "ld.global.b16"
    assert loop.count(kind) == plan.at_once > 1
    assert loop.count("ex2") == plan.at_once * lanes + 1


# ---- transposed loads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "lanes"), [(torch.bfloat16, 8), (torch.float32, 4), (torch.float64, 2)])
def test_transposed_loads_go_through_shared_memory(dtype, lanes):
    kernel, _ = transposed(4096, 2048, dtype)
    plan, text = plan_of(kernel), ptx_of(kernel)
    assert plan.tile is not None and plan.tile.across == 1 and plan.lanes == lanes and set(plan.aligned) == {16}
    assert plan.blocks == 64 * 32 and text.count("bar.sync") == 1
    rounds = 64 * 64 // lanes // 256
    vector = "v2.b64" if dtype is torch.float64 else "v4.b32"
    assert text.count(f"ld.global.{vector}") == text.count(f"st.global.{vector}") == rounds
    assert "ld.shared" in text and "st.shared" in text


def test_small_or_dynamic_loops_have_no_tiles():
    assert plan_of(transposed(3, 4096, torch.float32)[0]).tile is None
    assert plan_of(transposed(4096, 3, torch.float32)[0]).tile is None
    assert plan_of(pointwise(torch.float32, 4096, 1024)).tile is None


# ---- functions with larger errors ------------------------------------------------------------------------------------


def gelu_like(source: torch.dtype, target: torch.dtype, name: str, is_beside_one: bool) -> Kernel:
    memory = Memory()
    x = op("cast", memory.load(torch.zeros(4096, 1024, dtype=source)), dtype=torch.float32)
    value = op(name, x)
    if is_beside_one:
        value = op("mul", x, op("add", constant(1.0, torch.float32), value))
    out = memory.add(torch.zeros(4096, 1024, dtype=target))
    output = Output(Access(out, (1024, 1), 0), op("cast", value, dtype=target), False)
    return Kernel("k", (Loop(4096), Loop(1024)), (), (output,), 1)


@pytest.mark.parametrize(
    ("target", "name", "is_beside_one", "is_relaxed"),
    [
        (torch.bfloat16, "exp", False, True),
        (torch.float32, "exp", False, False),
        (torch.bfloat16, "sigmoid", False, True),
        (torch.float32, "sigmoid", True, False),
        (torch.float32, "tanh", True, True),
        (torch.bfloat16, "tanh", True, True),
        (torch.bfloat16, "tanh", False, False),
    ],
)
def test_functions_whose_error_nobody_sees_are_short(target, name, is_beside_one, is_relaxed):
    kernel = gelu_like(torch.float32, target, name, is_beside_one)
    assert bool(relaxed_functions(kernel, list(kernel.roots()) + list(walk(*kernel.roots())))) == is_relaxed
    text = ptx_of(kernel)
    assert (text.count("fma.rn") <= text.count("ex2.approx")) == is_relaxed


def test_a_sum_of_exponentials_keeps_its_bounds():
    """Terms of which none is known to be large."""
    memory = Memory()
    x = memory.load(torch.zeros(4096, 1024))
    total = Reduction(0, "sum", op("exp", x), torch.float32)
    out = memory.add(torch.zeros(4096))
    output = Output(Access(out, (1, 0), 0), reduced(0, torch.float32), False)
    kernel = Kernel("k", (Loop(4096), Loop(1024, True)), (total,), (output,), 1)
    assert not relaxed_functions(kernel, walk(*kernel.roots()))


def test_a_function_that_is_compared_keeps_its_bounds():
    memory = Memory()
    x = memory.load(torch.zeros(4096))
    value = op("where", op("gt", op("exp", x), constant(1.0, torch.float32)), x, op("exp", x))
    out = memory.add(torch.zeros(4096, dtype=torch.bfloat16))
    output = Output(Access(out, (1,), 0), op("cast", value, dtype=torch.bfloat16), False)
    kernel = Kernel("k", (Loop(4096),), (), (output,), 0)
    assert not relaxed_functions(kernel, walk(*kernel.roots()))


def test_atomic_additions():
    memory = Memory()
    index = torch.zeros(512, dtype=torch.int64)
    target = memory.add(torch.zeros(100))
    place = Access(target, (0,), 0, ((memory.load(index), 1),))
    output = Output(place, memory.load(torch.zeros(512)), False, "add")
    text = ptx_of(Kernel("k", (Loop(512),), (), (output,), None))
    assert re.search(r"(atom|red)\S*\.global\.add\.f32", text)


@pytest.mark.parametrize(
    ("how", "dtype", "wanted"),
    [
        ("add", torch.bfloat16, r"(atom|red)\S*\.global\S*\.add\S*\.bf16"),
        ("add", torch.float16, r"(atom|red)\S*\.global\S*\.add\S*\.f16"),
        ("max", torch.int32, r"(atom|red)\S*\.global\S*\.max\.s32"),
        ("min", torch.int64, r"(atom|red)\S*\.global\S*\.min\.s64"),
        ("mul", torch.float32, r"atom\S*\.global\S*\.cas\.b32"),
        ("max", torch.float64, r"atom\S*\.global\S*\.cas\.b64"),
        ("min", torch.bfloat16, r"atom\S*\.global\S*\.cas\.b32"),
        ("add", torch.int16, r"atom\S*\.global\S*\.cas\.b32"),
        ("mul", torch.uint8, r"atom\S*\.global\S*\.cas\.b32"),
    ],
)
def test_combinations_by_several_threads(how, dtype, wanted, tmp_path):
    memory = Memory()
    target = memory.add(torch.zeros(100, dtype=dtype))
    place = Access(target, (0,), 0, ((memory.load(torch.zeros(512, dtype=torch.int64)), 1),))
    output = Output(place, memory.load(torch.zeros(512, dtype=dtype)), False, how)
    text = ptx_of(Kernel("k", (Loop(512),), (), (output,), None))
    assert re.search(wanted, text), text
    if shutil.which("ptxas") is not None:
        (tmp_path / "k.ptx").write_text(text)
        subprocess.run(["ptxas", f"-arch={ARCHITECTURE}", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"], check=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(functions.NAMES - {"copysign", "fma", "abs"}) + ["floordiv"])
def test_functions_need_no_library(name, dtype):
    memory = Memory()
    out = memory.add(torch.zeros(1 << 18, dtype=dtype))
    count = 2 if name in ("pow", "atan2", "hypot", "fmod", "remainder", "nextafter", "floordiv") else 1
    value = op(name, *[memory.load(torch.zeros(1 << 18, dtype=dtype)) for _ in range(count)])
    text = ptx_of(Kernel("k", (Loop(1 << 18),), (), (Output(Access(out, (1,), 0), value, False),), 0))
    assert ".extern" not in text


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs NVIDIA's assembler")
@pytest.mark.parametrize("seed", range(400, 420))
def test_the_assembler_takes_functions(seed, tmp_path):
    try:
        text = ptx_of(RandomKernel(seed, has_functions=True).kernel())
    except NotOnGpu as reason:
        pytest.skip(f"no form on GPUs: {reason}")
    (tmp_path / "k.ptx").write_text(text)
    subprocess.run(["ptxas", f"-arch={ARCHITECTURE}", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"], check=True)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("name", ["remainder", "add", "minimum", "maximum"])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int8, torch.uint8])
def test_short_integers_have_no_instructions_that_are_compiled_wrongly(name, dtype, architecture):
    memory = Memory()
    out = memory.add(torch.zeros(1 << 20, dtype=dtype))
    value = op(name, memory.load(torch.zeros(1 << 20, dtype=dtype)), op("cast", iota((1,)), dtype=dtype))
    kernel = Kernel("k", (Loop(1 << 20),), (), (Output(Access(out, (1,), 0), value, False),), 0)
    assert plan_of(kernel).lanes > 1
    text = compile_ptx(emit_module({"the_kernel": kernel}), architecture).decode()
    assert "16x2" not in text and not re.search(r"\b(min|max)\.[su]16\b", text)


def test_extremes_of_short_integers_are_computed_in_32_bits():
    changed = without_wrong_instructions(
        "\tmax.s16 \t%rs1, %rs2, -5;\n\tmin.u16 \t%rs3, %rs4, -1;\n\tmin.s16 \t%rs1, %rs2, %rs3;"
    )
    found = [line.split() for line in changed.splitlines()]
    assert ["max.s32", "%word0,", "%word0,", "%word1;"] in found and ["mov.b32", "%word1,", "-5;"] in found
    assert ["min.u32", "%word0,", "%word0,", "%word1;"] in found and ["mov.b32", "%word1,", "65535;"] in found
    assert ["cvt.s32.s16", "%word1,", "%rs3;"] in found and changed.count("{") == 3


def test_ptx_is_for_architectures_that_llvm_and_the_assembler_agree_on():
    assert [ptx_architecture(name) for name in ("sm_80", "sm_90", "sm_103")] == ["sm_80", "sm_90", "sm_90"]


def test_a_wrong_module_is_an_error_of_ours():
    with pytest.raises(PtxError, match="LLVM refuses"):
        compile_ptx("define ptx_kernel void @k() { ret i32 0 }", ARCHITECTURE)


def test_threads_write_the_ptx_that_one_thread_writes(monkeypatch):
    kernels = [pointwise(torch.float32, 64 + number) for number in range(6)] + [row_sums(8, 100 + n) for n in range(6)]
    texts = [emit_module({"the_kernel": kernel}) for kernel in kernels]
    monkeypatch.setattr(compile_queue, "thread_count", lambda: 8)
    together = compile_queue.compile_all(texts, lambda text: compile_ptx(text, ARCHITECTURE))
    assert together == [compile_ptx(text, ARCHITECTURE) for text in texts]


@pytest.mark.parametrize(
    "threads, kernels, modules", [(2, 1, 1), (2, 3, 2), (2, 27, 7), (8, 3, 3), (8, 27, 7), (8, 9, 5)]
)
def test_each_thread_has_a_module(threads, kernels, modules, monkeypatch):
    monkeypatch.setattr(target, "thread_count", lambda: threads)
    given = [pointwise(torch.float32, 8)] * kernels
    made = list(target.modules_of(given))
    assert len(made) == modules and max(map(len, made)) <= 4
    assert [name in made[place] for place, name in target.places_of(given)] == [True] * kernels


def test_what_compiles_is_loaded_once(monkeypatch):
    """A thread loads LLVM and the linker while the first graph is lowered."""
    monkeypatch.setattr(cuda_target, "_prepared", {})
    started = []
    monkeypatch.setattr(cuda_target.CudaTarget, "image", lambda self, text: started.append(text))
    gpu = cuda_target.CudaTarget(torch.device("cuda", 0))
    for _ in range(2):
        gpu.prepare()
    for thread in cuda_target._prepared.values():
        thread.join()
    assert len(started) == 1 and "@nothing" in started[0]
    monkeypatch.undo()
    assert b"nothing" in compile_ptx(started[0], ARCHITECTURE)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_choices_between_bytes_compile(dtype):
    """LLVM 22 ends the process at a choice between four bytes 1 and four bytes 0: this is another one."""
    memory = Memory()
    given = memory.load(torch.randn(64, 4096))
    out = memory.add(torch.zeros(64, 4096, dtype=dtype))
    value = constant(0, dtype)
    for number in (1, 2):
        value = op("where", op("gt", given, constant(number, torch.float32)), constant(number, dtype), value)
    kernel = Kernel("k", (Loop(64), Loop(4096)), (), (Output(Access(out, (4096, 1), 0), value, False),), 1)
    assert plan_of(kernel).lanes == 4
    assert ptx_of(kernel)


def test_conditions_of_a_whole_vector_have_no_branches():
    memory = Memory()
    given, out = memory.add(torch.randn(64, 4096)), memory.add(torch.zeros(64, 4096))
    inside = op("ge", iota((1, 0), -1), constant(0, torch.int64))
    value = load(Access(given, (4096, 1), -4096, (), inside))
    kernel = Kernel("k", (Loop(64), Loop(4096)), (), (Output(Access(out, (4096, 1), 0), value, False),), 1)
    ptx = ptx_of(kernel)
    assert "ld.global.v4" in ptx and "bra" not in ptx
