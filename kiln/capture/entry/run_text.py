"""The run function of an entry, as text.

It has the captured function's own signature: read what the graph needs, call the graph, build what is alive, write
effects back, then return - or hand the live state to the skeleton of a graph break. Should the graph itself raise,
state is put back and, where nothing was changed yet, the frame is run again in eager, which then raises in the user's
own line (or handles the error, if the program does).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ..._native import is_instance as isinstance
from ...bytecode.split import UNBOUND
from ...platform.light_dataclass import dataclass
from ...report.events import raised_text
from ..autograd.hook_registrations import undo_lines, write_registrations
from ..guards.source import Local, Source, parameter_name, signature
from ..interpreter.frame import NULL, Broken, Finished
from ..shadows.consumed_inputs import ListInput, lists_to_consume
from ..shadows.tensor_effects import guard_memory, is_restorable, share_memory
from ..state.trace import Trace
from ..torch.override_modes import changed_mode
from ..writeback.effects import write_effects
from ..writeback.rebuild import CannotRebuild, Rebuilder
from ..writeback.rewind import Snapshot, Switches, is_final, versions_of
from .check_text import CheckText
from .entry import GeneratedFunction


@dataclass
class Continuation:
    """What a broken frame hands on: the skeleton and which live values it takes."""

    skeleton: Callable[..., Any]
    parameters: tuple[Any, ...]
    stack: tuple[str, ...]  # kinds of the slots of the operand stack


FEW = 8


class RunText:
    """The run function's text, and the graph outputs it needs."""

    def __init__(self, trace: Trace, outcome: Finished | Broken, continuation: Continuation | None):
        self.trace = trace
        self.rebuilder = Rebuilder(trace)
        mode = changed_mode(trace)
        if mode is not None:
            raise CannotRebuild(mode, "a torch-function mode is active here")
        if isinstance(outcome, Finished):
            self.ending = [f"return {self.rebuilder.value(outcome.value)}"]
        else:
            assert continuation is not None
            self.ending = self.call_skeleton(outcome, continuation)
        self.rebuilder.run_later()
        write_effects(self.rebuilder)
        write_registrations(self.rebuilder)
        guard_memory(trace)
        self.lists = lists_to_consume(trace, self.rebuilder)  # that the graph consumes

    def keep_lists(self) -> None:
        """Have the graph take tensors, and empty lists only after it."""
        self.rebuilder.effects += [f"_k_list.clear({parameter_name(name)})" for name in self.lists]
        self.lists = []

    def call_skeleton(self, outcome: Broken, continuation: Continuation) -> list[str]:
        r, frame = self.rebuilder, outcome.frame
        handled = handled_exceptions(continuation.stack, frame.stack, self.trace.exceptions.handled)
        arguments = []
        for kind, key in continuation.parameters:
            if kind == "stack":
                value = handled.get(key, frame.stack[key])
                arguments.append(r.bind(UNBOUND, "unbound") if value is NULL else r.value(value))
            elif kind == "local":
                bound = key in frame.locals
                arguments.append(r.value(frame.locals[key]) if bound else r.bind(UNBOUND, "unbound"))
            elif key in frame.cells or key in frame.locals:  # from 3.12 on a comprehension may use the slot for itself
                arguments.append(r.value(frame.cells[key] if key in frame.cells else frame.locals[key]))
            else:
                arguments.append(r.bind(UNBOUND, "unbound"))
        call = f"{r.bind(continuation.skeleton, 'continue')}({', '.join(arguments)})"
        trim = r.bind(trim_traceback, "trim_traceback")
        # The exception itself may be among the variables: its traceback holds this frame, which must not hold it too.
        variables = sorted(set(arguments).intersection(r.names.values()))
        release = f"{' = '.join(variables)} = None; " if variables else ""
        return [f"try: return {call}", f"except _k_BaseException as error: {trim}(error); {release}raise"]

    def write(
        self, graph: Callable[..., Any] | None, inputs: list[Any], eager: Callable[..., Any] | None, check: CheckText
    ) -> GeneratedFunction:
        """The text, once the graph is compiled."""
        r = self.rebuilder
        call: list[str] = []
        if graph is not None:
            names = self.graph_arguments(inputs, check.inputs)
            outputs = "".join(f"{name}, " for name in r.outputs.values())
            target = f"({outputs}) = " if outputs else ""
            call = [f"{target}{r.bind(graph, 'graph')}({names})"]
            call = self.guarded(call, eager)
        taken = {item.source for item in inputs if isinstance(item, ListInput)} if graph is not None else ()
        call = [f"_k_list.clear({parameter_name(name)})" for name in self.lists if Local(name) not in taken] + call
        lines = [*r.reads, *call, *(line for line in r.lines if line), *r.effects, *self.ending]
        parameters = signature(self.trace.function.__code__)
        if check.has_program:
            parameters = f"_k_inputs, {parameters}" if "/" in parameters else f"_k_inputs, /, {parameters}"
        return GeneratedFunction("run", parameters, lines, r.namespace)

    def graph_arguments(self, inputs: list[Any], checked: list[Source]) -> str:
        """The inputs in order: runs of those that the check has read are slices of what it gave."""
        few = self.lists and len(inputs) <= FEW  # a list and little more: read again rather than unpacked
        places = {} if few else {source: place for place, source in enumerate(checked)}
        parts: list[list[Any]] = []  # [first, end] of a slice, or [expression]
        for item in inputs:
            place = places.get(item.source)
            if place is None:
                parts.append([self.rebuilder.read(item.source)])
            elif parts and parts[-1][1:] == [place]:
                parts[-1][1] = place + 1
            else:
                parts.append([place, place + 1])
        if parts == [[0, len(checked)]]:
            return "*_k_inputs"
        texts = [f"*_k_inputs[{part[0]}:{part[1]}]" if len(part) == 2 else part[0] for part in parts]
        return ", ".join(texts)

    def guarded(self, call: list[str], eager: Callable[..., Any] | None) -> list[str]:
        """The graph call, with what happens if it raises.

        Eager runs after the handler, not in it, or its own exception would get the graph's as context.
        """
        r = self.rebuilder
        if eager is None and not self.trace.switches.changed and not undo_lines(self.trace):
            return call
        lines = [
            "while True:",
            "    try:",
            *("        " + line for line in (*call, "break")),
            "    except _k_Exception as _k_error:",
        ]
        if self.trace.switches.changed:
            lines.insert(0, f"_k_state = {r.bind(Switches, 'Switches')}()")
            lines.append("        _k_state.restore()")
        lines += ["        " + line for line in undo_lines(self.trace)]
        if eager is None:
            return [*lines, "        raise"]
        lines.append(f"        if {r.bind(is_final, 'is_final')}(_k_error): raise")
        if self.trace.effects.raises_late:
            changed = ", ".join(r.read(info.input_source) for info in self.trace.effects.changed.values())
            lines.insert(0, f"_k_snapshot = {r.bind(Snapshot, 'Snapshot')}({changed})")
            lines.append("        _k_snapshot.restore()")
        elif self.trace.effects.reasons and not self.trace.effects.written_from:
            lines = self.with_first_run_snapshot(lines)
        elif self.trace.effects.written_from:  # nothing else raises once an input was changed
            read = ", ".join(r.read(info.input_source) for info in self.trace.effects.written_from.values())
            lines.append(f"        if {r.bind(share_memory, 'share_memory')}({read}): raise")
        lines.append(f"        _k_raised = {r.bind(raised_text, 'raised_text')}(_k_error)")
        arguments = call_signature(self.trace.function.__code__)
        return [*lines, f"    return {r.bind(eager, 'eager')}(_k_F, _k_raised{', ' if arguments else ''}{arguments})"]

    def with_first_run_snapshot(self, lines: list[str]) -> list[str]:
        """What nobody expects to raise does so at the first run, if at all: fake kernels let sizes pass that real ones
        refuse. Until a run has succeeded there is a snapshot. Where an input that is too large for one has changed, the
        graph's error is raised as it is: eager must not change the input again."""
        r, changed = self.rebuilder, list(self.trace.effects.changed.values())
        small = [r.read(info.input_source) for info in changed if is_restorable(info)]
        large = [r.read(info.input_source) for info in changed if not is_restorable(info)]
        untried, place = r.bind([True], "untried"), lines.index("        break")
        versions = f"{r.bind(versions_of, 'versions_of')}({', '.join(large)})"
        return [
            f"_k_snapshot = {r.bind(Snapshot, 'Snapshot')}({', '.join(small)}) if {untried} else None",
            *([f"_k_versions = {versions} if {untried} else ()"] if large else []),
            *lines[:place],
            f"        {untried}.clear()",
            *lines[place:],
            *([f"        if _k_versions and _k_versions != {versions}: raise"] if large else []),
            "        if _k_snapshot is not None: _k_snapshot.restore()",
        ]


