"""What happens first when Kiln is imported: is this Python, this torch and this native module one that works together?

`begin` raises ImportError where it is not. For the command line the package is there all the same, so that ``python -m
kiln doctor`` can say what is wrong: every name of it then raises that error when it is used.

A torch that is newer than Kiln knows gives a warning, and what Kiln assumes of it is tried (assumptions.py). The same
happens for any torch where ``KILN_SELF_CHECK=1`` is set.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ...version import VERSION
from . import native_module, supported, switches

if TYPE_CHECKING:
    from .assumptions import Finding

SELF_CHECK = "KILN_SELF_CHECK"

problem: ImportError | None = None
"""Why Kiln does not work here; only where the command line is running, as the import fails otherwise."""
findings: list[Finding] | None = None
"""What the self-check found; None where none was made."""


def begin(package: dict[str, Any]) -> str | None:
    """Check the installation; gives a warning to show, or None. ``package`` has the names of the package Kiln."""
    global problem, findings
    try:
        torch = import_torch()
        native_module.load(torch)
    except ImportError as error:
        if not is_command():
            raise
        problem = error
        package["__getattr__"] = refuse
        return None
    version = str(torch.__version__)
    unknown = not supported.is_known_torch(version)
    if not unknown and os.environ.get(SELF_CHECK) != "1":
        return None
    from . import assumptions

    findings = assumptions.switch_off_what_fails()
    return warning(version, unknown)


def import_torch() -> Any:
    wrong = supported.python_problem()
    if wrong is not None:
        raise ImportError(wrong)
    pip = f"{sys.executable} -m pip install"
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            text = f'Kiln needs torch, and this Python has none.\nInstall it:  {pip} "{supported.TORCH_RANGE}"'
            raise ImportError(text, name="torch") from None
        raise unusable_torch(error) from error
    except Exception as error:  # of the loader, or of torch itself
        raise unusable_torch(error) from error
    return torch


def unusable_torch(error: Exception) -> ImportError:
    text = f"Kiln needs torch, and torch cannot be imported: {type(error).__name__}: {error}"
    again = f'Install it again:  {sys.executable} -m pip install --force-reinstall "{supported.TORCH_RANGE}"'
    return ImportError(f"{text}\n{again}", name="torch")


def is_command() -> bool:
    """Whether ``python -m kiln`` or the command ``kiln`` is what imports Kiln."""
    if sys.argv[:1] == ["-m"]:  # the argument while Python looks for the module that it is to run
        given = sys.orig_argv
        return "-mkiln" in given or any(pair == ("-m", "kiln") for pair in zip(given, given[1:], strict=False))
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == "kiln"


def refuse(name: str) -> Any:
    """The attributes of a package that does not work here."""
    if name.startswith("__"):  # what Python itself asks for
        raise AttributeError(name)
    raise problem or ImportError(name)


def is_broken() -> bool:
    return problem is not None


def warning(version: str, unknown: bool) -> str | None:
    """What to tell the user, once."""
    off = switches.all_off()
    if unknown:
        known = f"torch {supported.between(supported.TORCH)}"
        text = (
            f"torch {version} is newer than Kiln {VERSION} knows ({known}). What Kiln assumes about torch was tried: "
        )
        if not off:
            return f"{text}all of it holds."
        text += "not all of it holds."
    elif off:
        text = f"Not all that Kiln assumes about torch {version} holds."
    else:
        return None
    lines = [f"  Switched off: {part} ({reason}). Instead, {switches.INSTEAD[part]}." for part, reason in off.items()]
    return "\n".join([text, *lines, f"More: {sys.executable} -m kiln doctor"])
