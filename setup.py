"""Builds the one native module, `kiln._native`; everything else about the package is in pyproject.toml."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

# Before torch, which need not be there for such a Python.
problem = runpy.run_path("kiln/platform/support/supported.py")["python_problem"]()
if problem:
    sys.exit(problem)

import torch  # noqa: E402
from setuptools import setup  # noqa: E402
from torch.utils.cpp_extension import BuildExtension, CppExtension  # noqa: E402

# Two compilations at a time: one translation unit that includes torch's headers needs about a gigabyte.
os.environ.setdefault("MAX_JOBS", "2")

NATIVE = Path("kiln/native")
GENERATED = Path("build/generated")


def write(path: Path, text: str) -> str:
    """Write a generated source, unless it is the same as before: a new date would have it compiled again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return str(path)


def translation_units() -> list[str]:
    """The files to compile: each source file of kiln/native itself, and one for all of each folder in it.

    Nearly all the time of a compilation goes into torch's headers, which only files in folders include.
    """
    units = sorted(str(path) for path in NATIVE.glob("*.cpp"))
    for folder in sorted({path.parent.name for path in NATIVE.glob("*/*.cpp")}):
        names = sorted(path.name for path in (NATIVE / folder).glob("*.cpp"))
        includes = "".join(f'#include "{folder}/{name}"\n' for name in names)
        units.append(write(GENERATED / f"{folder}.cpp", includes))
    return units


def shared_libstdcxx() -> list[str]:
    """The shared C++ library, by its path, where the compiler finds it.

    Some compilers link the static one otherwise. Its streams have locales of their own, which torch's libraries do not
    know: an error message with a number in it then crashes, also one that comes from torch's headers.
    """
    asked = [os.environ.get("CXX", "c++").split()[-1], "-print-file-name=libstdc++.so.6"]
    try:
        path = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(path)] if path.is_absolute() and path.exists() else []


# The part that depends on torch's generated headers is generated as well.
saved_values = runpy.run_path(str(NATIVE / "platform" / "generate_saved_values.py"))["generate"](
    Path(torch.__file__).parent / "include"
)

# `make asan` builds a second module, which checks its own memory accesses and arithmetic (tests/sanitized.py).
# vptr checks need type information that torch's libraries do not export.
FLAGS = ["-O2", "-g0"]
SANITIZE = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize=vptr"]
sanitized = os.environ.get("KILN_SANITIZE") == "1"

native = CppExtension(
    name="kiln._native",
    sources=[*translation_units(), write(GENERATED / "saved_values_of_torch.cpp", saved_values)],
    depends=sorted(str(path) for ending in ("cpp", "h") for path in NATIVE.rglob(f"*.{ending}")),
    include_dirs=[str(NATIVE.resolve())],
    # torch 2.11 compiles extensions as C++17 where they do not say otherwise.
    extra_compile_args=[*(SANITIZE if sanitized else FLAGS), "-std=c++20", "-fvisibility=hidden", "-Wall"]
    + ["-Wno-unknown-pragmas"],
    extra_link_args=[*(["-fsanitize=address,undefined"] if sanitized else []), *shared_libstdcxx()],
)

# Beside the module, the build notes what it was built for.
recording = runpy.run_path("kiln/platform/support/build_record.py")["recording"]
build = recording(BuildExtension, runpy.run_path("kiln/version.py")["VERSION"])

setup(ext_modules=[native], cmdclass={"build_ext": build})