def handled_exceptions(kinds: tuple[str, ...], stack: list[object], current: object) -> dict[int, object]:
    """The exception in hand for each slot in which CPython keeps the one before it, to come back to."""
    slots = [index for index, kind in enumerate(kinds) if kind == "exc_prev"]
    return dict(zip(slots, [*(stack[index] for index in slots[1:]), current], strict=True)) if slots else {}


def trim_traceback(error: BaseException) -> None:
    """Leave the skeleton's calls of segments out: in eager it is all one frame. They are the entries without a line."""
    entry = error.__traceback__
    while entry is not None:
        while entry.tb_next is not None and not entry.tb_next.tb_lineno:
            entry.tb_next = entry.tb_next.tb_next
        entry = entry.tb_next
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ is not None else None


def call_signature(code: types.CodeType) -> str:
    """Arguments that pass the parameters of a code object on."""
    names = [parameter_name(name) for name in code.co_varnames]
    parts = names[: code.co_argcount]
    index = code.co_argcount + code.co_kwonlyargcount
    keyword_only = [f"{name}={name}" for name in names[code.co_argcount : index]]
    if code.co_flags & 0x04:
        parts.append("*" + names[index])
        index += 1
    parts += keyword_only
    if code.co_flags & 0x08:
        parts.append("**" + names[index])
    return ", ".join(parts)
