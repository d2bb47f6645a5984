"""Finds `kiln._native`, checks that it was built for the Python and the torch that are running, and loads it.

A module for another torch may crash when it is loaded or first used, so what it was built for is read from the file
beside it (build_record.py) before. `import kiln` calls `load`, `python -m kiln doctor` asks `find_problem`.
"""

from __future__ import annotations

import glob
import importlib
import os
import struct
import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from typing import Any

from ...version import VERSION
from . import build_record, supported

NAME = "kiln._native"
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

ELF_HEADER = struct.Struct("<4s36xQ10xHH")  # the magic number; the place, the size and the count of sections


class Problem:
    """Why the native module cannot be used: what is wrong, why, and the command that mends it."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.why, self.fix) if part)


# ---- what to do ------------------------------------------------------------------------------------------------------


def source_tree() -> str | None:
    """The directory of Kiln's sources, where it runs from them."""
    above = os.path.dirname(PACKAGE)
    is_tree = os.path.exists(os.path.join(above, "setup.py")) and os.path.exists(os.path.join(PACKAGE, "native"))
    return above if is_tree else None


def how_to_build(torch_version: str) -> str:
    """The command that makes the module for this Python and this torch."""
    tree = source_tree()
    if tree is None:
        return (
            f"Install Kiln for this Python and torch {torch_version}: a wheel that was built for them, or\n"
            f"    {sys.executable} -m pip install --force-reinstall --no-deps --no-build-isolation "
            "--no-binary kiln-torch kiln-torch"
        )
    made = os.path.join(tree, ".venv") == sys.prefix
    return f"Build it{' again' if found_modules() else ''}:  cd {tree} && " + (
        "make clean setup" if made else f"{sys.executable} -m pip install --no-build-isolation -e ."
    )


def how_to_change_torch(built_for: str) -> str:
    release = supported.release_of(built_for)
    wanted = (
        f"torch=={supported.dotted(release)}.*" if release and supported.is_final(built_for) else f"torch=={built_for}"
    )
    return f'Or install the torch it was built for:  {sys.executable} -m pip install "{wanted}"'


# ---- what is there ---------------------------------------------------------------------------------------------------


def found_modules() -> list[str]:
    """The modules that lie in the package, for whatever Python."""
    return sorted(glob.glob(os.path.join(glob.escape(PACKAGE), "_native.*.so")))


def find() -> str | None:
    """The path of the module for this Python, None where there is none."""
    spec = PathFinder.find_spec(NAME, [PACKAGE])
    return spec.origin if spec is not None else None


def is_whole(path: str) -> bool:
    """Whether a library is as long as its header says: loading one that was cut off may crash."""
    if sys.byteorder != "little" or struct.calcsize("P") != 8:
        return True
    with open(path, "rb") as file:
        head = file.read(ELF_HEADER.size)
        size = os.fstat(file.fileno()).st_size
    if len(head) < ELF_HEADER.size:
        return False
    magic, start, each, count = ELF_HEADER.unpack(head)
    return bool(magic == b"\x7fELF" and start + each * count <= size)


def missing(torch_version: str) -> Problem:
    others = [build_record.python_tag(path) for path in found_modules()]
    running = EXTENSION_SUFFIXES[0].split(".")[1]
    if others:
        why = f"There are modules for other Pythons ({', '.join(others)}), and this one needs {running}."
    elif source_tree() is not None:
        why = f"{PACKAGE} are sources whose native module was not built."
    else:
        why = f"There is no file {PACKAGE}/_native{EXTENSION_SUFFIXES[0]}: the installation is not complete."
    return Problem(f"Kiln's native module for this Python ({running}) is not there.", why, how_to_build(torch_version))


