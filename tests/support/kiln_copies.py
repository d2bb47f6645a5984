"""Packages like Kiln in other folders, with native modules and records of their own: links to all the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kiln.platform.support import build_record, native_module

PACKAGE = Path(native_module.PACKAGE)
MODULE = Path(str(native_module.find()))
RECORD = Path(build_record.place(str(MODULE)))


def copy_of(folder: Path, **changes: Any) -> Path:
    """A package in a folder, whose record differs in these fields; gives the path of its native module."""
    package = folder / "kiln"
    package.mkdir(parents=True)
    for path in PACKAGE.iterdir():
        if path.suffix not in (".so", ".json") and path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    module = package / MODULE.name
    shutil.copy(MODULE, module)
    (package / RECORD.name).write_text(json.dumps(json.loads(RECORD.read_text()) | changes))
    return module


def record_of(module: Path) -> Path:
    return Path(build_record.place(str(module)))


def newer_torch(folder: Path, version: str = "2.16.0") -> Path:
    """A package whose native module says that it was built for this release of torch."""
    module = copy_of(folder, torch=version)
    built = json.loads(RECORD.read_text())["torch"].partition("+")[0].encode()
    data = module.read_bytes()
    assert len(built) == len(version) and data.count(built) == 1
    module.write_bytes(data.replace(built, version.encode()))
    return module


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python with the package of a folder, in a fresh process."""
    names = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{PACKAGE.parent}", **environment}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=names, cwd=folder)
