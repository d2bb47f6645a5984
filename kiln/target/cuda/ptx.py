"""Compiles LLVM IR text to PTX, the assembly of NVIDIA GPUs. It needs no GPU.

PTX is of a version without packed instructions on 16-bit integers (`assembler_bugs`). PTX for
sm_90 also runs on later GPUs.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from ...platform.locks import new_lock
from ..llvm import compiler
from ..llvm.compiler import CompileError, Compiler, Compilers
from .assembler_bugs import without_wrong_instructions

TRIPLE = "nvptx64-nvidia-cuda"
PTX_FEATURES = "+ptx78"  # drivers from CUDA 11.8 on take it; from 8.0 on it has packed instructions
NEWEST_ARCHITECTURE = 90  # that PTX is written for; later ones ask for a later version
OPTIMIZATION_LEVEL = 3  # of code generation
PtxError = CompileError

_setting_up = new_lock()


def ptx_architecture(architecture: str) -> str:
    """The architecture that PTX is written for, so that a GPU of ``architecture`` runs it."""
    return f"sm_{min(int(architecture.removeprefix('sm_')), NEWEST_ARCHITECTURE)}"


def compile_ptx(text: str, architecture: str) -> bytes:
    """The PTX of an LLVM module, for GPUs of "sm_90" or another architecture."""
    with compilers_for(architecture).borrowed() as borrowed:
        ptx = without_wrong_instructions(borrowed.compile(text, assembly=True).decode())
    return with_vector_additions(ptx, has_them=ptx_architecture(architecture) == "sm_90").encode()


ADDITION = "red.relaxed.gpu.global.add"  # of the GPU's memory, without a result
VECTOR_ADDITION = re.compile(rf"^\t{re.escape(ADDITION)}\.v[24]\.f32 \[(%\w+)\], \{{([^}}]*)\}};", re.MULTILINE)


def with_vector_additions(ptx: str, has_them: bool) -> str:
    """Additions to neighbouring elements (`atomics.add_vector`): instructions of sm_90 and of PTX 8.1, if the GPU has
    them, otherwise one for each element."""
    if not VECTOR_ADDITION.search(ptx):
        return ptx
    if has_them:
        return VERSION.sub(".version 8.1", ptx, count=1)
    return VECTOR_ADDITION.sub(one_by_one, ptx)


VERSION = re.compile(r"^\.version 7\.8$", re.MULTILINE)


def one_by_one(found: re.Match[str]) -> str:
    place, values = found[1], found[2].split(", ")
    steps = (f"\t{ADDITION}.f32 [{place}+{4 * number}], {one};" for number, one in enumerate(values))
    return "\n".join(steps)


@functools.cache
def compilers_for(architecture: str) -> Compilers:
    return Compilers(functools.partial(make_compiler, architecture))


def make_compiler(architecture: str) -> Compiler:
    with _setting_up:
        binding = llvm()
    machine = binding.Target.from_triple(TRIPLE).create_target_machine(
        cpu=ptx_architecture(architecture), features=PTX_FEATURES, opt=OPTIMIZATION_LEVEL
    )
    return Compiler(binding, machine)


@functools.cache
def llvm() -> Any:
    """llvmlite's bindings, with the target of GPUs set up."""
    binding = compiler.llvm()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding
