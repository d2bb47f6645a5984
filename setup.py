"""Builds the one native module, `kiln._native`; everything else about the package is in pyproject.toml."""

import os
from glob import glob

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

# Two compilations at a time: one translation unit that includes torch's headers needs about a gigabyte.
os.environ.setdefault("MAX_JOBS", "2")

native = CppExtension(
    name="kiln._native",
    sources=sorted(glob("kiln/native/*.cpp")),
    depends=sorted(glob("kiln/native/*.h")),
    extra_compile_args=["-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas"],
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildExtension})
