"""Entries: the check and the run function of one capture, generated as Python source and compiled.

The run function has the captured function's own signature: read what the graph needs, call the graph, build what is
alive, write effects back, then return - or hand the live state to the skeleton of a graph break. Should the graph
itself raise, state is put back and, where nothing was changed yet, the frame is run again in eager, which then raises
in the user's own line (or handles the error, if the program does).
"""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.fx

from ... import _native
from ..._native import is_instance as isinstance
from ...bytecode.split import UNBOUND
from ...platform.fx_graphs import forget_text
from ...platform.python_objects import HEAP_TYPE
from ...program.graph import fix_names
from ...program.shapes.expressions import NAMES, substitute
from ...report.events import raised_text
from ..autograd.checkpoints import outline
from ..autograd.hook_registrations import undo_lines, write_registrations
from ..guards.generated_text import Text
from ..guards.guard_program import GuardProgram
from ..guards.guards import KINDS, ClassWatch, Guard, ShapeCondition, is_empty_tuple, is_global_lookup, plain
from ..guards.source import GlobalsOf, Local, Source, bases_of, native_length, parameter_name, signature
from ..interpreter.frame import NULL, Broken, Finished
from ..shadows import module_hooks
from ..shadows.consumed_inputs import StolenInput, lists_to_steal, steal
from ..shadows.tensor_effects import guard_memory, is_restorable, share_memory
from ..state.annotations import CHECK_STANCE, stances
from ..state.shape_conditions import shape_conditions
from ..state.trace import Trace
from ..state.values import TensorInfo
from ..torch.overrides import modes_changed
from ..writeback.effects import write_effects
from ..writeback.rebuild import CannotRebuild, Rebuilder
from ..writeback.rewind import Snapshot, Switches, is_final, versions_of


@dataclass(eq=False)
class Entry:
    """One compiled version of a frame."""

    check_text: str
    run_text: str
    check_names: dict[str, object]
    run_names: dict[str, object]
    guard_list: list[Guard]
    graph_module: torch.fx.GraphModule | None
    trace_guards: object
    tensor_check: object = None
    tensor_sources: list[Source] = field(default_factory=list)
    break_reason: object = None
    state: object = None

    def bind(self, function: types.FunctionType) -> tuple[Callable, Callable]:
        """Check and run for a function object (functions of one code share entries)."""
        text, names, found = self.check_text, self.check_names, stances()
        if found is not None:
            head, _, body = text.partition("\n")
            text, names = f"{head}\n    {CHECK_STANCE}\n{body}", {**names, "_k_stances": found}
        return (
            instantiate(text, names, function, "check"),
            instantiate(self.run_text, self.run_names, function, "run"),
        )


def instantiate(text: str, names: dict[str, object], function: types.FunctionType, kind: str) -> types.FunctionType:
    namespace = dict(names)
    namespace["_k_G"] = function.__globals__
    namespace["_k_C"] = function.__closure__
    namespace["_k_F"] = function
    namespace["__builtins__"] = {}
    exec(compiled(text, kind), namespace)
    made: types.FunctionType = namespace["_k_function"]  # type: ignore[assignment]
    made.__defaults__ = function.__defaults__
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = made.__name__ = function.__name__ if kind == "run" else f"{function.__name__} (guards)"
    return made


_COMPILED: dict[tuple[str, str], types.CodeType] = {}
_numbers = itertools.count(1)


def compiled(text: str, kind: str) -> types.CodeType:
    """The code of a generated function; its file name is plainly Kiln's, so that nobody takes it for the program."""
    if len(_COMPILED) > 512:
        _COMPILED.clear()
    code = _COMPILED.get((text, kind))
    if code is None:
        code = _COMPILED[text, kind] = compile(text, f"<kiln {kind} {next(_numbers)}>", "exec")
    return code


# -- checks ---------------------------------------------------------------------------------------------------------


