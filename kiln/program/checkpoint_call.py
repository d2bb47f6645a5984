"""The call of ``torch.utils.checkpoint`` in graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
import torch.utils.checkpoint

CHECKPOINT = inspect.unwrap(torch.utils.checkpoint.checkpoint)


def checkpointed(
    module: Callable[..., Any], passed: tuple[Any, ...], closed: tuple[Any, ...], **options: Any
) -> object:
    """In graphs: torch's ``checkpoint``, which keeps watch over what is passed and not over what is closed over."""
    # Calling a module would call hooks of all modules: in eager there is no such module. (kiln.aot gives functions.)
    run = module.forward if isinstance(module, torch.fx.GraphModule) else module
    return CHECKPOINT(lambda *given: run(*given, *closed), *passed, **options)
