"""What the engine's tests share."""

import fcntl
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils import cpp_extension


def build(folder: Path) -> None:
    cpp_extension.load(
        name="kiln_engine_functions",
        sources=[str(Path(__file__).with_name("custom_functions.cpp"))],
        extra_cflags=["-O0", "-g0"],
        build_directory=str(folder),
        is_python_module=False,
    )


@pytest.fixture(scope="session")
def custom_functions(request: pytest.FixtureRequest) -> ModuleType:
    """C++ autograd functions as operators, `torch.ops.kiln_engine`: built once, then kept in pytest's cache."""
    name = f"engine_custom_functions_{torch.__version__}"
    cache = getattr(request.config, "cache", None)  # none with `-p no:cacheprovider`
    folder = cache.mkdir(name) if cache is not None else Path(tempfile.gettempdir()) / f"{name}_{os.getuid()}"
    folder.mkdir(exist_ok=True)
    with open(folder / "building", "w") as building:
        # One worker builds; the lock that a killed run of torch's own builder leaves behind would stop it for ever.
        fcntl.flock(building, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        # The environment's ninja, also when the environment was not activated.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
            build(folder)
    return torch.ops.kiln_engine
