"""What becomes of a graph that cannot be differentiated ahead of time: it runs in eager, rightly, and that is told.

Such graphs are counted (``aot eager``) and, with ``KILN_LOG=aot``, named with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from .. import exc
from ..config import config
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
    """A program compiled; one that cannot be traced faithfully runs as it is, which is told and counted."""
    try:
        return compile_with(program, inputs, compilers)
    except exc.KilnError:
        raise
    except Exception as error:
        if NO_ADDRESS in str(error) and current.fullgraph:
            raise
        if not is_known(error) and config.raise_internal_errors:
            raise
        events.runs_in_eager(str(error) if isinstance(error, Unsupported) else raised_text(error))
        return program.forward if isinstance(program, torch.fx.GraphModule) else program


def is_known(error: Exception) -> bool:
    """Whether it is known that this may happen, and no bug of Kiln's: torch cannot run everything without data."""
    from torch._subclasses import fake_tensor
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    refusals = (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
        fake_tensor.UnsupportedOperatorException,
        GuardOnDataDependentSymNode,
    )
    return isinstance(error, (Unsupported, NotImplementedError, *refusals)) or NO_ADDRESS in str(error)
