"""Compiles LLVM IR text to PTX, the assembly of NVIDIA GPUs. It needs no GPU.

PTX is of a version and for an architecture without packed instructions on 16-bit integers (`assembler_bugs`). PTX for
sm_90 also runs on later GPUs.
"""

from __future__ import annotations

import functools
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
        return without_wrong_instructions(borrowed.compile(text, assembly=True).decode()).encode()


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