class CheckText(Text):
    """The guards as statements: what is native first, then one line a guard, tensors last.

    Where objects have to be walked to, a native program does that, checks the tensors too, and gives the graph inputs
    it met, which the check hands to the run function: ``inputs`` are their sources.
    """

    def __init__(self, trace: Trace, state: object, inputs: list):
        super().__init__()
        self.trace = trace
        self.inputs: list[Source] = [item.source for item in inputs]
        self.lines: list[str] = []
        self.reads = self.lines  # a read is a statement like any other here, in order
        self.tensor_check: object = None
        self.state = state
        self.has_program = self.tensors_done = self.distinct_done = False
        self.types = trace.guards.note_types()
        self.established: set[Source] = set()  # whose types are checked in the lines so far

    def write(self) -> str:
        guards = self.trace.guards
        self.require(f"{self.bind(self.state.check, 'state')}()")  # bound once: this is the hot path
        if guards.tensors:
            self.tensor_check = _native.TensorCheck([(t.real, t.dynamic, t.strides) for t in guards.tensors])
        left = self.write_program([guard for guard in guards if not is_table_guard(guard)])
        items = [guard for guard in guards if is_table_guard(guard)]
        if items:
            self.require(f"{self.bind(items_check(self.trace, items), 'items')}()")
        if guards.classes:
            self.require(self.class_condition(guards.classes))
        if guards.codes:
            self.require(f"{self.bind(_native.CodeCheck(list(guards.codes.items())), 'codes')}()")
        for guard in left:
            if guard.kind != "type":
                self.require(self.render(guard))
            else:
                self.establish(guard.source)
        for _, predicate in guards.extras:
            self.require(f"{self.bind(predicate, 'extra')}()")
        if not self.tensors_done:
            self.write_tensors()
        if not self.distinct_done:
            self.write_distinct()
        for condition in self.trace.guards.shapes:
            self.write_condition(condition)
        if guards.cached.calls:
            self.require(f"{self.bind(guards.cached, 'cached')}()")  # last: these calls are the program's own
        body = "\n".join("    " + line for line in self.lines)
        answer = "_k_inputs" if self.has_program else "True"
        return f"def _k_function({signature(self.trace.function.__code__)}):\n{body}\n    return {answer}\n"

    def write_program(self, guards: list[Guard]) -> list[Guard]:
        """Put what can be checked natively into one call; gives the guards that are left."""
        program = GuardProgram(self.trace.guards)
        left = [guard for guard in guards if not program.takes(guard)]
        taken = {guard.source for guard in guards if guard.kind == "type"}.difference(
            [guard.source for guard in left if guard.kind == "type"]
        )
        inside = sum(not isinstance(tensor.source, Local) for tensor in self.trace.guards.tensors)
        if not program.worth_while and inside < MANY:
            self.inputs = []
            return guards
        tensors, distinct = self.trace.guards.tensors, list(self.trace.guards.distinct)
        self.has_program = True
        self.tensors_done = all([program.reads(tensor.source) for tensor in tensors])
        self.distinct_done = all([program.reads(source) for source in distinct])
        self.inputs = [source for source in self.inputs if program.reads(source)]
        built = program.build(
            self.inputs,
            distinct if self.distinct_done else [],
            tensors if self.tensors_done else [],
            self.tensor_check if self.tensors_done else None,
        )
        roots = ", ".join(self.read(source) for source in program.roots)
        self.lines.append(f"_k_inputs = {self.bind(built, 'program')}({roots})")
        self.lines.append("if _k_inputs is False: return False")
        self.established |= taken
        if self.tensors_done:
            self.established.update([tensor.source for tensor in tensors])
        return left

    def class_condition(self, classes: ClassWatch) -> str:
        """Mostly the versions of classes tell, natively; the rest is asked where they moved, or do not tell all."""
        classes.seal()
        check = f"{self.bind(classes.check, 'classes')}()"
        return f"{self.bind(classes.unchanged, 'versions')}() or {check}" if classes.versions_tell else check

    def require(self, expression: str) -> None:
        self.lines.append(f"if not ({expression}): return False")

    def read(self, source: Source) -> str:
        """As ever, but nothing is read through an object of which the type is still to be checked: reading an
        attribute, item or size of another object could run the program's code."""
        if source not in self.read_names:
            for base in bases_of(source):
                self.establish(base)
        return super().read(source)

    def establish(self, source: Source) -> None:
        """Check an object's type, where it is known and was not checked in a line before."""
        kind = self.types.get(source)
        if kind is not None and source not in self.established:
            self.established.add(source)
            self.require(KINDS["type"].render(self.read(source), kind, self.bind))

    def render(self, guard: Guard) -> str:
        kind = KINDS[guard.kind]
        if kind.inside:
            self.establish(guard.source)
        expression = self.read(guard.source)
        value = plain(guard.value)
        if isinstance(value, Source):
            value = self.read(value)
        if (guard.kind == "truth" or is_empty_tuple(value)) and not is_builtin(self.types.get(guard.source)):
            expression = f"{self.bind(native_length, 'native_length')}({expression})"  # it may have a __len__ in Python
        return kind.render(expression, value, self.bind)

    def write_distinct(self) -> None:
        sources = list(self.trace.guards.distinct)
        if len(sources) > 1:
            names = ", ".join(self.read(source) for source in sources)
            self.require(f"{self.bind(_native.distinct, 'distinct')}({names})")

    def write_tensors(self) -> None:
        tensors = self.trace.guards.tensors
        if tensors:
            names = ", ".join(self.read(t.source) for t in tensors)
            self.require(f"{self.bind(self.tensor_check, 'tensors')}({names})")

    def write_condition(self, condition: ShapeCondition) -> None:
        names = {name: self.read(source) for name, source in condition.symbols}
        names |= {name: self.bind(value, name) for name, value in NAMES.items()}
        self.require(substitute(condition.text, names))


