"""Torch-function modes, and switches that turn overrides off.

While Kiln traces, modes that are active outside are taken off torch's stack and kept in ``trace.overrides.modes``;
modes pushed by the program go there as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import is_anomaly_enabled  # the program may put another function in its place

from ..._native import has_node_creation_hooks
from ...platform.light_dataclass import dataclass
from ...platform.torch_autograd import (
    forward_mode_level,
    pop_saved_tensors_hooks,
    push_saved_tensors_hooks,
    top_saved_tensors_hooks,
)
from ...platform.torch_dispatch import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    count_dispatch_modes,
    count_function_modes,
    function_mode_at,
    innermost_transform,
    is_torch_function_all_disabled,
    is_torch_function_enabled,
    is_torch_function_mode_enabled,
    pop_function_mode,
    push_function_mode,
)
from ...platform.torch_functions import tracing_state
from ..guards.source import Identity, Pinned, Source, source
from ..interpreter.call_rules import RULES, rule
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import Lazy

ENABLED, SUBCLASSES_OFF, ALL_OFF = 0, 1, 2  # how much of __torch_function__ is switched off


def current_level() -> int:
    """How much of ``__torch_function__`` is switched off in this thread."""
    if is_torch_function_all_disabled():
        return ALL_OFF
    return ENABLED if is_torch_function_enabled() else SUBCLASSES_OFF


def guard_level(trace: Trace) -> None:
    if not any(words == LEVEL_WORDS for words, _ in trace.guards.extras):
        expected = trace.overrides.outer_level
        trace.guards.extras.append((LEVEL_WORDS, lambda: current_level() == expected))


LEVEL_WORDS = "__torch_function__ switched on or off as before"


@contextlib.contextmanager
def at_level(trace: Trace, value: int) -> Iterator[None]:
    before = trace.overrides.level
    trace.overrides.level = max(before, value)
    try:
        yield
    finally:
        trace.overrides.level = before


@source
class ModeAt(Source):
    """A torch-function mode that is active when the compiled function is called."""

    base: Source
    index: int

    def render(self, base: str, bind: Callable[[object, str], str]) -> str:
        return f"{base}({self.index})"

    def describe(self) -> str:
        return f"torch-function mode {self.index}"


@contextlib.contextmanager
def overrides_suspended() -> Iterator[OuterModes]:
    """Suspend overrides while Kiln reads real tensors; yields the modes and switches that were active."""
    level = current_level()
    modes = [pop_function_mode() for _ in range(count_function_modes())][::-1]
    try:
        with DisableTorchFunctionSubclass(), saved_tensor_hooks_suspended():
            yield OuterModes(modes, level)
    finally:
        for mode in modes:
            push_function_mode(mode)


@contextlib.contextmanager
def saved_tensor_hooks_suspended() -> Iterator[None]:
    """Hooks on what autograd saves are called when the graph runs, not for fake tensors."""
    hooks = []
    while (pair := top_saved_tensors_hooks(True)) is not None:
        hooks.append(pair)
        pop_saved_tensors_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            push_saved_tensors_hooks(pack, unpack)


def is_intercepted() -> bool:
    """Whether operations now mean something that fakes cannot show: dispatch modes, functorch's transforms,
    forward-mode derivatives (fakes have no tangents), ``torch.jit.trace``, anomaly mode, which records lines, or hooks
    on new nodes, which are those of eager."""
    transformed = innermost_transform() is not None or forward_mode_level() >= 0
    noted = tracing_state() is not None or is_anomaly_enabled() or has_node_creation_hooks()
    return transformed or noted or bool(count_dispatch_modes())


@dataclass(eq=False)
class OuterModes:
    """Torch-function modes that are active, and how much of ``__torch_function__`` is switched off."""

    modes: list[object]
    level: int


def enter_outer_modes(trace: Trace, outside: OuterModes) -> None:
    """Start a trace with the modes that are active outside."""
    modes = outside.modes
    base = Pinned(Identity(function_mode_at))
    trace.overrides.modes = [Lazy(mode, ModeAt(base, index)) for index, mode in enumerate(modes)]
    trace.overrides.outer_modes = list(trace.overrides.modes)
    trace.overrides.level = trace.overrides.outer_level = outside.level
    if modes:
        guard_level(trace)


def changed_mode(trace: Trace) -> object | None:
    """The first mode by which the stack differs from the one at the start; None if it is the same."""
    now, before = trace.overrides.modes, trace.overrides.outer_modes
    for index in range(max(len(now), len(before))):
        if index >= len(now):
            return before[index]
        if index >= len(before) or force(trace, now[index]) is not force(trace, before[index]):
            return now[index]
    return None


@rule(push_function_mode)
def rule_push(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    mode = force(trace, args[0])
    trace.mark_unbuildable(mode)
    trace.overrides.modes.append(mode)


@rule(pop_function_mode)
def rule_pop(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if len(trace.overrides.modes) <= len(trace.overrides.outer_modes):
        raise trace.fail("leaving a torch-function mode that was entered outside")
    return trace.overrides.modes.pop()


class Switch:
    """Stands for ``torch._C.DisableTorchFunction…`` while tracing."""

    unbuildable = True

    def __init__(self, level: int) -> None:
        self.level = level
        self.before = ENABLED

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


def new_switch(trace: Trace, value: int) -> Switch:
    switch = Switch(value)
    trace.mark_unbuildable(switch)
    return switch


@rule(Switch.__enter__)
def rule_enter(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    switch = force(trace, args[0])
    switch.before = trace.overrides.level
    trace.overrides.level = max(switch.level, switch.before)


@rule(Switch.__exit__)
def rule_exit(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    trace.overrides.level = force(trace, args[0]).before


@rule(is_torch_function_enabled)
def rule_enabled(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    guard_level(trace)
    return trace.overrides.level == ENABLED


@rule(is_torch_function_mode_enabled)
def rule_mode_enabled(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    guard_level(trace)
    return bool(trace.overrides.modes) and trace.overrides.level != ALL_OFF


RULES.update(
    {
        count_function_modes: lambda trace, args, kwargs: len(trace.overrides.modes),
        function_mode_at: lambda trace, args, kwargs: trace.overrides.modes[force(trace, args[0])],
        DisableTorchFunctionSubclass: lambda trace, args, kwargs: new_switch(trace, SUBCLASSES_OFF),
        DisableTorchFunction: lambda trace, args, kwargs: new_switch(trace, ALL_OFF),
    }
)
