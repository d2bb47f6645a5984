"""Runs a program three times, in eager and compiled: as it is, with one thing changed, and with that undone."""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import random
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import kiln
from kiln.testing import same
from kiln.testing.differential import _Settings, compare_outcomes
from kiln.testing.observe import CallOutcome, Outcome, clean_process, numbered_from, observe_call, seed_everything

from .corpus import Program
from .sites import Site, sites_of

SECONDS_FOR_ONE = 60  # of processor time: the machine may be busy with other things
SECONDS_FOR_EAGER = 10
ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")  # in the text of a function, which differs from world to world
BATCH = 6  # changes in one world


class TooSlow(BaseException):
    """A run did not end in time. Not an Exception, so that no handler of the program or of Kiln swallows it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` when a block uses more processor time."""

    def stop(number: int, frame: object) -> None:
        raise TooSlow(f"still running after {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    left, _ = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, left)
        signal.signal(signal.SIGPROF, before)


class Unlike(Exception):
    """A change that cannot be made in both worlds of a program, or after which eager does not come to an end."""


@dataclass
class Failure:
    """A change after which the compiled program does something else than eager."""

    program: str
    site: str
    kind: str
    differences: list[str]


@dataclass
class Tally:
    """What came of the changes of one program."""

    program: str
    skipped: str = ""
    mutations: int = 0
    unlike: int = 0  # changes that could not be made in both worlds
    seen: int = 0  # of which eager's answer changed
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[Failure] = field(default_factory=list)


def mutate_program(
    program: Program, count: int, seed: int, only: str | None = None, note: Callable[[str], None] = lambda label: None
) -> Tally:
    """Make `count` changes of a program, one at a time, spread over the kinds of changes."""
    tally = Tally(program.name)
    try:
        with time_limit(SECONDS_FOR_ONE):
            note("no change")
            sites, differences = baseline(program)
    except (Exception, TooSlow) as error:
        tally.skipped = f"{type(error).__name__}: {error}"[:200]
        return tally
    if differences:
        tally.skipped = "differs without any change: " + "; ".join(differences)[:300]
        return tally
    if only is not None:
        chosen = [site for site in sites if only in site.label]
    else:
        chosen = sample(sites, count, random.Random(f"{seed}:{program.name}"))
    for start in range(0, len(chosen), BATCH):
        try_batch(program, chosen[start : start + BATCH], tally, note)
    return tally


def try_batch(program: Program, sites: list[Site], tally: Tally, note: Callable[[str], None]) -> None:
    """Make some changes in turn, in one world; where something differs, each of them in a world of its own."""
    note("; ".join(site.label for site in sites))
    try:
        found, seen, made = try_sites(program, [site.label for site in sites])
    except Unlike:
        tally.unlike += len(sites) == 1
        found, seen, made = ["unlike"] if len(sites) > 1 else [], 0, {}
    except (Exception, TooSlow) as error:
        found, seen, made = [f"{type(error).__name__}: {error}"], 0, {site.label: True for site in sites}
    if found and len(sites) > 1:
        for site in sites:
            try_batch(program, [site], tally, note)
        return
    tally.seen += seen
    for site in sites:
        if made.get(site.label):
            tally.mutations += 1
            tally.kinds[site.kind] += 1
    if found:
        tally.failures.append(Failure(program.name, sites[0].label, sites[0].kind, found))


def sample_count(name: str) -> int:
    """How many changes the tests make of a program: networks take longer."""
    return 12 if "network" in name else 16


def sample(sites: list[Site], count: int, chance: random.Random) -> list[Site]:
    """So many sites, each kind of change in turn."""
    by_kind: dict[str, list[Site]] = collections.defaultdict(list)
    for site in sites:
        by_kind[site.kind].append(site)
    groups = list(by_kind.values())
    for group in groups:
        chance.shuffle(group)
    chance.shuffle(groups)
    turns = itertools.zip_longest(*groups)
    return [site for turn in turns for site in turn if site is not None][:count]


def settings_of(program: Program) -> _Settings:
    expect = program.expect
    return _Settings(
        backend="eager",
        fullgraph=False,
        dynamic=expect.get("dynamic"),
        options=None,
        grads=expect.get("grads", True),
        seed=0,
        rtol=expect.get("rtol") or 0.0,
        atol=expect.get("atol") or 0.0,
        strides=expect.get("strides", True),
        versions=expect.get("versions", True),
        tracebacks=False,
        compare_warnings=expect.get("compare_warnings", True),
        compile=None,
    )


def baseline(program: Program) -> tuple[list[Site], list[str]]:
    """The sites of a program, and what differs without any change."""
    settings = settings_of(program)
    eager = run(program, settings, [""], compiled=False)
    seen = run(program, settings, [""], compiled=True)
    return eager.sites, list(itertools.islice(compare_outcomes(eager.outcome, seen.outcome, settings), 4))


def try_sites(program: Program, labels: list[str]) -> tuple[list[str], int, dict[str, bool]]:
    """What differs with these changes, how many of them eager's answer shows, and which could be made."""
    settings = settings_of(program)
    try:
        with time_limit(SECONDS_FOR_EAGER):
            eager = run(program, settings, labels, compiled=False)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also what no handler of the program's catches any more: asyncio.CancelledError
        raise Unlike("eager itself fails outside of the program's calls") from error
    with time_limit(SECONDS_FOR_ONE):
        seen = run(program, settings, labels, compiled=True)
    if eager.made != seen.made:
        raise Unlike("a change could be made in only one of the worlds")
    found = differences(eager, seen, settings)
    if found and program.otherwise is not None:
        with program.otherwise():
            found = differences(run(program, settings, labels, compiled=False), seen, settings)
    if found and len(labels) == 1:
        found = without_chance(found, eager, run(program, settings, labels, compiled=False), settings)
    return found, eager.shown, eager.made


def differences(eager: Run, seen: Run, settings: _Settings) -> list[str]:
    """The first few things in which two runs differ."""
    texts = (text for text in compare_outcomes(eager.outcome, seen.outcome, settings) if not ADDRESS.search(text))
    return list(itertools.islice(texts, 4))


def without_chance(found: list[str], eager: Run, again: Run, settings: _Settings) -> list[str]:
    """The differences but for what differs between two runs of eager, too: hashes that are addresses."""
    places = [text.rpartition(" expected, ")[0] for text in compare_outcomes(eager.outcome, again.outcome, settings)]
    varying = {place.rpartition(": ")[0] for place in places} - {""}
    return [text for text in found if text.rpartition(" expected, ")[0].rpartition(": ")[0] not in varying]


def shows(first: CallOutcome, second: CallOutcome) -> bool:
    """Whether the changed call ended otherwise than the one before it."""
    if (first.raised is None) != (second.raised is None):
        return True
    try:
        return not same(first.returned, second.returned, gradients=False)
    except Exception:
        return True


@dataclass
class Run:
    """What happened in one world: the calls, the sites found, which changes could be made, how many of them showed."""

    outcome: Outcome = field(default_factory=Outcome)
    sites: list[Site] = field(default_factory=list)
    made: dict[str, bool] = field(default_factory=dict)
    shown: int = 0


def run(program: Program, settings: _Settings, labels: list[str], *, compiled: bool) -> Run:
    """Call; then for each label change, call, undo, call; in a world of its own."""
    kiln.reset()
    gc.collect()  # what an earlier world left may have finalizers, which this one would see
    done = Run()
    with clean_process(), numbered_from(settings.first_hook), kiln.config.patch(recompile_limit=100):
        seed_everything(0)
        with program.world() as (world, final_globals):
            seed_everything(0)
            function = settings.compile_program(world.program, "eager", False) if compiled else world.program
            calls = done.outcome.calls

            def call() -> None:
                given = world.calls[0]
                calls.append(observe_call(function, given.args, given.kwargs, backward=settings.grads))
                cut_native_stack(calls[-1].raised)

            call()
            done.sites = sites_of(world)
            for label in labels:
                apply = find_site(done.sites, label).apply if label else no_change
                try:
                    undo = apply()
                except Exception:  # a read-only place, or a value that a class does not take
                    done.made[label] = False
                    continue
                done.made[label] = True
                try:
                    call()
                finally:
                    undo()
                done.shown += not compiled and shows(*calls[-2:])
                call()
            done.outcome.arguments = [(given.args, given.kwargs) for given in world.calls]
            done.outcome.program = world.program
            done.outcome.globals = dict(final_globals())
            return done


def cut_native_stack(error: BaseException | None) -> None:
    """Some messages of torch end in the frames of native code, among which Kiln's are."""
    if error is not None and error.args and type(error.args[0]) is str:
        error.args = (error.args[0].partition("\nException raised from")[0], *error.args[1:])


def no_change() -> Callable[[], None]:
    return lambda: None


def find_site(sites: list[Site], label: str) -> Site:
    for site in sites:
        if site.label == label:
            return site
    raise Unlike(f"{label} is not there in both worlds")


def failure_signature(failure: Failure) -> str:
    from tests.fuzz.oracle import signature_of

    return f"{failure.kind} | {signature_of(failure.differences[0])}"


def as_rows(tally: Tally) -> dict[str, Any]:
    """A tally as plain data, to be sent from a worker."""
    return {
        "program": tally.program,
        "skipped": tally.skipped,
        "mutations": tally.mutations,
        "seen": tally.seen,
        "unlike": tally.unlike,
        "kinds": dict(tally.kinds),
        "failures": [vars(failure) for failure in tally.failures],
    }
