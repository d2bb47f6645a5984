"""Compiles LLVM IR text to PTX, the assembly of NVIDIA GPUs. It needs no GPU."""

from __future__ import annotations

import functools
from typing import Any

from ...platform.locks import new_lock
from ..llvm import compiler
from ..llvm.compiler import CompileError, Compiler, Compilers

TRIPLE = "nvptx64-nvidia-cuda"
PTX_FEATURES = "+ptx80"  # drivers from CUDA 12.0 on take it
OPTIMIZATION_LEVEL = 3  # of code generation
PtxError = CompileError

_setting_up = new_lock()


def compile_ptx(text: str, architecture: str) -> bytes:
    """The PTX of an LLVM module, for "sm_90" or another architecture."""
    with compilers_for(architecture).borrowed() as borrowed:
        return borrowed.compile(text, assembly=True)


@functools.cache
def compilers_for(architecture: str) -> Compilers:
    return Compilers(functools.partial(make_compiler, architecture))


def make_compiler(architecture: str) -> Compiler:
    with _setting_up:
        binding = llvm()
    machine = binding.Target.from_triple(TRIPLE).create_target_machine(
        cpu=architecture, features=PTX_FEATURES, opt=OPTIMIZATION_LEVEL
    )
    return Compiler(binding, machine)


@functools.cache
def llvm() -> Any:
    """llvmlite's bindings, with the target of GPUs set up."""
    binding = compiler.llvm()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding
