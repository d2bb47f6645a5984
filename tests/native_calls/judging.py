"""Calls of builtins with drawn arguments, in eager and compiled: the outcome must be the same."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import kiln
from kiln.capture.shadows.builtin_tables import ITERATOR_TYPES

from . import values
from .entries import Entry
from .outcomes import Outcome, Snapshot
from .values import LOG, Maker

CALL_SECONDS = 20
HASHED_BY_VALUE = (int, float, complex, str, bytes, tuple, frozenset, range, torch.device)


class Hang(BaseException):
    """A call that did not come to an end."""


@dataclass(frozen=True)
class Call:
    """One call: makers of the arguments (the same index twice: the same object), and how it is compiled."""

    entry: Entry
    makers: tuple[Maker, ...]
    order: tuple[int, ...]
    inside: bool
    dynamic: bool | None
    computes: bool  # the program has a tensor operation, too

    def describe(self) -> str:
        x = torch.ones(3)
        texts = [describe_made(maker, x) for maker in self.makers]
        arguments = ", ".join(texts[index] for index in self.order)
        how = ("made inside" if self.inside else "from outside") + (", dynamic" if self.dynamic else "")
        return f"{self.entry.name}({arguments}) [{how}]"


def describe_made(maker: Maker, x: torch.Tensor) -> str:
    try:
        return describe_value(maker(0, x))
    except Exception as error:
        return f"raises {type(error).__name__}"


def describe_value(value: object) -> str:
    cls = type(value)
    own = [name for name in vars(cls) if name.startswith("__") or name == "keys"]
    own = [name for name in own if name not in ("__module__", "__dict__", "__weakref__", "__doc__", "__hash__")]
    if cls.__name__.startswith("Spy") or cls.__name__ == "Only":
        return f"{cls.__name__}[{' '.join(own[:3])}{'…' if len(own) > 3 else ''}]"
    if cls in (list, tuple, set, frozenset, collections.deque):
        return f"{cls.__name__}({', '.join(describe_value(item) for item in value if item is not value)})"  # type: ignore[attr-defined]
    if cls is dict:
        return f"dict({', '.join(f'{describe_value(k)}: {describe_value(v)}' for k, v in value.items())})"  # type: ignore[attr-defined]
    return f"{cls.__name__}:{str(value)[:30]}" if cls in (int, float, str, bytes, bool) else cls.__name__


class Drawer:
    """Draws calls of an entry: many are tried in eager, and those are kept that do something of their own."""

    def __init__(self, seed: str, tried: int = 80, changing: bool = True):
        self.random = random.Random(seed)
        self.tried = tried
        self.owners = values.owners()
        self.spies = values.spy_makers("")
        self.elements = values.spy_makers("element ")
        plain = [values.NUMBERS, values.TEXTS, values.CONTAINERS, values.ITERATORS, values.CALLABLES, values.OTHERS]
        self.pools = [(3, pool) for pool in plain] + [(6, self.spies), (1, values.EXTRA)]
        self.changing = values.CHANGING if changing else []

    def value(self) -> Maker:
        if self.random.random() < 0.2:
            return values.holding(self.random.choice(self.elements), self.random.randrange(9))
        weights = [weight for weight, _ in self.pools]
        return self.random.choice(self.random.choices(self.pools, weights)[0][1])

    def own(self, owner: type) -> Maker:
        """An instance of the class whose method is called."""
        choice = self.random.random()
        if choice < 0.25:
            spies = [maker for maker in self.spies if issubclass(maker.args[0], owner)]  # type: ignore[attr-defined]
            if spies:
                return self.random.choice(spies)
        if choice < 0.5:
            kinds = {list: (0, 4), tuple: (1,), dict: (2, 7), collections.deque: (3,), set: (8,)}.get(owner)
            if kinds:
                return values.holding(self.random.choice(self.elements), self.random.choice(kinds))
        changing = [maker for maker in self.changing if owner in (list, collections.deque)]
        if changing and choice > 0.93:
            return self.random.choice(changing)
        made = self.owners.get(owner) or [
            maker for cls, all in self.owners.items() if issubclass(cls, owner) for maker in all
        ]
        return self.random.choice(made) if made else self.value()

    def arguments(self, entry: Entry) -> tuple[tuple[Maker, ...], tuple[int, ...]]:
        low, high = argument_counts(entry)
        count = self.random.randint(low, high)
        makers = [self.value() for _ in range(count)]
        bound = getattr(entry.function, "__self__", None) is not None
        if entry.is_method and makers and not bound and self.random.random() < 0.97:
            makers[0] = self.own(entry.owner)  # type: ignore[arg-type]
            if len(makers) > 1 and self.random.random() < 0.4:
                makers[1] = self.own(entry.owner)  # type: ignore[arg-type]
        order = list(range(count))
        if count > 1 and self.random.random() < 0.08:
            order[self.random.randrange(1, count)] = 0
        return tuple(makers), tuple(order)

    def calls(self, entry: Entry, count: int) -> list[Call]:
        if entry.name.endswith(".__hash__") and entry.owner not in HASHED_BY_VALUE:
            return []  # by address, which differs from run to run
        kept: dict[object, Call] = {}
        raising: dict[object, Call] = {}
        for _ in range(self.tried):
            draw = self.random.random
            inside = draw() < 0.4 and entry.owner not in ITERATOR_TYPES  # made again at a break, its class may differ
            call = Call(entry, *self.arguments(entry), inside, True if draw() < 0.2 else None, draw() < 0.2)
            outcome = run_eager(call)
            if outcome is None:
                continue
            into = kept if outcome.raised is None else raising
            into.setdefault((repr(outcome.raised)[:40], tuple(outcome.log)), call)
        chosen = self.random.sample(list(kept.values()), min(len(kept), count))
        rest = min(len(raising), max(count - len(chosen), count // 4))
        return chosen + self.random.sample(list(raising.values()), rest)


@functools.cache
def argument_counts(entry: Entry) -> tuple[int, int]:
    """How many arguments a builtin takes, as far as it says so."""
    try:
        parameters = inspect.signature(entry.function).parameters.values()  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return (1, 3)
    kinds = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    low = sum(p.default is p.empty for p in kinds)
    return low, min(len(kinds) + (2 if variadic else 0), low + 3)


# -- running --------------------------------------------------------------------------------------------------------


def inside_program(call: Call) -> Callable:
    function, makers, order, computes = call.entry.function, call.makers, call.order, call.computes

    def program(x, k):
        made = [maker(k, x) for maker in makers]
        values = [made[index] for index in order]
        return x + 1 if computes else None, function(*values), made

    return program


def outside_program(call: Call) -> Callable:
    function, computes = call.entry.function, call.computes

    def program(x, k, *values):
        return x + 1 if computes else None, function(*values)

    return program


def run(call: Call, program: Callable, k: int) -> Outcome:
    """The outcome of one call of a program, compiled or not."""
    x = torch.arange(3.0)
    LOG.clear()
    outcome, snapshot = Outcome(), Snapshot()
    made: list[object] = []
    try:
        if call.inside:
            _, result, made = program(x, k)
        else:
            made = [maker(k, x) for maker in call.makers]
            _, result = program(x, k, *[made[index] for index in call.order])
    except Exception as error:
        outcome.raised = (type(error).__name__, [snapshot.describe(arg) for arg in error.args])
        result = None
    outcome.log = list(LOG)
    outcome.arguments = [snapshot.describe(value) for value in made]
    outcome.result = snapshot.describe(result)
    snapshot.take_items()
    outcome.log += LOG[len(outcome.log) :]
    return outcome


def make_program(call: Call) -> Callable:
    return inside_program(call) if call.inside else outside_program(call)


def run_eager(call: Call) -> Outcome | None:
    """What eager does, or None where it does not do the same twice, or no end comes."""
    program = make_program(call)
    with quiet(), contextlib.suppress(Hang, Exception):  # a snapshot of an object that is broken may raise
        with time_limit(2):
            first, second = run(call, program, 0), run(call, program, 0)
        if not first.differences(second):
            return first
    return None


def judge(call: Call) -> list[str]:
    """Each difference between eager and compiled calls, in words."""
    program = make_program(call)
    with quiet():
        kiln.reset()
        compiled = kiln.compile(program, backend="eager", dynamic=call.dynamic)
        for number, k in enumerate((0, 0, 1)):
            expected = run(call, program, k)
            try:
                with time_limit(CALL_SECONDS):
                    seen = run(call, compiled, k)
            except Hang:
                return [f"call {number + 1}: no end"]
            except BaseException as error:
                return [f"call {number + 1}: {type(error).__name__}: {error}"]
            found = expected.differences(seen)
            if found:
                return [f"call {number + 1}: {text}" for text in found]
    return []


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
