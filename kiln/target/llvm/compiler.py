"""LLVM as a compiler of IR text to object code or assembly, by several threads at a time.

llvmlite lets one thread at a time into LLVM. Here each thread has a context and a target machine of its own, and calls
the functions that take long without that lock.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from kiln.exc import KilnError

from ...platform.locks import new_lock

_importing = new_lock()


class CompileError(KilnError):
    """LLVM IR that LLVM refuses, or an unknown function: a bug of the code generator."""


class Compiler:
    """LLVM, set up for one machine; for one thread at a time."""

    def __init__(self, llvm: Any, machine: Any) -> None:
        self.llvm, self.machine = llvm, machine

    def compile(self, text: str, assembly: bool = False) -> bytes:
        """Object code, or assembly text."""
        with self.llvm.create_context() as context:
            try:
                with self.parse(text, context) as module:
                    module.verify()
                    return self.emit(module, assembly)
            except RuntimeError as error:
                raise CompileError(f"LLVM refuses a kernel: {error}") from error

    def parse(self, text: str, context: Any) -> Any:
        """As `llvm.parse_assembly`, without the lock."""
        ffi = self.llvm.ffi
        with ffi.OutputString() as message:
            found = unlocked(ffi, "LLVMPY_ParseAssembly")(context, text.encode(), message)
            if not found or message:
                raise RuntimeError(f"LLVM IR parsing error\n{message}")
        return self.llvm.ModuleRef(found, context)

    def emit(self, module: Any, assembly: bool) -> bytes:
        """As `machine.emit_object` and `emit_assembly`, without the lock."""
        ffi = self.llvm.ffi
        with ffi.OutputString() as message:
            buffer = unlocked(ffi, "LLVMPY_TargetMachineEmitToMemory")(self.machine, module, int(not assembly), message)
            if not buffer:
                raise CompileError(f"LLVM cannot compile a kernel: {message}")
        try:
            return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def unlocked(ffi: Any, name: str) -> Any:
    function = getattr(ffi.lib, name)
    return getattr(function, "_cfn", function)


class Compilers:
    """Compilers for one machine, which threads borrow; some are kept for the next compilation."""

    def __init__(self, make: Callable[[], Compiler]) -> None:
        self.make = make
        self.idle: deque[Compiler] = deque(maxlen=16)

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[Compiler]:
        """A compiler for this thread alone."""
        try:
            compiler = self.idle.pop()
        except IndexError:
            compiler = self.make()
        yield compiler
        self.idle.append(compiler)  # not after an error


def llvm() -> Any:
    """llvmlite's bindings."""
    with _importing:
        try:
            from llvmlite import binding
        except ImportError as error:
            raise CompileError(f"llvmlite is needed to compile kernels, and cannot be imported: {error}") from error
        return binding
