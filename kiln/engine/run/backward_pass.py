"""One backward pass: run by a compiled graph, or by torch's engine.

Torch's engine gets all that Kiln cannot do faithfully, before anything has happened. It then does what it would have
done without Kiln, errors included.
"""

from __future__ import annotations

import collections
import struct
import threading
from typing import TYPE_CHECKING, Any

import torch

from ... import _native
from ...exc import Unsupported
from ...platform.locks import new_lock
from ...platform.torch_dispatch import count_dispatch_modes, count_function_modes, innermost_transform
from ...report import engine_events
from ...report.stages import stage
from ..calls.abandoned import CaptureAbandoned
from ..calls.bailout import Bailout, Edge, FinishedByTorch
from ..walk import gradient_patterns
from ..walk.exclusion import exclusion
from ..walk.refusal import Refused
from .pass_cache import Cache, Entry
from .scopes import Compiler

if TYPE_CHECKING:
    from ..._native import Walk

MOST_COMPILERS = 16  # a cache each
_caches: collections.OrderedDict[int, Cache] = collections.OrderedDict()
_lock = new_lock()
MOST_NESTED = 8  # passes inside one another: deeper ones are left to torch's engine, which uses fewer Python frames


class Nesting(threading.local):
    depth = 0


_nesting = Nesting()


def run_backward(
    compiler: Compiler,
    engine: Any,
    tensors: tuple[Any, ...],
    gradients: tuple[Any, ...],
    keep_graph: bool,
    create_graph: bool,
    inputs: tuple[Any, ...] = (),
    allow_unreachable: bool = False,
    accumulate_grad: bool = False,
) -> tuple[Any, ...]:
    """Does what ``run_backward`` of torch's engine does, with the same arguments."""

    def by_torch(reason: str) -> tuple[Any, ...]:
        engine_events.handed_over(reason)
        with exclusion.torch_pass():
            results: tuple[Any, ...] = engine.run_backward(
                tensors,
                gradients,
                keep_graph,
                create_graph,
                inputs,
                allow_unreachable=allow_unreachable,
                accumulate_grad=accumulate_grad,
            )
        return results

    outputs = 0 if accumulate_grad else len(inputs)
    try:
        check_state(create_graph)
        if not inputs and not accumulate_grad:
            raise Refused("no input to give a gradient for")
        with stage("walk") as record, exclusion.lock:
            walk = _native.walk(tuple(tensors), tuple(gradients), tuple(inputs), keep_graph, accumulate_grad)
            if record is not None and walk.refusal is None:
                record.sizes |= {"nodes": walk.count, "tensors": len(walk.tensors)}
        if walk.refusal is not None:
            raise Refused(walk.refusal)
        cache = cache_of(compiler)
        entry = cache.find(walk, (outputs, *global_state()), outputs)
    except Refused as refusal:
        return by_torch(str(refusal))

    def finish(waiting: dict[Edge, Any], captured: dict[int, Any]) -> list[Any]:
        """The rest of the pass, by torch's engine."""
        given: tuple[Any, ...] = ()
        if waiting:
            given = walk.finish(tuple(waiting), tuple(waiting.values()), tuple(inputs), keep_graph, accumulate_grad)
        return [captured.get(place, given[place] if given else None) for place in range(outputs)]

    def again() -> tuple[Any, ...]:
        return run_backward(
            compiler, engine, tensors, gradients, keep_graph, create_graph, inputs, allow_unreachable, accumulate_grad
        )

    bailout = Bailout(walk, entry.points, finish) if entry.points else None
    try:
        results = run(entry, walk, keep_graph, bailout)
    except FinishedByTorch as finished:
        results = finished.results
        if finished.learned:
            cache.forget(entry)
    except CaptureAbandoned as abandoned:  # nothing has run, or nothing but functions in C++
        # Both hold frames of capture, which hold the exception and what the pass holds.
        abandoned.__traceback__ = abandoned.__context__ = None
        if abandoned.opaque and not entry.opaque:
            engine_events.opaque(str(abandoned))
            cache.make_opaque(entry)
            return again()
        known = bailout is None or abandoned.pattern is None or not bailout.learn(abandoned.point, abandoned.pattern)
        if not known or abandoned.ran:
            cache.forget(entry)
        if known:
            return by_torch(str(abandoned))
        return again()
    if not allow_unreachable:
        unused = [place for place, result in enumerate(results) if result is None]
        if unused:
            raise_unused(engine, unused[0])
    return tuple(results)


