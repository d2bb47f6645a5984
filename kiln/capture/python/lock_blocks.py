"""``with lock:`` in captured code, for a lock from outside.

Nothing is held while tracing or while the graph runs. What the program did under the lock to outside objects is written
back after the graph, under the lock. If a lock is still held where the capture ends, the frame runs in eager.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..interpreter.call_rules import rule
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace

if TYPE_CHECKING:
    from ..writeback.rebuild import Rebuilder

KINDS: tuple[Any, ...] = (type(threading.Lock()), type(threading.RLock()))


def outside_lock(trace: Trace, value: object) -> object:
    lock = force(trace, value)
    if id(lock) not in trace.outside.foreign:
        raise trace.fail("a lock that is made inside the compiled function")
    return lock


@rule(*(kind.__enter__ for kind in KINDS))
def rule_enter(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    lock = outside_lock(trace, args[0])
    if lock in trace.deferred.locks_held and type(lock) is type(threading.Lock()):
        raise trace.fail("a lock that is acquired twice")
    trace.deferred.locks_held.append(lock)
    trace.deferred.locks.setdefault(id(lock), lock)
    return True


@rule(*(kind.__exit__ for kind in KINDS))
def rule_exit(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    lock = outside_lock(trace, args[0])
    if lock not in trace.deferred.locks_held:
        raise trace.fail("releasing a lock that was acquired outside")
    trace.deferred.locks_held.remove(lock)


@operation
def write_under_locks(r: Rebuilder, trace: Trace) -> None:
    """Put the statements that write effects under the locks that the program took."""
    if trace.deferred.locks_held:
        raise trace.fail("a lock that is held across a graph break", whole=True)
    if trace.deferred.locks and r.effects:
        locks = ", ".join(r.bind(lock, "lock") for lock in trace.deferred.locks.values())
        r.effects[:] = [f"with {locks}:", *("    " + line for line in r.effects)]
