"""Why an entry does not fit a call, in words, and what that teaches about sizes and numbers that vary.

Only run on a miss: guards are evaluated one by one, in order, until one fails.
"""

from __future__ import annotations

import re
import types

from .._native import is_instance as isinstance
from ..config import config
from .callers import FILE as CALLERS_FILE
from .callers import parameter_names
from .conditions import NAMES
from .entry import Entry, signature
from .guards import KINDS, Guard, GuardSet, ShapeCondition, plain
from .hints import NEEDED, Hints, is_operand
from .rebuild import Text
from .source import Computed, Source


def reason_for_miss(entry: Entry, function: types.FunctionType, args: tuple, kwargs: dict, hints: Hints) -> str:
    """The first assumption that fails. All sizes and numbers that differ are noted in ``hints``."""
    reader = SourceReader(function, args, kwargs)
    reader.needed = entry.trace_guards.needed  # type: ignore[attr-defined]
    reasons = [entry.state.reason()]  # type: ignore[attr-defined]
    reasons += [failed(reader, guard, hints) for guard in entry.guard_list]
    reasons += failed_elsewhere(entry, reader, hints)
    reasons += [same_objects(entry, reader)]
    reason = next((words for words in reasons if words is not None), "an assumption that cannot be named")
    return in_callee_names(reason, function, args)


def in_callee_names(reason: str, function: types.FunctionType, args: tuple) -> str:
    """What is compiled for a module or a callable object takes ``*args``: name them as the user's own function does."""
    if function.__code__.co_filename != CALLERS_FILE:
        return reason
    names = parameter_names(function, args)

    def positional(found: re.Match[str]) -> str:
        index = int(found[1])
        return f"L[{names[index]!r}]" if index < len(names) else found[0]

    reason = re.sub(r"L\['args'\]\[(\d+)\]", positional, reason)
    return re.sub(r"L\['kwargs'\]\['(\w+)'\]", r"L['\1']", reason).replace("L['target']", "L['self']")


def same_objects(entry: Entry, reader: SourceReader) -> str | None:
    """Which two objects, different when the entry was made, are the same one now."""
    found: dict[int, Source] = {}
    for source in entry.trace_guards.distinct:  # type: ignore[attr-defined]
        try:
            value = reader.read(source)
        except Exception:
            continue
        other = found.setdefault(id(value), source)
        if other is not source:
            return f"{other.describe()} and {source.describe()} are the same object now, and were two"
    return None


def failed(reader: SourceReader, guard: Guard, hints: Hints) -> str | None:
    name = guard.source.describe()
    value = plain(guard.value)
    try:
        seen = reader.read(guard.source)
    except Exception:
        return f"{name} is not there any more"
    if isinstance(value, Source):
        return None if reader.holds(value, seen) else f"{name} is {value.describe()} expected, another object seen"
    text = Text()
    expression = KINDS[guard.kind].render("seen", value, text.bind)
    try:
        holds = eval(expression, {**text.namespace, "seen": seen})
    except Exception:
        holds = False
    if holds:
        return None
    if guard.kind == "constant" and type(value) is type(seen) and config.automatic_dynamic:
        learn_from_constant(name, value, reader, hints)
    kind = KINDS[guard.kind]
    other = f" of type {type(seen).__qualname__}" if guard.kind == "constant" and type(seen) is not type(value) else ""
    return f"{name} {kind.words(value)}, {safe(kind.seen, seen)}{other} seen"


def learn_from_constant(name: str, value: object, reader: SourceReader, hints: Hints) -> None:
    """A constant that varies: a number becomes symbolic; where its very value is needed, or there are no symbols for
    its kind, the program's use of it is left to Python in the end."""
    if type(value) in (int, float):
        hints[name] = NEEDED if name in reader.needed else True
        return
    if is_operand(name):
        count = hints.get(name) or 0
        hints[name] = NEEDED if count == NEEDED or count + 1 >= TOLERATED else count + 1  # type: ignore[operator]


TOLERATED = 2  # so many values of an operand get an entry each


def safe(words, value: object) -> str:
    try:
        return words(value)
    except Exception:
        return f"a {type(value).__name__}"


def failed_elsewhere(entry: Entry, reader: SourceReader, hints: Hints) -> list[str | None]:
    """Assumptions about classes, code, tensors and symbolic sizes."""
    guards: GuardSet = entry.trace_guards  # type: ignore[assignment]
    reasons = [guards.classes.reason(), guards.code_reason()]
    if entry.tensor_check is not None:
        reasons.append(tensor_reason(entry, reader, hints))
    return reasons + [condition_reason(reader, condition, hints) for condition in guards.shapes]


def condition_reason(reader: SourceReader, condition: ShapeCondition, hints: Hints) -> str | None:
    try:
        values = {name: reader.read(source) for name, source in condition.symbols}
        holds = eval(condition.text, dict(NAMES), values)
    except Exception:
        holds = False
    if holds:
        return None
    names = {source.describe() for _, source in condition.symbols}
    if config.automatic_dynamic and names <= reader.needed:
        for name in names:
            hints[name] = NEEDED
    return f"{condition.words} expected"


def tensor_reason(entry: Entry, reader: SourceReader, hints: Hints) -> str | None:
    try:
        tensors = [reader.read(source) for source in entry.tensor_sources]
    except Exception:
        return "a tensor is not there any more"
    names = [source.describe() for source in entry.tensor_sources]
    if config.automatic_dynamic:
        for index, dimension in entry.tensor_check.mismatches(*tensors):  # type: ignore[attr-defined]
            known = hints.get(names[index])
            hints[names[index]] = (known if isinstance(known, frozenset) else frozenset()) | {dimension}
    return entry.tensor_check.reason(names, *tensors)  # type: ignore[attr-defined]


class SourceReader:
    """Reads sources for one call, by evaluating their text."""

    def __init__(self, function: types.FunctionType, args: tuple, kwargs: dict):
        text = f"def _k_function({signature(function.__code__)}):\n    return _k_locals()\n"
        namespace: dict[str, object] = {"_k_locals": locals}
        exec(text, namespace)
        bind = namespace["_k_function"]
        bind.__defaults__ = function.__defaults__  # type: ignore[attr-defined]
        bind.__kwdefaults__ = function.__kwdefaults__  # type: ignore[attr-defined]
        self.values = bind(*args, **kwargs)  # type: ignore[operator]
        self.function = function
        self.known: dict[Source, object] = {}
        self.needed: set[str] = set()  # numbers whose very value the entry needed

    def holds(self, source: Source, value: object) -> bool:
        """Whether this very object is where the source says."""
        try:
            return self.read(source) is value
        except Exception:
            return False

    def read(self, source: Source) -> object:
        """The object that a source leads to; what was read once is kept: sources share long beginnings."""
        if source in self.known:
            return self.known[source]
        text = Text()
        names: dict[str, object] = {"_k_G": self.function.__globals__, "_k_C": self.function.__closure__}
        if hasattr(source, "base"):
            expression = source.render("_k_base", text.bind)
            names["_k_base"] = self.read(source.base)
        elif isinstance(source, Computed):
            operands = [f"_k_operand_{place}" for place, _ in enumerate(source.operands)]
            expression = source.render_call(operands, text.bind)
            names |= zip(operands, map(self.read, source.operands), strict=True)
        else:
            expression = text.read(source)
            names |= self.values
        found = self.known[source] = eval(expression, {**text.namespace, **names})
        return found
