"""Running a program as ``python script.py`` and ``python -m module`` would, with Kiln under torch's names.

Processes that it starts run on Kiln as well: spawned, from a fork server, workers of data loaders, ``torchrun``'s, or
any other ``python``. They are reached through ``PYTHONPATH``: a folder with a ``sitecustomize`` module comes first on
it. (A forked process has Kiln from its parent.)
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import runpy
import sys
import types
from collections.abc import Callable
from typing import Any

from . import install

STARTUP = os.path.join(os.path.dirname(os.path.realpath(__file__)), "startup")


def install_in_children() -> None:
    """Have all Python processes that are started from now on run on Kiln."""
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != STARTUP]
    os.environ["PYTHONPATH"] = os.pathsep.join([STARTUP, *others])


def run_script(path: str, arguments: list[str]) -> int:
    """Run a file, or a directory or zip file with a ``__main__.py``; the exit status."""
    if not os.path.exists(path):
        return refuse(f"there is no file {path!r}")
    if os.path.isdir(path) or not is_text(path):
        return run(lambda: runpy.run_path(path, run_name="__main__"), [path, *arguments], path)
    directory = os.path.dirname(os.path.realpath(path))
    absolute = os.path.join(os.getcwd(), path)  # as CPython makes it; the program may change directory
    return run(lambda: exec_file(absolute), [path, *arguments], directory)


def run_module(name: str, arguments: list[str]) -> int:
    """Run a module, or the ``__main__`` of a package; the exit status."""
    sys.path[0] = os.getcwd()
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError) as error:
        return refuse(f"no module {name!r} to run: {error}")
    if found is None:
        return refuse(f"no module {name!r} to run")
    return run(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True), [name, *arguments], os.getcwd())


def is_text(path: str) -> bool:
    with open(path, "rb") as file:
        return b"\0" not in file.read(1024)


def exec_file(path: str) -> None:
    """The program's own ``__main__``, which stays: classes in it can be pickled, and ``atexit`` sees its globals."""
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    known: dict[str, Any] = dict(
        __file__=path, __cached__=None, __loader__=loader, __annotations__={}, __builtins__=__builtins__
    )
    module.__dict__.update(known)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def run(program: Callable[[], object], argv: list[str], directory: str) -> int:
    sys.argv = argv
    sys.path[0] = directory
    install()
    install_in_children()
    try:
        program()
    except Exception as error:
        # As the interpreter would show it: from the program's own first line on.
        shown = beyond_this_file(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        return 1
    return 0


def beyond_this_file(traceback: types.TracebackType | None) -> types.TracebackType | None:
    own = (__file__, runpy.__file__)
    first = traceback
    while first is not None and (first.tb_frame.f_code.co_filename in own or "<frozen runpy>" in str(first.tb_frame)):
        first = first.tb_next
    return first


def refuse(reason: str) -> int:
    print(f"python -m kiln run: {reason}", file=sys.stderr)
    return 2
