"""Run by Python at the start of a process that a program on Kiln has started: puts Kiln under torch's names there too.

Nothing is imported for it until the process imports torch. A ``sitecustomize`` of the user's own, which this one stands
in front of, runs as well.
"""

from __future__ import annotations

import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # not imported at the start of each process
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def _run_the_users_own(folder: str) -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own


def _install(kiln: str) -> None:
    """Put Kiln there, from the place where the parent has it if it cannot be found otherwise."""
    try:
        if importlib.util.find_spec("kiln") is None:
            sys.path.append(kiln)
        from kiln.compat import install

        install()
    except ImportError as error:
        print(f"kiln: this process uses torch's own compiler, for Kiln cannot be loaded: {error}", file=sys.stderr)


class _AfterTorch:
    """Waits for the import of torch."""

    def __init__(self, kiln: str) -> None:
        self.kiln = kiln

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _install(self.kiln)

        loader.exec_module = exec_module
        return spec


_folder = os.path.dirname(os.path.abspath(__file__))
sys.meta_path.insert(0, _AfterTorch(os.path.dirname(os.path.dirname(os.path.dirname(_folder)))))
_run_the_users_own(_folder)
