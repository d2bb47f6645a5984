"""Facts about this machine's CPU, found without LLVM: its vectors, and its identity for the disk cache."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform

# Fields of /proc/cpuinfo that identify a kind of CPU: code is shared between CPUs that agree in all of them.
IDENTIFYING_FIELDS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")


@functools.cache
def description() -> dict[str, str]:
    """The system's description of the first CPU; on some systems there is little."""
    found = {"machine": platform.machine(), "system": platform.system()}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if not name.strip():
                    break  # the next CPU
                if name.strip() in IDENTIFYING_FIELDS:
                    found[name.strip()] = value.strip()
    except OSError:
        found["processor"] = platform.processor()
    return found


@functools.cache
def flags() -> frozenset[str]:
    """The features of the CPU, by the system's names: avx2, avx512f, fma …"""
    found = description()
    return frozenset(found.get("flags", found.get("Features", "")).split())


def vector_bytes() -> int:
    """The width of the CPU's vectors."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags():
        return 64
    return 32 if "avx2" in flags() else 16


def has_scale_instruction() -> bool:
    """Whether the CPU multiplies by powers of two in one instruction; otherwise LLVM calls a function for each lane."""
    return vector_bytes() == 64


@functools.cache
def identity() -> str:
    """The kind of CPU and the version of LLVM, as text."""
    parts = [f"{name}={value}" for name, value in sorted(description().items())]
    return "\n".join([*parts, f"llvmlite={llvm_version()}"])


def llvm_version() -> str:
    """The version of llvmlite, which contains LLVM, from its version file: without importing it."""
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return "none"
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "_version.py"), encoding="utf-8") as file:
            return file.read()
    except OSError:
        import llvmlite

        return str(llvmlite.__version__)