def is_builtin(kind: type | None) -> bool:
    return kind is None or not kind.__flags__ & HEAP_TYPE


MANY = 8  # tensors to be read out of something, for which a native program is worth its while


def is_table_guard(guard: Guard) -> bool:
    """Whether a guard is about an entry of a fixed dictionary: those are checked natively, all at once."""
    if guard.kind == "identity":
        return is_global_lookup(guard.source)
    return guard.kind == "lacks_key" and isinstance(guard.source, GlobalsOf)


def items_check(trace: Trace, guards: list[Guard]) -> Callable[[], bool]:
    rows = []
    for guard in guards:
        base = guard.source if guard.kind == "lacks_key" else guard.source.base
        owner = base.owner  # type: ignore[union-attr]
        namespace = trace.function.__globals__ if owner is None else owner.value
        if guard.kind == "lacks_key":
            rows.append((namespace, plain(guard.value), _native.MISSING))
        else:
            rows.append((namespace, guard.source.key, plain(guard.value)))  # type: ignore[union-attr]
    return _native.ItemsCheck(rows)


# -- runs -----------------------------------------------------------------------------------------------------------


@dataclass
class Continuation:
    """What a broken frame hands on: the skeleton and which live values it takes."""

    skeleton: Callable
    parameters: tuple
    stack: tuple[str, ...]  # kinds of the slots of the operand stack


FEW = 8