def raise_unused(engine: Any, place: int) -> None:
    """Raise torch's error about an input without a gradient: run a pass that has one at the same place."""
    with torch.enable_grad():
        used, unused = torch.zeros((), requires_grad=True), torch.zeros((), requires_grad=True)
        root = used.clone()
    inputs = (*[used] * place, unused)
    engine.run_backward((root,), (torch.ones(()),), False, False, inputs, allow_unreachable=False)


def run(entry: Entry, walk: Walk, keep_graph: bool, bailout: Bailout | None) -> Any:
    """Call the compiled graph inside a task of torch's engine, which then runs queued callbacks and the like."""
    hooks = walk.hooks()
    if entry.opaque and bailout is not None:
        bailout.hooks = tuple(hooks)
    hooks[0] = bailout
    bits = walk.size_bytes if entry.picks else b""
    sizes = [struct.unpack_from(kind, bits, 8 * place)[0] for place, kind in entry.picks]
    box = [walk.inputs(), sizes, hooks]
    del hooks
    if not keep_graph:
        # Only lent if torch's engine may have to run the pass after all.
        walk.release(entry.last_uses if entry.points or not entry.ran else False)
    compiled = entry.compiled
    _nesting.depth += 1
    try:
        with stage("run"):
            results = _native.run_in_engine(lambda: compiled(*emptied(box)), keep_graph)
    except (CaptureAbandoned, Unsupported):
        restore(walk, keep_graph)
        raise
    except BaseException:
        release(walk, keep_graph)
        raise
    finally:
        _nesting.depth -= 1
    entry.ran = True
    release(walk, keep_graph)
    return results


def restore(walk: Walk, keep_graph: bool) -> None:
    """After an error before anything ran, return to the nodes what was lent: frames of the traceback still hold it.

    After an error of another function, which a hook called, the pass is under way, and restoring fails.
    """
    if not keep_graph:
        try:
            walk.restore(0)
        except RuntimeError:
            release(walk, keep_graph)


def release(walk: Walk, keep_graph: bool) -> None:
    """Free what the nodes saved, as after a pass of torch's engine."""
    if not keep_graph:
        walk.release()
        walk.release_rest()


def emptied(box: list[Any]) -> list[Any]:
    """The arguments; nothing else here holds a reference to them."""
    arguments = list(box)
    box.clear()
    return arguments


def check_state(create_graph: bool) -> None:
    """Refuse passes that depend on more than the autograd graph."""
    if create_graph:
        raise Refused("create_graph=True")
    if torch.is_anomaly_enabled():
        raise Refused("anomaly mode")
    if _native.has_node_creation_hooks():
        raise Refused("hooks on new nodes")
    if count_dispatch_modes() or count_function_modes():
        raise Refused("a torch dispatch or function mode is active")
    if innermost_transform() is not None:
        raise Refused("a transform of torch.func is active")
    if torch.is_inference_mode_enabled():
        raise Refused("inference mode")
    if _nesting.depth >= MOST_NESTED:
        raise Refused(f"more than {MOST_NESTED} passes inside one another")


def global_state() -> tuple[Any, ...]:
    """The global state that operations depend on."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
    )


def cache_of(compiler: Compiler) -> Cache:
    """The graphs of a compiler. The least recently used caches are dropped."""
    with _lock:
        cache = _caches.get(id(compiler))
        if cache is None:
            cache = _caches[id(compiler)] = Cache(compiler)
            if len(_caches) > MOST_COMPILERS:
                _caches.popitem(last=False)
        else:
            _caches.move_to_end(id(compiler))
        return cache


def reset() -> None:
    """Drop all graphs and all recorded patterns."""
    with _lock:
        _caches.clear()
    gradient_patterns.reset()
    engine_events.reset()
