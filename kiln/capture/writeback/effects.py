"""Side effects: what the program did to outside objects, written back after the graph has run.

Shadows hold final states, so one comparison per object with what it held on arrival tells what to write; a list that
was appended to and popped again costs nothing. New values are built before the first write, so writes cannot disturb
each other.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

from ..._native import is_instance as isinstance
from ...platform.python_objects import mapping_items
from ..guards.source import getattr_static_dict, is_direct, namespace_of
from ..shadows.marked_calls import write_deferred
from ..shadows.native_arguments import guard_all_keys
from ..state.operations import operations
from ..state.trace import Trace
from ..state.values import DELETED, Kind, Record, same_value
from .rebuild import Rebuilder


def write_effects(rebuilder: Rebuilder) -> None:
    """Append the statements that bring outside objects up to date."""
    trace = rebuilder.trace
    for record in list(trace.outside.by_shadow.values()):
        WRITERS[record.kind](rebuilder, record)
        write_attributes(rebuilder, record)
    write_pending(rebuilder, trace)
    write_globals(rebuilder, trace)
    write_tensor_attributes(rebuilder, trace)
    write_log(rebuilder, trace)
    write_deferred(rebuilder, trace)
    rebuilder.run_later()
    operations.write_under_locks(rebuilder, trace)


def write_list(r: Rebuilder, record: Record) -> None:
    now, before = list.copy(record.shadow), record.items
    if len(now) == len(before) and all(map(same_value, before, now)):
        return
    target = r.read(record.source)
    if len(now) > len(before) and all(map(same_value, before, now)):
        r.effects.append(f"_k_list.extend({target}, [{r.items(now[len(before) :])}])")
        return
    r.effects.append(f"_k_list.__setitem__({target}, _k_slice(None), [{r.items(now)}])")


def write_pending(r: Rebuilder, trace: Trace) -> None:
    """Elements for lists that nobody looked at."""
    for pending in trace.outside.appended.values():
        if pending.values:
            r.effects.append(f"_k_list.extend({r.read(pending.source)}, [{r.items(pending.values)}])")


def write_deque(r: Rebuilder, record: Record) -> None:
    now, before = list(collections.deque.__iter__(record.shadow)), record.items
    if len(now) == len(before) and all(map(same_value, before, now)):
        return
    target = r.read(record.source)
    deque = r.bind(collections.deque, "deque")
    if len(now) == len(before) and still_valid(record.iterator):  # then the real one's iterators must stay valid too
        changed = [place for place, values in enumerate(zip(before, now, strict=True)) if not same_value(*values)]
        r.effects += [f"{deque}.__setitem__({target}, {place}, {r.value(now[place])})" for place in changed]
        return
    r.effects += [f"{deque}.clear({target})", f"{deque}.extend({target}, [{r.items(now)}])"]


def still_valid(iterator: Iterator[Any] | None) -> bool:
    assert iterator is not None
    try:
        next(iterator, None)
    except RuntimeError:
        return False
    return True


def write_dict(r: Rebuilder, record: Record) -> None:
    before: dict[Any, Any] = record.items
    now = dict(mapping_items(record.shadow))
    base = collections.OrderedDict if isinstance(record.shadow, collections.OrderedDict) else dict
    moved = moved_keys(before, now)
    if moved and base is collections.OrderedDict:  # move_to_end moves to the front, too
        guard_all_keys(r.trace, record)
    gone = [*(key for key in before if key not in now), *moved]
    again = set(moved)
    written = [key for key in now if key in again or key not in before or not same_value(before[key], now[key])]
    if not gone and not written:
        return
    target, kind = r.read(record.source), r.bind(base, base.__name__)
    removals = [f"{kind}.__delitem__({target}, {r.value(key)})" for key in gone]
    r.effects += removals + [f"{kind}.__setitem__({target}, {r.value(key)}, {r.value(now[key])})" for key in written]


def moved_keys(before: dict[Any, Any], now: dict[Any, Any]) -> list[Any]:
    """The keys that were deleted and set again, which puts them last: all known ones after a new or displaced one."""
    places = {key: place for place, key in enumerate(before)}
    furthest, late, moved = -1, False, []
    for key in now:
        place = places.get(key)
        if place is None:
            late = True
        elif late or place < furthest:
            late = True
            moved.append(key)
        else:
            furthest = place
    return moved


def write_set(r: Rebuilder, record: Record) -> None:
    now: set[Any] = record.shadow
    before: set[Any] = record.items
    now = set(set.__iter__(now))  # past methods of a subclass
    if now == before:
        return
    target = r.read(record.source)
    removed = f"[{r.items(item for item in before if item not in now)}]"
    added = f"[{r.items(item for item in set.__iter__(record.shadow) if item not in before)}]"
    r.effects.append(f"{r.bind(change_set, 'change_set')}({target}, {removed}, {added})")


def change_set(target: set[Any], removed: list[Any], added: list[Any]) -> None:
    """Take elements out and put others in, one by one: doing it all at once may bring the rest into another order."""
    for item in removed:
        set.discard(target, item)
    for item in added:
        set.add(target, item)


def write_cell(r: Rebuilder, record: Record) -> None:
    try:
        now: tuple[Any, ...] = (record.shadow.cell_contents,)
    except ValueError:
        now = ()
    before: tuple[Any, ...] = record.items
    if len(now) == len(before) and all(map(same_value, before, now)):
        return
    target = r.read(record.source)
    if now:
        r.effects.append(f"{target}.cell_contents = {r.value(now[0])}")
    else:
        r.effects.append(f"del {target}.cell_contents")


def write_nothing(r: Rebuilder, record: Record) -> None:
    return None


def write_attributes(r: Rebuilder, record: Record) -> None:
    """Instance dictionaries and slots."""
    if record.attributes is not None:
        before, now = record.attributes, getattr_static_dict(record.shadow) or {}
        gone = [*(name for name in before if name not in now), *moved_keys(before, now)]
        r.effects += [f"del {namespace_text(r, record)}[{name!r}]" for name in gone]
        for name, value in now.items():
            if name in gone or name not in before or not same_value(before[name], value):
                r.effects.append(f"{namespace_text(r, record)}[{name!r}] = {r.value(value)}")
    for name, before_value in record.slots.items():
        write_slot(r, record, name, before_value)


def namespace_text(r: Rebuilder, record: Record) -> str:
    """An expression for an instance dictionary, past any ``__getattribute__`` in Python."""
    owner = r.read(record.source)
    return f"{owner}.__dict__" if is_direct(type(record.real)) else f"{r.bind(namespace_of, 'namespace_of')}({owner})"


def write_slot(r: Rebuilder, record: Record, name: str, before: object) -> None:
    from ..guards.source import lookup

    descriptor = lookup(type(record.shadow), name)
    try:
        now = descriptor.__get__(record.shadow)
    except AttributeError:
        if before is not DELETED:
            r.effects.append(f"{r.bind(descriptor, 'slot')}.__delete__({r.read(record.source)})")
        return
    if now is not before:
        r.effects.append(f"{r.bind(descriptor, 'slot')}.__set__({r.read(record.source)}, {r.value(now)})")


def write_globals(r: Rebuilder, trace: Trace) -> None:
    for namespace, written in trace.outside.globals.values():
        target = r.read(trace.outside.globals_source(namespace))
        for name, value in written.items():
            if value is DELETED:
                r.effects.append(f"{target}.pop({name!r}, None)")
            else:
                r.effects.append(f"{target}[{name!r}] = {r.value(value)}")


def write_tensor_attributes(r: Rebuilder, trace: Trace) -> None:
    """Attributes and gradients that the program put on tensors; of those made inside, only if they come out."""
    for info in list(trace.fakes.infos.values()):
        if not info.grad_set or (info.source is None and info.node not in r.outputs):
            continue
        for name, value in info.attributes.items():
            r.effects.append(f"{r.value(info.fake)}.{name} = {r.value(value)}")


def write_log(r: Rebuilder, trace: Trace) -> None:
    """Lines for loggers, in order."""
    for line in trace.deferred.log_lines:
        parts = (line.logger, line.level, line.message, line.arguments, line.place)
        r.effects.append(
            f"{r.bind(operations.log_line, 'log_line')}({', '.join(r.bind(part, 'part') for part in parts)})"
        )


WRITERS: dict[Kind, Callable[[Rebuilder, Record], None]] = {
    Kind.LIST: write_list,
    Kind.DEQUE: write_deque,
    Kind.DICT: write_dict,
    Kind.SET: write_set,
    Kind.CELL: write_cell,
    Kind.OBJECT: write_nothing,
}
