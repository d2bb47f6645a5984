"""Compiles LLVM IR text to machine code in this process, for this CPU.

LLVM is imported when something is compiled for the first time; code from the disk cache (`load_object`) does without
it. No passes run: LLVM only selects instructions and registers. Functions that kernels call are found in the libraries
that torch has loaded.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ...platform.locks import new_lock
from ..compile_queue import compile_all
from ..llvm import compiler
from ..llvm.compiler import CompileError, Compiler, Compilers
from . import elf

__all__ = ["CompileError", "Compiler"]

OPTIMIZATION_LEVEL = 1  # of code generation


class Module:
    """Functions in memory. The memory is freed with the module, so the caller of a function keeps the module."""

    def __init__(self, object_code: bytes) -> None:
        self.image = elf.load(object_code, address_of)

    def address(self, name: str) -> int:
        """Where a function begins."""
        try:
            return self.image.addresses[name]
        except KeyError:
            raise CompileError(f"the module has no function {name}") from None

    @property
    def names(self) -> list[str]:
        return list(self.image.addresses)


def compile_module(text: str) -> Module:
    """The functions of an LLVM module, ready to be called."""
    return Module(compile_object(text))


def load_object(object_code: bytes) -> Module:
    """The functions of a module that was compiled before, on such a machine."""
    return Module(object_code)


# ---- compiling -------------------------------------------------------------------------------------------------------


def compile_object(text: str) -> bytes:
    """Object code of an LLVM module."""
    with compilers.borrowed() as borrowed:
        return borrowed.compile(text)


def compile_objects(texts: Iterable[str]) -> list[bytes]:
    """Object code of several modules, on several threads."""
    return compile_all(texts, compile_object)


def make_compiler() -> Compiler:
    """LLVM, set up for this CPU."""
    binding = llvm()
    name, features = host_target()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=OPTIMIZATION_LEVEL, reloc="pic", codemodel="small"
    )
    return Compiler(binding, machine)


compilers = Compilers(make_compiler)
_setting_up = new_lock()


def llvm() -> Any:
    """llvmlite's bindings, with this machine's own target set up."""
    with _setting_up:
        return _llvm()


@functools.cache
def _llvm() -> Any:
    binding = compiler.llvm()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@functools.cache
def host_target() -> tuple[str, str]:
    """This CPU's name and features, as LLVM names them."""
    return llvm().get_host_cpu_name(), llvm().get_host_cpu_features().flatten()


def assembly(text: str) -> str:
    """The assembly text of an LLVM module."""
    with compilers.borrowed() as borrowed:
        return borrowed.compile(text, assembly=True).decode()


# ---- what kernels call -----------------------------------------------------------------------------------------------


@functools.cache
def torch_library() -> ctypes.CDLL:
    """torch's library. Names are also found in the libraries it was linked with, its own OpenMP first."""
    names: Sequence[str] = ("libtorch_cpu.so", "libtorch_cpu.dylib")
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    for name in names:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return ctypes.CDLL(path)
    return ctypes.CDLL(None)


@functools.cache
def address_of(name: str) -> int:
    """The address of a function of OpenMP or of the C library."""
    try:
        found = ctypes.cast(getattr(torch_library(), name), ctypes.c_void_p).value
    except AttributeError:
        found = None
    if found is None:
        raise CompileError(f"a kernel calls {name}, which is nowhere to be found")
    return found
