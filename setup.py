"""Builds the one native module, `kiln._native`, and ties the package to the torch release that it was compiled against.

Everything else about the package is in pyproject.toml; docs/packaging.md describes wheels and source distributions.
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path

# Before setuptools and torch, which need not be there for such a Python.
supported = runpy.run_path("kiln/platform/support/supported.py")
problem = supported["python_problem"]()
if problem:
    sys.exit(problem)

from setuptools import Command, Extension, setup  # noqa: E402

TORCH_RANGE: str = supported["TORCH_RANGE"]
OTHER_DEPENDENCIES = ["rich", "llvmlite>=0.50,<0.51"]

# Two compilations at a time: one translation unit that includes torch's headers needs about a gigabyte.
os.environ.setdefault("MAX_JOBS", "2")
# torch's build looks for ninja on the path; it may be installed beside this interpreter alone.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

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


VERSION: str = runpy.run_path("kiln/version.py")["VERSION"]

TORCH_IS_MISSING = f"""\
Kiln's native module is compiled against the torch that it will run with, and this build finds no torch (builds in \
isolation never see the one that is installed).
Install torch first, then Kiln without isolation:

    pip install "{TORCH_RANGE}" "setuptools>=77.0.3" ninja
    pip install --no-build-isolation <what you were installing>
"""


def torch_release() -> str:
    """The release of the torch to compile against, as 2.13: what belongs together, up to a patch."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.exit(TORCH_IS_MISSING)
    return ".".join(torch.__version__.split(".")[:2])


def native_module() -> tuple[Extension, type[Command]]:
    """The native module, and the command that builds it."""
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    # The part that depends on torch's generated headers is generated as well.
    saved_values = runpy.run_path(str(NATIVE / "platform" / "generate_saved_values.py"))["generate"](
        Path(torch.__file__).parent / "include"
    )
    # `make asan` builds a second module, which checks its own memory accesses and arithmetic (tests/sanitized.py).
    # vptr checks need type information that torch's libraries do not export.
    flags = ["-O2", "-g0"]
    sanitize = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize=vptr"]
    sanitized = os.environ.get("KILN_SANITIZE") == "1"
    native = CppExtension(
        name="kiln._native",
        sources=[*translation_units(), write(GENERATED / "saved_values_of_torch.cpp", saved_values)],
        depends=sorted(str(path) for ending in ("cpp", "h") for path in NATIVE.rglob(f"*.{ending}")),
        include_dirs=[str(NATIVE.resolve())],
        # No source reads this macro. It changes the command for another torch, so that objects in the same folder are
        # compiled again; the dates of headers alone would not tell.
        define_macros=[("KILN_BUILT_FOR", torch.__version__)],
        # torch 2.11 compiles extensions as C++17 where they do not say otherwise.
        extra_compile_args=[*(sanitize if sanitized else flags), "-std=c++20", "-fvisibility=hidden", "-Wall"]
        + ["-Wno-unknown-pragmas"],
        extra_link_args=[*(["-fsanitize=address,undefined"] if sanitized else []), *shared_libstdcxx()],
    )
    # Beside the module, the build notes what it was built for.
    recording = runpy.run_path("kiln/platform/support/build_record.py")["recording"]
    return native, recording(BuildExtension, VERSION)


if {"sdist", "egg_info"} & set(sys.argv):
    # Sources are for all releases of torch, and are packed without one. Build front ends ask for `egg_info` first of
    # all, also where nothing is compiled.
    setup(version=VERSION, install_requires=[TORCH_RANGE, *OTHER_DEPENDENCIES])
else:
    # A compiled module is for one release of torch, and its metadata say so. `make wheel` also writes the release into
    # the version, so that wheels for several releases can lie in one folder. Other builds must not: what is built from
    # a source distribution has its version.
    release = torch_release()
    local = f"+torch{release}" if os.environ.get("KILN_TORCH_IN_VERSION") == "1" else ""
    module, build_command = native_module()
    setup(
        version=VERSION + local,
        install_requires=[f"torch=={release}.*", *OTHER_DEPENDENCIES],
        ext_modules=[module],
        cmdclass={"build_ext": build_command},
    )
