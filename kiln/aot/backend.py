"""Falling back to eager: a program that cannot be differentiated ahead of time runs as it is, with correct results.

Such programs are counted (``aot eager``) and, with ``KILN_LOG=aot``, logged with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from .. import exc
from ..config import config
from ..platform import torch_fake
from ..platform.support.switches import AHEAD_OF_TIME, reason_off
from ..program.backend_registry import current
from ..program.unsupported import Unsupported
from ..report import events
from ..report.events import raised_text
from .compilation import Compilers, compile_flat

NO_ADDRESS = "Cannot access data pointer"


def compile_or_run(
    program: Callable[..., Any],
    inputs: Sequence[Any],
    compilers: Compilers,
    compile_with: Callable[..., Callable[..., Any]] = compile_flat,
) -> Callable[..., Any]:
    """A program, compiled; or the program itself where it cannot be traced faithfully."""
    compiled = try_compile(program, inputs, compilers, compile_with)
    if compiled is None:
        return program.forward if isinstance(program, torch.fx.GraphModule) else program
    return compiled


def try_compile(
    program: Callable[..., Any], inputs: Sequence[Any], compilers: Compilers, compile_with: Callable[..., Any]
) -> Callable[..., Any] | None:
    """A program, compiled; None, with a report, where it cannot be traced faithfully."""
    if reason := reason_off(AHEAD_OF_TIME):
        events.runs_in_eager(f"{AHEAD_OF_TIME} is switched off: {reason}")
        return None
    try:
        compiled: Callable[..., Any] = compile_with(program, inputs, compilers)
        return compiled
    except exc.KilnError:
        raise
    except Exception as error:
        if NO_ADDRESS in str(error) and current.fullgraph:
            raise
        if not is_known(error) and config.raise_internal_errors:
            raise
        events.runs_in_eager(str(error) if isinstance(error, Unsupported) else raised_text(error))
        return None


def is_known(error: Exception) -> bool:
    """Whether this is an expected refusal and no bug of Kiln: torch cannot run everything without data."""
    from ..platform.torch_shapes import GuardOnDataDependentSymNode  # loads sympy

    refusals = (
        torch_fake.DataDependentOutputException,
        torch_fake.DynamicOutputShapeException,
        torch_fake.UnsupportedFakeTensorException,
        torch_fake.UnsupportedOperatorException,
        GuardOnDataDependentSymNode,
    )
    return isinstance(error, (Unsupported, NotImplementedError, *refusals)) or NO_ADDRESS in str(error)
