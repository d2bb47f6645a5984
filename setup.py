"""Builds the one native module, `kiln._native`; everything else about the package is in pyproject.toml."""

import os
import runpy
from glob import glob
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

# Two compilations at a time: one translation unit that includes torch's headers needs about a gigabyte.
os.environ.setdefault("MAX_JOBS", "2")

# The part that depends on torch's generated headers is generated as well.
generate = runpy.run_path("kiln/native/generate_saved_values.py")["generate"]
generated = generate(Path(torch.__file__).parent / "include", Path("build/generated/saved_values_of_torch.cpp"))

# `make asan` builds a second module, which checks its own memory accesses and arithmetic (tests/sanitized.py).
# vptr checks need type information that torch's libraries do not export.
FLAGS = ["-O2", "-g0"]
SANITIZE = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize=vptr"]
sanitized = os.environ.get("KILN_SANITIZE") == "1"

native = CppExtension(
    name="kiln._native",
    sources=sorted(glob("kiln/native/*.cpp")) + [generated],
    depends=sorted(glob("kiln/native/*.h")),
    include_dirs=[os.path.abspath("kiln/native")],
    extra_compile_args=[*(SANITIZE if sanitized else FLAGS), "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas"],
    extra_link_args=["-fsanitize=address,undefined"] if sanitized else [],
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildExtension})
