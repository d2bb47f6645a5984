"""Parts of torch that exist for its compiler: sources, settings, logs, test helpers. Known for torch 2.11 to 2.13.

A missing class makes the import fail. What takes long to load, or needs other packages, is imported inside functions.
"""

from __future__ import annotations

import logging
import types
from typing import Any

from torch._guards import ChainedSource, GuardSource, Source

__all__ = ["ChainedSource", "GuardSource", "Source"]  # where values come from, which shape environments ask for


def functorch_config() -> types.ModuleType:
    """Settings of ``torch.func``, which fake tensors and other parts of torch read."""
    from torch._functorch import config

    return config


def artifact_logger(module: str, artefact: str) -> logging.Logger:
    """The logger that ``torch._logging.set_logs(artefact=True)`` turns on."""
    from torch._logging._internal import getArtifactLogger

    return getArtifactLogger(module, artefact)


def is_compiling_higher_order() -> bool:
    """Whether torch compiles on behalf of an operator that takes functions, to see what those use."""
    from torch._higher_order_ops import utils

    return bool(getattr(utils, "_in_hop_compile", bool)())


def test_helpers() -> tuple[Any, Any]:
    """torch's ``TestCase`` and ``run_tests``. They need packages that torch does not: may raise `ImportError`."""
    from torch.testing._internal.common_utils import TestCase, run_tests

    return TestCase, run_tests
