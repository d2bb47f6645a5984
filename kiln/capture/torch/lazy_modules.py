"""Lazy modules (``nn.LazyLinear`` and the like): initialised for real when capture comes to their first call.

A lazy module has a hook that looks at the shapes of its first input, makes its parameters and turns it into another
class. That happens once, so the hook is not captured but run, on tensors that have shapes and no values, and capture
starts over with the initialised module. One entry serves the first call and all later ones. Where running the hook
early could be observed (it needs values, it reads what the graph has yet to change, it draws random numbers after
others), the module is restored, and the graph breaks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import Module

from ..._native import is_instance as isinstance
from ...platform.python_objects import mapping_items
from ...platform.torch_fake import FakeTensor
from ...platform.torch_modules import buffers_of, infer_parameters, parameters_of
from ...program.quiet import unsilenced
from ..guards.descriptions import module_of
from ..interpreter.call_rules import rule
from ..shadows.symbolic_numbers import concrete
from ..shadows.tensors import NEEDS_VALUES
from ..shadows.wrap import add_attributes, force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import GraphBreak, Record, new_tuple
from ..writeback.effects import write_effects
from ..writeback.rebuild import CannotRebuild, Rebuilder


@rule(infer_parameters)
def rule_infer_parameters(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    owner, module, inputs = (force(trace, arg) for arg in args[:3])
    record = trace.outside.record_of(module)
    if owner is not module or record is None:
        raise trace.fail("the first call of a lazy module that was made here", "make it outside the compiled function")
    given = args[3] if len(args) > 3 else kwargs.get("kwargs")
    with failures_as_breaks(trace, record):
        shapes, keywords = as_shapes(trace, inputs), as_shapes(trace, given)
        check_nothing_changed(trace, record.real)
        with rollback_on_error(record.real), random_order_kept(trace), unsilenced():
            infer_parameters(record.real, record.real, shapes, keywords)
            check_no_fakes(record.real)
    refresh_shadows(trace, record)
    trace.progress.start_over = True


class CannotInitialise(Exception):
    """The module cannot be initialised before the graph has run."""


def is_capture_failure(error: Exception) -> bool:
    """Whether only capture raises this, and eager would not."""
    return isinstance(error, CannotInitialise) or type(error).__name__ in NEEDS_VALUES


@contextlib.contextmanager
def failures_as_breaks(trace: Trace, record: Record) -> Iterator[None]:
    """Turn errors into a graph break: eager then succeeds, or raises the module's own error."""
    try:
        yield
    except (GraphBreak, Exception) as error:
        why = "" if isinstance(error, GraphBreak) else f" ({error})"
        hint = "call the module once before compiling, or compile without fullgraph"
        own = error if isinstance(error, Exception) and not is_capture_failure(error) else None
        name = type(record.shadow).__qualname__
        raise trace.fail(f"the first call of a lazy module, {name}, cannot be captured{why}", hint, error=own) from None


def as_shapes(trace: Trace, value: object) -> object:
    """Arguments for real code: tensors that know shape, dtype and device and have no values, in plain containers."""
    value = concrete(trace, value)
    if isinstance(value, torch.Tensor):
        return without_symbols(trace, value)
    if isinstance(value, tuple):
        return new_tuple(type(value), [as_shapes(trace, item) for item in value])
    if type(value) is list:
        return [as_shapes(trace, item) for item in value]
    if isinstance(value, dict):
        return {key: as_shapes(trace, item) for key, item in mapping_items(value)}
    return value  # an object from outside has lazy attributes, on which real code fails


def without_symbols(trace: Trace, fake: torch.Tensor) -> torch.Tensor:
    """A fake with the sizes of this call as plain numbers: the module may keep them."""
    sizes = [concrete(trace, size) for size in fake.shape]
    strides = [concrete(trace, stride) for stride in fake.stride()]
    with trace.fakes.mode:
        return torch.empty_strided(sizes, strides, dtype=fake.dtype, device=fake.device)


def check_nothing_changed(trace: Trace, module: Any) -> None:
    """Fail if the module could read what this frame has changed. Modules of torch read only shapes."""
    if trace.overrides.modes or trace.overrides.outer_modes:
        raise CannotInitialise("a torch-function mode is active")
    if module_of(type(module).initialize_parameters).startswith("torch.nn.modules."):
        return
    if trace.effects.changed:
        raise CannotInitialise("tensors were changed before")
    scratch = Rebuilder(trace)
    try:
        write_effects(scratch)
    except CannotRebuild as problem:
        raise CannotInitialise(problem.reason) from None
    if scratch.effects:
        raise CannotInitialise("objects were changed before")


@contextlib.contextmanager
def random_order_kept(trace: Trace) -> Iterator[None]:
    """Fail, and restore the generators, if random numbers are drawn before those of the graph."""
    if not any("random" in effect for effect in trace.effects.reasons):
        yield
        return
    before = random_state()
    yield
    if not all(map(torch.equal, before, random_state())):
        torch.set_rng_state(before[0])
        if len(before) > 1:
            torch.cuda.set_rng_state_all(before[1:])
        raise CannotInitialise("random numbers were drawn before")


def random_state() -> list[torch.Tensor]:
    cuda: Any = torch.cuda
    return [torch.get_rng_state(), *(cuda.get_rng_state_all() if cuda.is_initialized() else ())]


def check_no_fakes(module: Module) -> None:
    """A module that keeps something computed from its input needs the input's values."""
    for part in module.modules():
        members = [value for value in vars(part).values() if isinstance(value, (dict, list, tuple))]
        for value in (*vars(part).values(), *(item for member in members for item in flat(member))):
            if isinstance(value, FakeTensor):
                raise CannotInitialise("it keeps something that depends on its input's values")


def flat(container: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> list[Any]:
    return list(container.values()) if isinstance(container, dict) else list(container)


@contextlib.contextmanager
def rollback_on_error(module: Module) -> Iterator[None]:
    """Restore the module and its parts if the block fails."""
    parts = [(part, type(part), dict(vars(part)), copied_tables(part)) for part in module.modules()]
    tensors = [(tensor, type(tensor), tensor.data) for tensor in uninitialised(module)]
    try:
        yield
    except BaseException:
        for part, cls, attributes, tables in parts:
            object.__setattr__(part, "__class__", cls)
            vars(part).clear()
            vars(part).update(attributes)
            for table, items in tables:
                table.clear()
                table.update(items)
        for tensor, tensor_class, data in tensors:
            tensor.__class__ = torch.Tensor
            tensor.data = data
            tensor.__class__ = tensor_class
        raise


def copied_tables(module: Module) -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
    return [(value, dict(value)) for value in vars(module).values() if isinstance(value, dict)]


def uninitialised(module: Module) -> list[torch.Tensor]:
    tables = [table for part in module.modules() for table in (parameters_of(part), buffers_of(part))]
    return [value for table in tables for value in table.values() if torch.nn.parameter.is_lazy(value)]


def refresh_shadows(trace: Trace, record: Record) -> None:
    """Update the shadows of the module for the rest of this attempt, which may reach more lazy modules."""
    for part in record.real.modules():
        for value in vars(part).values():
            trace.outside.by_real.pop(id(value), None)
        known = trace.outside.by_real.get(id(part))
        if known is not None:
            object.__setattr__(known.shadow, "__class__", type(part))
            vars(known.shadow).clear()
            add_attributes(known)