def find_problem(torch: Any) -> Problem | None:
    """Why the module cannot be loaded into this process, as far as can be known before; None where it can."""
    problem = supported.python_problem() or supported.torch_problem(str(torch.__version__))
    if problem is not None:
        what, _, fix = problem.partition("\n")
        return Problem(what, "", fix)
    running = str(torch.__version__)
    path = find()
    if path is None:
        return missing(running)
    try:
        if not is_whole(path):
            why = "The file is cut off, or no library at all."
            return Problem(f"Kiln's native module {path} is damaged.", why, how_to_build(running))
        record = build_record.read(path)
    except FileNotFoundError:
        why = f"The file {build_record.place(path)}, which the build writes, is missing."
        what = f"What Kiln's native module {path} was built for is not known, so it is not loaded."
        return Problem(what, why, how_to_build(running))
    except (OSError, ValueError) as error:
        why = f"{build_record.place(path)} is damaged: {error}"
        what = f"What Kiln's native module {path} was built for is not known, so it is not loaded."
        return Problem(what, why, how_to_build(running))
    return mismatch(path, record, torch)


def mismatch(path: str, record: dict[str, Any], torch: Any) -> Problem | None:
    """What does not fit between what a module was built for and what is running."""
    running, built = str(torch.__version__), str(record["torch"])
    build, tag = how_to_build(running), build_record.python_tag(path)
    if record["python"] != tag or not EXTENSION_SUFFIXES[0].startswith(f".{tag}."):
        what = f"Kiln's native module {path} was built for another Python: {record['python']}."
        return Problem(what, f"This Python loads {EXTENSION_SUFFIXES[0].split('.')[1]}.", build)
    if record["kiln"] != VERSION:
        what = f"Kiln's native module was built for Kiln {record['kiln']}, and this is Kiln {VERSION}."
        return Problem(what, f"Parts of two versions do not work together: {path}", build)
    if not is_same_torch(built, running):
        what = f"Kiln's native module was built for torch {built}, and torch {running} is installed."
        why = f"Objects of different releases of torch lie otherwise in memory: {path} would crash."
        return Problem(what, why, f"{build}\n{how_to_change_torch(built)}")
    if record["cxx11_abi"] is not bool(torch.compiled_with_cxx11_abi()):
        what = f"Kiln's native module was built for a torch with another C++ ABI than that of torch {running} here."
        was = int(record["cxx11_abi"])
        why = f"_GLIBCXX_USE_CXX11_ABI was {was} for {path}, and is {1 - was} here."
        return Problem(what, why, build)
    return None


def is_same_torch(built: str, running: str) -> bool:
    """Whether a module for one torch can run with another: patches and builds of one release are alike, CPU and CUDA
    too; what is no release may differ from day to day."""
    if supported.is_final(built) and supported.is_final(running):
        return supported.release_of(built) == supported.release_of(running)
    return built.partition("+")[0] == running.partition("+")[0]


class NotLoaded(ImportError):
    """The native module cannot be used."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem), name=NAME)
        self.problem = problem


# ---- loading ---------------------------------------------------------------------------------------------------------


def load(torch: Any) -> Any:
    """The native module. Raises ImportError with what is wrong, why and what to do."""
    problem = find_problem(torch)
    if problem is not None:
        raise NotLoaded(problem)
    try:
        module = importlib.import_module(NAME)
    except (ImportError, OSError) as error:
        raise NotLoaded(loader_problem(error, str(torch.__version__))) from error
    record = build_record.read(str(module.__file__))
    if record["torch"].partition("+")[0].split(".")[:2] != module.TORCH_VERSION.split(".")[:2]:
        what = f"Kiln's native module {module.__file__} was built for torch {module.TORCH_VERSION}."
        why = "The file beside it, which says what it was built for, belongs to another module."
        raise NotLoaded(Problem(what, why, how_to_build(str(torch.__version__))))
    return module


def loader_problem(error: BaseException, running: str) -> Problem:
    """The loader's error in words."""
    text = str(error)
    path = find() or "_native"
    what = f"Kiln's native module {path} cannot be loaded."
    if "undefined symbol" in text:
        why = f"This build of torch ({running}) does not have all that the module was built with: {text}"
    elif "GLIBC" in text or "CXXABI" in text:
        why = f"The system's C or C++ library is older than the one it was built with: {text}"
    else:
        why = f"The system says: {text}"
    return Problem(what, why, how_to_build(running))
