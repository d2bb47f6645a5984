"""The releases of CPython and torch that Kiln is made for. Imports nothing but `sys`: setup.py runs this file too."""

from __future__ import annotations

import sys

PYTHON = ((3, 11), (3, 14))
TORCH = ((2, 11), (2, 15))
"""The first and the last release, major and minor."""
TORCH_RANGE = f"torch>={TORCH[0][0]}.{TORCH[0][1]},<{TORCH[1][0]}.{TORCH[1][1] + 1}"
"""The same as pip takes it."""

Release = tuple[int, int]


def dotted(release: Release) -> str:
    return f"{release[0]}.{release[1]}"


def between(releases: tuple[Release, Release]) -> str:
    return f"{dotted(releases[0])} to {dotted(releases[1])}"


def python_problem() -> str | None:
    """Why Kiln cannot run in this Python, and what to do; None where it can."""
    version, implementation = sys.version_info, sys.implementation.name
    advice = f"Use CPython {between(PYTHON)}, the usual build (not the free-threaded one)."
    if implementation != "cpython":
        what = f"Kiln works with CPython alone, and this is {implementation}: it reads and writes CPython's bytecode."
        return f"{what}\n{advice}"
    if not PYTHON[0] <= version[:2] <= PYTHON[1]:
        return (
            f"Kiln does not work with Python {dotted(version[:2])}: it reads and writes bytecode, which changes with "
            f"each release of CPython.\n{advice}"
        )
    if is_free_threaded():
        return (
            f"Kiln does not work with free-threaded builds of CPython, and this is one (Python {dotted(version[:2])}t)"
            f": its native module relies on the global interpreter lock.\n{advice}"
        )
    return None


def is_free_threaded() -> bool:
    """Whether this Python was built without the global interpreter lock, be it on or off right now."""
    # The flag is the `Py_GIL_DISABLED` of sysconfig, which takes long to import.
    is_enabled = getattr(sys, "_is_gil_enabled", None)  # from 3.13 on
    return "t" in getattr(sys, "abiflags", "") or (is_enabled is not None and not is_enabled())


def release_of(version: str) -> Release | None:
    """Major and minor of a version of torch; None for a text that is none."""
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        return None


def is_final(version: str) -> bool:
    """Whether this is a release, such as 2.13.0+cpu, and no build on the way to one, such as 2.16.0.dev20261101."""
    return all(part.isdigit() for part in version.partition("+")[0].split("."))


def torch_problem(version: str) -> str | None:
    """Why Kiln cannot run with this torch, whatever its module was built for, and what to do; None where it may."""
    release = release_of(version)
    if release is None or release >= TORCH[0]:
        return None
    return (
        f"Kiln does not work with torch {version}: it needs torch {between(TORCH)}.\n"
        f'Install one:  {sys.executable} -m pip install "{TORCH_RANGE}"'
    )


def is_known_torch(version: str) -> bool:
    """Whether Kiln was made for, and tested with, this release of torch."""
    release = release_of(version)
    return release is not None and TORCH[0] <= release <= TORCH[1]
