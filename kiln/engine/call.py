"""One backward pass: taken over from torch's engine, or handed to it.

Torch's engine gets all that Kiln cannot do faithfully, before anything has happened; it then does what it would have
done, errors included.
"""

from __future__ import annotations

import collections
import struct
import threading
from typing import Any

import torch

from .. import _native
from ..exc import Unsupported
from ..forking import new_lock
from . import predictions, telling
from .cache import Cache, Compiler, Entry
from .departure import Departure, Foreseen, Left
from .refusal import Refused
from .turns import turns

MOST_COMPILERS = 16  # a cache each
_caches: collections.OrderedDict[int, Cache] = collections.OrderedDict()
_lock = new_lock()
MOST_NESTED = 8  # passes started by one another: deeper ones are torch's, which needs fewer Python frames for each


class Nesting(threading.local):
    depth = 0


_nesting = Nesting()


def run_backward(
    compiler: Compiler,
    engine: Any,
    tensors: tuple,
    gradients: tuple,
    keep_graph: bool,
    create_graph: bool,
    inputs: tuple = (),
    allow_unreachable: bool = False,
    accumulate_grad: bool = False,
) -> tuple:
    """What ``run_backward`` of torch's engine does."""

    def by_torch(reason: str) -> tuple:
        telling.handed_over(reason)
        with turns.torch_pass():
            return engine.run_backward(
                tensors,
                gradients,
                keep_graph,
                create_graph,
                inputs,
                allow_unreachable=allow_unreachable,
                accumulate_grad=accumulate_grad,
            )

    outputs = 0 if accumulate_grad else len(inputs)
    try:
        check_state(create_graph)
        if not inputs and not accumulate_grad:
            raise Refused("no input to give a gradient for")
        with turns.lock:
            walk = _native.walk(tuple(tensors), tuple(gradients), tuple(inputs), keep_graph, accumulate_grad)
        if walk.refusal is not None:
            raise Refused(walk.refusal)
        cache = cache_of(compiler)
        entry = cache.find(walk, (outputs, *state()), outputs)
    except Refused as refusal:
        return by_torch(str(refusal))

    def finish(waiting: dict[tuple[int, int], Any], captured: dict[int, Any]) -> list[Any]:
        """The rest of the pass, by torch."""
        given: tuple = ()
        if waiting:
            given = walk.finish(tuple(waiting), tuple(waiting.values()), tuple(inputs), keep_graph, accumulate_grad)
        return [captured.get(place, given[place] if given else None) for place in range(outputs)]

    def again() -> tuple:
        return run_backward(
            compiler, engine, tensors, gradients, keep_graph, create_graph, inputs, allow_unreachable, accumulate_grad
        )

    departure = Departure(walk, entry.stops, finish) if entry.stops else None
    try:
        results = run(entry, walk, keep_graph, departure)
    except Left as left:
        results = left.results
        if left.learned:
            cache.forget(entry)
    except Foreseen as surprise:  # nothing has run, or nothing but functions in C++
        # Both hold frames of capture, which hold the surprise and what the pass holds.
        surprise.__traceback__ = surprise.__context__ = None
        if surprise.opaque and not entry.opaque:
            telling.opaque(str(surprise))
            cache.make_opaque(entry)
            return again()
        known = departure is None or surprise.pattern is None or not departure.learn(surprise.step, surprise.pattern)
        if not known or surprise.ran:
            cache.forget(entry)
        if known:
            return by_torch(str(surprise))
        return again()
    if not allow_unreachable:
        unused = [place for place, result in enumerate(results) if result is None]
        if unused:
            raise_unused(engine, unused[0])
    return tuple(results)


def raise_unused(engine: Any, place: int) -> None:
    """Torch's own error about an input without a gradient, from a pass that has it at the same place."""
    with torch.enable_grad():
        used, unused = torch.zeros((), requires_grad=True), torch.zeros((), requires_grad=True)
        root = used.clone()
    inputs = (*[used] * place, unused)
    engine.run_backward((root,), (torch.ones(()),), False, False, inputs, allow_unreachable=False)


def run(entry: Entry, walk: Any, keep_graph: bool, departure: Departure | None) -> Any:
    """Call the compiled graph inside a task of torch's engine: queued callbacks and the like are then torch's."""
    hooks = walk.hooks()
    if entry.opaque and departure is not None:
        departure.hooks = tuple(hooks)
    hooks[0] = departure
    bits = walk.size_bytes if entry.picks else b""
    sizes = [struct.unpack_from(kind, bits, 8 * place)[0] for place, kind in entry.picks]
    box = [walk.inputs(), sizes, hooks]
    del hooks
    if not keep_graph:
        # Only lent, where torch may have to do it after all.
        walk.release(entry.last_uses if entry.stops or not entry.ran else False)
    compiled = entry.compiled
    _nesting.depth += 1
    try:
        results = _native.run_in_engine(lambda: compiled(*emptied(box)), keep_graph)
    except (Foreseen, Unsupported):
        put_back(walk, keep_graph)
        raise
    except BaseException:
        let_go(walk, keep_graph)
        raise
    finally:
        _nesting.depth -= 1
    entry.ran = True
    let_go(walk, keep_graph)
    return results


def put_back(walk: Any, keep_graph: bool) -> None:
    """After an error before anything ran: what was lent is still there, in the frames that were left.

    Unless it is an error of another function, which a hook called: then it was in the middle of the pass.
    """
    if not keep_graph:
        try:
            walk.restore(0)
        except RuntimeError:
            let_go(walk, keep_graph)


def let_go(walk: Any, keep_graph: bool) -> None:
    """As after a pass of torch's engine."""
    if not keep_graph:
        walk.release()
        walk.release_rest()


def emptied(box: list[Any]) -> list[Any]:
    """The arguments, of which nothing here keeps hold."""
    arguments = list(box)
    box.clear()
    return arguments


def check_state(create_graph: bool) -> None:
    """Refuse what depends on more than the autograd graph."""
    if create_graph:
        raise Refused("create_graph=True")
    if torch.is_anomaly_enabled():
        raise Refused("anomaly mode")
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        raise Refused("a torch dispatch or function mode is active")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Refused("a transform of torch.func is active")
    if torch.is_inference_mode_enabled():
        raise Refused("inference mode")
    if _nesting.depth >= MOST_NESTED:
        raise Refused(f"more than {MOST_NESTED} passes inside one another")


def state() -> tuple:
    """What operations depend on besides their arguments."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
    )


def cache_of(compiler: Compiler) -> Cache:
    """The graphs of a compiler; those of compilers not used for long are forgotten."""
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
    """Forget all graphs, and what was learned."""
    with _lock:
        _caches.clear()
    predictions.forget()
    telling.forget()
