"""Vector functions of kiln.target.llvm.math compiled alone, references with more digits, errors in units in the last
place."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np
import torch

from kiln.target.llvm.llvm_text import Lines, Names, llvm_type
from kiln.target.llvm.math import functions as vector_math

TYPES = {torch.float32: np.float32, torch.float64: np.float64}
ELEMENTS = {torch.float32: "float", torch.float64: "double"}
LANES = {torch.float32: 16, torch.float64: 8}


def compiled(text: str, entry: str, pointers: int, features: str | None = None, cpu: str | None = None):
    """A ctypes function of so many pointers and a count."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu or llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten() if features is None else features,
        opt=2,
        reloc="pic",
        jit=True,
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    address = engine.get_function_address(entry)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * pointers, ctypes.c_int64)(address)
    function.engine = engine  # keeps the code
    return function


def loop(kinds: list[str], steps: list[int], body: list[str], declarations, step: int) -> str:
    """A function that runs the body over elements: %p0, %p1 … point to where it stands; the count is a multiple."""
    places = [
        f"%o{k} = mul i64 %i, {size}\n  %p{k} = getelementptr i8, ptr %b{k}, i64 %o{k}" for k, size in enumerate(steps)
    ]
    parameters = ", ".join([f"ptr %b{k}" for k in range(len(kinds))])
    return "\n".join(
        [
            *declarations,
            f"define void @run({parameters}, i64 %n) {{",
            "entry:\n  br label %head",
            "head:\n  %i = phi i64 [ 0, %entry ], [ %next, %body ]\n  %more = icmp slt i64 %i, %n",
            "  br i1 %more, label %body, label %end",
            "body:",
            *[f"  {line}" for line in places],
            *[f"  {line}" for line in body],
            f"  %next = add i64 %i, {step}\n  br label %head",
            "end:\n  ret void\n}",
        ]
    )


def vector_function(
    name: str, count: int, dtype: torch.dtype, lanes: int | None = None, is_for_gpu: bool = False, **target
):
    """The function on arrays, as the emitter would write it (``is_for_gpu``: for a GPU, as far as CPUs compile it)."""
    lanes = LANES[dtype] if lanes is None else lanes
    kind = llvm_type(ELEMENTS[dtype], lanes)
    lines = Lines(Names(is_for_gpu=is_for_gpu))
    operands = [lines.new(f"load {kind}, ptr %p{k}, align {dtype.itemsize}") for k in range(count)]
    result = vector_math.emit(lines, name, operands, lanes, dtype)
    assert lines.block == "entry", "what is written in place does not branch"
    lines.add(f"store {kind} {result}, ptr %p{count}, align {dtype.itemsize}")
    text = loop([kind] * (count + 1), [dtype.itemsize] * (count + 1), lines.text, lines.names.declarations, lanes)
    function = compiled(text, "run", count + 1, **target)

    def run(*arrays: np.ndarray) -> np.ndarray:
        size = arrays[0].size
        padded = -(-size // lanes) * lanes
        given = [np.concatenate([array, np.zeros(padded - size, TYPES[dtype])]) for array in arrays]
        out = np.empty(padded, TYPES[dtype])
        function(*[array.ctypes.data for array in given], out.ctypes.data, padded)
        return out[:size]

    run.text = text
    return run


def library_function(name: str, count: int, dtype: torch.dtype):
    """The C library's function in the next longer type: float64 for float32, 80 bits for float64."""
    element = ELEMENTS[dtype]
    longer, size, alignment, suffix = ("double", 8, 8, "") if element == "float" else ("x86_fp80", 16, 16, "l")
    body, operands = [], []
    for k in range(count):
        body.append(f"%x{k} = load {element}, ptr %p{k}")
        body.append(f"%w{k} = fpext {element} %x{k} to {longer}")
        operands.append(f"{longer} %w{k}")
    body.append(f"%r = call {longer} @{name}{suffix}({', '.join(operands)})")
    body.append(f"store {longer} %r, ptr %p{count}, align {alignment}")
    declaration = f"declare {longer} @{name}{suffix}({', '.join([longer] * count)})"
    text = loop([element] * (count + 1), [dtype.itemsize] * count + [size], body, [declaration], 1)
    function = compiled(text, "run", count + 1)

    def run(*arrays: np.ndarray) -> np.ndarray:
        out = np.zeros(arrays[0].size, np.float64 if size == 8 else np.longdouble)
        function(*[np.ascontiguousarray(array).ctypes.data for array in arrays], out.ctypes.data, arrays[0].size)
        return out

    return run


def ulps(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of what is expected; infinite where only one is NaN or infinite."""
    kind = got.dtype
    with np.errstate(all="ignore"):
        rounded = expected.astype(kind)
        least = np.finfo(kind).smallest_subnormal
        unit = np.spacing(np.abs(np.where(np.isfinite(rounded), rounded, 1))).astype(expected.dtype)
        errors = np.abs(got.astype(expected.dtype) - expected) / np.maximum(unit, least)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    ended = ~np.isfinite(got) | ~np.isfinite(rounded)
    errors = np.where(ended, np.where(same, 0, np.inf), errors)
    # The greatest finite number and infinity are neighbours.
    expected_size = np.abs(np.nan_to_num(expected, nan=0))
    edge = (np.abs(got) == np.inf) & np.isfinite(rounded) & (expected_size >= np.finfo(kind).max)
    return np.where(edge, 1, errors).astype(np.float64)


def reference(name: str, dtype: torch.dtype):
    """What a function of one argument should give, with more digits than the type has."""
    if name in ("erfinv", "digamma"):
        return lambda x: getattr(torch, name)(torch.from_numpy(x).double()).numpy()
    if name not in ("sigmoid", "rsqrt", "round"):
        return library_function(name, 1, dtype)
    return lambda x: FORMULAS[name](x.astype(np.float64 if dtype is torch.float32 else np.longdouble))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    t = np.exp(-np.abs(x))
    return np.where(x < 0, t, 1) / (1 + t)


FORMULAS = {"sigmoid": _sigmoid, "rsqrt": lambda x: 1 / np.sqrt(x), "round": np.rint}


def floats(dtype: torch.dtype, mantissas: int, seed: int = 0) -> np.ndarray:
    """All signs and exponents with so many mantissas each, and the numbers about which functions are particular."""
    generator = np.random.default_rng(seed)
    bits, fraction, unsigned = (9, 23, np.uint32) if dtype is torch.float32 else (12, 52, np.uint64)
    high = np.arange(1 << bits, dtype=unsigned) << unsigned(fraction)
    low = generator.integers(0, 1 << fraction, (1 << bits, mantissas), dtype=unsigned)
    low[:, 0], low[:, 1], low[:, 2] = 0, 1, (1 << fraction) - 1
    found = (high[:, None] | low).reshape(-1).view(TYPES[dtype])
    particular = [0.0, 1.0, 0.5, 2.0, 1.5, 2.5, 10.0, np.inf, np.nan, np.pi, np.pi / 2, np.e, np.log(2), 0.25, 3.0]
    near = [np.nextafter(TYPES[dtype](p), TYPES[dtype](q)) for p in particular for q in (-10, 100)]
    both = np.array([*particular, *near], TYPES[dtype])
    return np.concatenate([found, both, -both])