class RunText:
    """The run function's text, and the graph outputs it needs."""

    def __init__(self, trace: Trace, outcome: Finished | Broken, continuation: Continuation | None):
        self.trace = trace
        self.rebuilder = Rebuilder(trace)
        mode = modes_changed(trace)
        if mode is not None:
            raise CannotRebuild(mode, "a torch-function mode is active here")
        if isinstance(outcome, Finished):
            self.ending = f"return {self.rebuilder.value(outcome.value)}"
        else:
            self.ending = self.call_skeleton(outcome, continuation)  # type: ignore[arg-type]
        self.rebuilder.run_later()
        write_effects(self.rebuilder)
        write_registrations(self.rebuilder)
        guard_memory(trace)
        self.lists = lists_to_steal(trace, self.rebuilder)  # that the graph consumes

    def keep_lists(self) -> None:
        """Have the graph take tensors, and empty lists only after it."""
        self.rebuilder.effects += [f"_k_list.clear({parameter_name(name)})" for name in self.lists]
        self.lists = []

    def call_skeleton(self, outcome: Broken, continuation: Continuation) -> str:
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
        return f"try: return {call}\n    except _k_BaseException as error: {trim}(error); {release}raise"

    def write(self, graph: Callable | None, inputs: list, eager: Callable | None, check: CheckText) -> str:
        """The text, once the graph is compiled."""
        r = self.rebuilder
        call: list[str] = []
        if graph is not None:
            names = self.graph_arguments(inputs, check.inputs)
            outputs = "".join(f"{name}, " for name in r.outputs.values())
            target = f"({outputs}) = " if outputs else ""
            call = [f"{target}{r.bind(graph, 'graph')}({names})"]
            call = self.guarded(call, eager)
        taken = {item.source for item in inputs if isinstance(item, StolenInput)} if graph is not None else ()
        call = [f"_k_list.clear({parameter_name(name)})" for name in self.lists if Local(name) not in taken] + call
        lines = [*r.reads, *call, *(line for line in r.lines if line), *r.effects, self.ending]
        body = "\n".join("    " + line for line in lines)
        parameters = signature(self.trace.function.__code__)
        if check.has_program:
            parameters = f"_k_inputs, {parameters}" if "/" in parameters else f"_k_inputs, /, {parameters}"
        return f"def _k_function({parameters}):\n{body}\n"

    def graph_arguments(self, inputs: list, checked: list[Source]) -> str:
        """The inputs in order: runs of those that the check has read are slices of what it gave."""
        few = self.lists and len(inputs) <= FEW  # a list and little more: read again rather than unpacked
        places = {} if few else {source: place for place, source in enumerate(checked)}
        parts: list[list] = []  # [first, end] of a slice, or [expression]
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

    def guarded(self, call: list[str], eager: Callable | None) -> list[str]:
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
            changed = ", ".join(r.read(info.source) for info in self.trace.effects.changed.values())  # type: ignore[arg-type]
            lines.insert(0, f"_k_snapshot = {r.bind(Snapshot, 'Snapshot')}({changed})")
            lines.append("        _k_snapshot.restore()")
        elif self.trace.effects.reasons and not self.trace.effects.written_from:
            lines = self.rewound_at_first(lines)
        elif self.trace.effects.written_from:  # nothing else raises once an input was changed
            read = ", ".join(r.read(info.source) for info in self.trace.effects.written_from.values())  # type: ignore[arg-type]
            lines.append(f"        if {r.bind(share_memory, 'share_memory')}({read}): raise")
        lines.append(f"        _k_raised = {r.bind(raised_text, 'raised_text')}(_k_error)")
        arguments = call_signature(self.trace.function.__code__)
        return [*lines, f"    return {r.bind(eager, 'eager')}(_k_F, _k_raised{', ' if arguments else ''}{arguments})"]

    def rewound_at_first(self, lines: list[str]) -> list[str]:
        """What nobody expects to raise does so at the first run, if at all: fake kernels let sizes pass that real ones
        refuse. Until a run has succeeded there is a snapshot. Where an input that is too large for one has changed, the
        graph's error is raised as it is: eager must not change the input again."""
        r, changed = self.rebuilder, list(self.trace.effects.changed.values())
        small = [r.read(info.source) for info in changed if is_restorable(info)]  # type: ignore[arg-type]
        large = [r.read(info.source) for info in changed if not is_restorable(info)]  # type: ignore[arg-type]
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


def finish_graph(trace: Trace, outputs: list[torch.fx.Node], lists: list[str]) -> list:
    """Close the graph: outputs, dead code, unused inputs, lists that it consumes. Gives the inputs that are left."""
    trace.graph.output(tuple(outputs))
    outline(trace)
    used = []
    for item in trace.inputs.items:
        if item.node.users:
            used.append(item)
        else:
            trace.graph.erase_node(item.node)
    return steal(trace, lists, used)


def make_graph_module(trace: Trace) -> torch.fx.GraphModule:
    """The graph as a module; what torch.fx keeps of its text for tracebacks goes when the module goes."""
    module = torch.fx.GraphModule(dict(trace.inputs.constants), trace.graph, "KilnGraph")
    file = module.forward.__code__.co_filename
    weakref.finalize(module, forget_text, file).atexit = False
    if trace.autograd.checkpoint_regions:  # their modules are inside, and torch.fx has just written their texts anew
        for part in module.modules():
            if isinstance(part, torch.fx.GraphModule):
                fix_names(part)
    return fix_names(module)


def has_work(graph: torch.fx.Graph) -> bool:
    return any(node.op not in ("placeholder", "output") for node in graph.nodes)


def example_inputs(inputs: list) -> list[object]:
    return [item.fake if isinstance(item, TensorInfo) else item.value for item in inputs]


def make_check(trace: Trace, state: object, inputs: list) -> CheckText:
    trace.outside.guard_presence()
    module_hooks.settle(trace)
    trace.guards.shapes += shape_conditions(trace)
    if trace.fakes.infos:
        trace.guards.classes.meet(torch.Tensor)
    return CheckText(trace, state, inputs)
