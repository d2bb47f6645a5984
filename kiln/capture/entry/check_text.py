"""The check of an entry: its guards, as the text of a Python function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ... import _native
from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE
from ...program.shapes.expressions import NAMES, substitute
from ..guards.generated_text import Text
from ..guards.guard_program import GuardProgram
from ..guards.guards import KINDS, ClassWatch, Guard, ShapeCondition, is_empty_tuple, is_global_lookup, plain
from ..guards.source import GlobalsOf, Item, Local, Source, bases_of, native_length, signature
from ..shadows import module_hooks
from ..state.shape_conditions import shape_conditions
from ..state.trace import Trace
from .entry import GeneratedFunction


class CheckText(Text):
    """The guards as statements: native checks first, then one line for each other guard.

    Where objects have to be walked to, a native program does that, checks the tensors too, and gives the graph inputs
    it met, which the check hands to the run function: ``inputs`` are their sources.
    """

    def __init__(self, trace: Trace, state: _native.GlobalState, inputs: list[Any]):
        super().__init__()
        self.trace = trace
        self.inputs: list[Source] = [item.source for item in inputs]
        self.lines: list[str] = []
        self.reads = self.lines  # a read is a statement like any other here, in order
        self.tensor_check: _native.TensorCheck | None = None
        self.state = state
        self.has_program = self.tensors_done = self.distinct_done = False
        self.types = trace.guards.note_types()
        self.established: set[Source] = set()  # whose types are checked in the lines so far

    def write(self) -> GeneratedFunction:
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
        self.lines.append("return _k_inputs" if self.has_program else "return True")
        return GeneratedFunction("check", signature(self.trace.function.__code__), self.lines, self.namespace)

    def write_program(self, guards: list[Guard]) -> list[Guard]:
        """Put what can be checked natively into one call; gives the guards that are left."""
        program = GuardProgram(self.trace.guards)
        left = [guard for guard in guards if not program.takes(guard)]
        taken = {guard.source for guard in guards if guard.kind == "type"}.difference(
            [guard.source for guard in left if guard.kind == "type"]
        )
        inside = sum(not isinstance(tensor.source, Local) for tensor in self.trace.guards.tensors)
        if not program.is_worthwhile and inside < MANY:
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
        classes.note_versions()
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
        if len(sources) < 2:
            return
        given = set(self.inputs)
        names = [self.read(source) for source in sources if source not in given]
        if len(names) + len(self.inputs) == len(sources):
            names += ["*_k_inputs"] if self.inputs else []  # which the program has read
        else:
            names = [self.read(source) for source in sources]
        self.require(f"{self.bind(_native.distinct, 'distinct')}({', '.join(names)})")

    def write_tensors(self) -> None:
        tensors = self.trace.guards.tensors
        if tensors:
            names = ", ".join(self.read(t.source) for t in tensors)
            self.require(f"{self.bind(self.tensor_check, 'tensors')}({names})")

    def write_condition(self, condition: ShapeCondition) -> None:
        symbols = dict(condition.symbols)
        self.require(
            substitute(
                condition.text,
                lambda name: self.read(symbols[name]) if name in symbols else self.bind(NAMES[name], name),
            )
        )


def is_builtin(kind: type | None) -> bool:
    return kind is None or not kind.__flags__ & HEAP_TYPE


MANY = 8  # tensors to be read out of something, for which a native program is worth its while


def is_table_guard(guard: Guard) -> bool:
    """Whether a guard is about an entry of a fixed dictionary: those are checked natively, all at once."""
    if guard.kind == "identity":
        return is_global_lookup(guard.source)
    return guard.kind == "lacks_key" and isinstance(guard.source, GlobalsOf)


def items_check(trace: Trace, guards: list[Guard]) -> Callable[[], bool]:
    rows: list[tuple[dict[str, Any], Any, Any]] = []
    for guard in guards:
        source, value = guard.source, plain(guard.value)
        base = source.base if isinstance(source, Item) else source
        assert isinstance(base, GlobalsOf)
        namespace = trace.function.__globals__ if base.owner is None else base.owner.value
        rows.append((namespace, source.key, value) if isinstance(source, Item) else (namespace, value, _native.MISSING))
    return _native.ItemsCheck(rows)


def make_check(trace: Trace, state: _native.GlobalState, inputs: list[Any]) -> CheckText:
    trace.outside.guard_presence()
    module_hooks.guard_changed_keys(trace)
    trace.guards.shapes += shape_conditions(trace)
    if trace.fakes.infos:
        trace.guards.classes.watch_class(torch.Tensor)
    return CheckText(trace, state, inputs)
