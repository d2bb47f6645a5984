"""Checks what is in a wheel: its files, its metadata, and what its native module asks of the machine."""

from __future__ import annotations

import email
import email.message
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from .processes import Failed

# The libraries that the native module may ask for: torch's, which `import torch` has loaded, and what every Linux
# system with a C++ program has.
LIBRARIES = re.compile(r"lib(c10|torch|torch_cpu|torch_python|stdc\+\+|gcc_s|gomp|m|c|pthread|dl)\.so[.\d]*|ld-linux.*")
MODULE = re.compile(r"kiln/_native\.cpython-\d+-[\w-]+\.so")
RECORD = re.compile(r"kiln/_native\.cpython-\d+-[\w-]+\.json")  # what the module was built for
VERSIONS = re.compile(r"\b(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)+)")


def expected_files(sources: Path) -> set[str]:
    """The Python files of the package, its types and the marker that it has types; nothing of kiln/native."""
    package = [path for ending in ("*.py", "*.pyi", "py.typed") for path in (sources / "kiln").rglob(ending)]
    names = {path.relative_to(sources).as_posix() for path in package if "__pycache__" not in path.parts}
    return {name for name in names if not name.startswith("kiln/native/")}


def content_problems(names: set[str], expected: set[str]) -> list[str]:
    """What is wrong with the files of a wheel."""
    own = {name for name in names if ".dist-info/" not in name}
    modules = {name for name in own if MODULE.fullmatch(name)}
    problems = [f"{name} is missing" for name in sorted(expected - own)]
    extra = {name for name in own - expected - modules if not RECORD.fullmatch(name)}
    problems += [f"{name} does not belong into it" for name in sorted(extra)]
    if len(modules) != 1:
        problems.append(f"it has {len(modules)} native modules")
    for needed in ("kiln/py.typed", "kiln/_native.pyi", "kiln/__main__.py"):
        if needed not in own:
            problems.append(f"{needed} is missing")
    for needed in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"):
        if not any(name.endswith(f".dist-info/{needed}") for name in names):
            problems.append(f"{needed} is missing")
    return list(dict.fromkeys(problems))


def metadata_problems(metadata: email.message.Message, torch: str) -> list[str]:
    """What is wrong with the metadata of a wheel for a release of torch."""
    problems = []
    if not str(metadata["Version"]).endswith(f"+torch{torch}"):
        problems.append(f"the version {metadata['Version']} does not name torch {torch}")
    needed = [str(one) for one in metadata.get_all("Requires-Dist", []) if re.match(r"torch\b", str(one))]
    if needed != [f"torch=={torch}.*"]:
        problems.append(f"it needs {needed}, not torch=={torch}.*")
    for name in ("Summary", "License-Expression", "Requires-Python", "Author"):
        if not metadata[name]:
            problems.append(f"no {name} in the metadata")
    classifiers = set(map(str, metadata.get_all("Classifier", [])))
    wanted = {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)}
    wanted |= {"Typing :: Typed", "Operating System :: POSIX :: Linux"}
    problems += [f"no classifier {name}" for name in sorted(wanted - classifiers)]
    if "# Kiln" not in str(metadata.get_payload()):
        problems.append("the readme is not in the metadata")
    return problems


def needed_libraries(dynamic: str) -> list[str]:
    """The libraries in the output of `readelf --dynamic`."""
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic)


def library_problems(dynamic: str) -> list[str]:
    """What of a module's dynamic section, as `readelf --dynamic` prints it, works on this machine alone."""
    problems = [f"the module needs {name}" for name in needed_libraries(dynamic) if not LIBRARIES.fullmatch(name)]
    problems += [
        f"the module has a search path: {path}" for path in re.findall(r"\(R(?:UN)?PATH\).*\[(.+?)\]", dynamic)
    ]
    return problems


def newest_versions(version_info: str) -> dict[str, str]:
    """The newest version of glibc and libstdc++ that a module asks for, from the output of `readelf --version-info`."""
    newest: dict[str, tuple[int, ...]] = {}
    for name, version in VERSIONS.findall(version_info):
        number = tuple(map(int, version.split(".")))
        newest[name] = max(newest.get(name, number), number)
    return {name: ".".join(map(str, number)) for name, number in sorted(newest.items())}


def readelf(wheel: Path, option: str) -> str | None:
    """What `readelf` prints about the native module of a wheel; None where there is no `readelf`."""
    if shutil.which("readelf") is None:
        return None
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        (module,) = (name for name in archive.namelist() if MODULE.fullmatch(name))
        path = archive.extract(module, folder)
        command = ["readelf", "--wide", option, path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check_contents(wheel: Path, sources: Path, torch: str) -> None:
    """Raise an error with all that is wrong with a wheel that was built from these sources."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(archive.read(metadata))
        # The payload is read as text: the readme has characters beyond ASCII.
        message.set_payload(archive.read(metadata).decode().partition("\n\n")[2])
    problems = content_problems(names, expected_files(sources)) + metadata_problems(message, torch)
    if f"+torch{torch}-" not in wheel.name:
        problems.append("the name of the file does not name torch")
    problems += library_problems(readelf(wheel, "--dynamic") or "")
    if problems:
        raise Failed(f"{wheel.name}: {'; '.join(problems)}")


def describe(wheel: Path) -> Iterator[str]:
    """Lines about a wheel: its size, and what it asks of the machine."""
    with zipfile.ZipFile(wheel) as archive:
        yield f"{wheel.stat().st_size / 1e6:.1f} MB, {len(archive.namelist())} files"
    dynamic, versions = readelf(wheel, "--dynamic"), readelf(wheel, "--version-info")
    if dynamic is None or versions is None:
        yield "there is no readelf: libraries were not checked"
        return
    yield f"libraries: {' '.join(needed_libraries(dynamic))}"
    yield f"at least:  {' '.join(f'{name} {version}' for name, version in newest_versions(versions).items())}"
