"""What the native module was built for: a small file beside it, written by the build and read before it is loaded.

`_native.cpython-312-x86_64-linux-gnu.so` has `_native.cpython-312-x86_64-linux-gnu.json`, so that modules for several
Pythons can lie in one tree. Imports no other module of Kiln: setup.py runs this file too.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

SUFFIX = ".json"
FIELDS = {"kiln": str, "torch": str, "torch_commit": str, "cxx11_abi": bool, "python": str, "checksum": str}
"""The versions of Kiln and torch, torch's commit, the C++ ABI, the tag of Python's ABI, and a hash of the module."""


def place(module: str) -> str:
    """The path of the record of a module at this path."""
    return os.path.splitext(module)[0] + SUFFIX


def python_tag(module: str) -> str:
    """The tag of Python's ABI in the name of a module: cpython-312-x86_64-linux-gnu."""
    parts = os.path.basename(module).split(".")
    return parts[1] if len(parts) == 3 else ""


def checksum(module: str) -> str:
    with open(module, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def write(module: str, kiln: str, torch: Any) -> None:
    """Note what a module was built for, right after it was built."""
    commit = str(getattr(torch.version, "git_version", None) or "")
    facts = {
        "kiln": kiln,
        "torch": str(torch.__version__),
        "torch_commit": commit,
        "cxx11_abi": bool(torch.compiled_with_cxx11_abi()),
        "python": python_tag(module),
        "checksum": checksum(module),
    }
    with open(place(module), "w", encoding="utf-8") as file:
        file.write(json.dumps(facts, indent=2) + "\n")


def read(module: str) -> dict[str, Any]:
    """The record of a module. Raises OSError where there is none, ValueError where it is damaged."""
    with open(place(module), "rb") as file:
        found = json.loads(file.read())
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    for name, kind in FIELDS.items():
        if type(found.get(name)) is not kind:
            raise ValueError(f"it has no {name!r}")
    return found


def recording(build: Any, kiln: str) -> Any:
    """A class of `build_ext` that writes the record of each module it has built, where the module is."""

    class RecordingBuild(build):  # type: ignore[misc]
        def run(self) -> None:
            super().run()
            import torch

            for extension in self.extensions:
                path = self.get_ext_fullpath(extension.name)
                if os.path.exists(path):
                    write(path, kiln, torch)

        def get_outputs(self) -> list[str]:
            modules = [self.get_ext_fullpath(extension.name) for extension in self.extensions]
            return [*super().get_outputs(), *map(place, modules)]

    return RecordingBuild
