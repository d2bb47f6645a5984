"""Imports every file that registers rules, opcode handlers or operations."""

# ruff: noqa: F401

from __future__ import annotations

from ..autograd import (
    autograd_function,
    backward_calls,
    checkpoints,
    function_contexts,
    gradients,
    hook_handles,
    hook_registrations,
)
from ..guards import cached_calls
from ..interpreter import generators, opcodes
from ..python import (
    attribute_builtins,
    copying,
    dict_views,
    dynamic_ranges,
    frame_builtins,
    lock_blocks,
    logging_calls,
    lru_caches,
    operator_module,
    polyfills,
    standard_library,
    text,
    value_builtins,
    warning_calls,
)
from ..shadows import hashing, marked_calls
from ..torch import (
    assertions,
    associative_scans,
    lazy_modules,
    optimizer_steps,
    overrides,
    tensor_attributes,
    tensor_constructors,
    tensor_copies,
    tensor_subclasses,
    torch_calls,
    torch_state,
    torchscript,
)
