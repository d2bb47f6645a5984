"""Runs a program three times, in eager and compiled: as it is, with one thing changed, and with that undone."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kiln
from fuzz.oracle import TooSlow, time_limit
from kiln.testing.differential import _Settings, compare_outcomes
from kiln.testing.observe import Outcome, clean_process, numbered_from, observe_call, seed_everything

from .corpus import Program
from .sites import Site, sites_of

SECONDS_FOR_ONE = 40


class Unlike(Exception):
    """The two worlds of a program are not alike: a site of one is not in the other."""


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
    for site in chosen:
        note(site.label)
        try:
            with time_limit(SECONDS_FOR_ONE):
                found, seen = try_site(program, site.label)
        except Unlike as error:
            if not str(error).startswith("cannot be changed"):
                tally.failures.append(Failure(program.name, site.label, site.kind, [str(error)]))
            continue
        except (Exception, TooSlow) as error:
            found, seen = [f"{type(error).__name__}: {error}"], False
        tally.mutations += 1
        tally.seen += seen
        tally.kinds[site.kind] += 1
        if found:
            tally.failures.append(Failure(program.name, site.label, site.kind, found))
    return tally


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
    eager, sites = run(program, settings, None, compiled=False)
    seen, _ = run(program, settings, None, compiled=True)
    return sites, list(itertools.islice(compare_outcomes(eager, seen, settings), 4))


def try_site(program: Program, label: str) -> tuple[list[str], bool]:
    """What differs with one change, and whether eager's answer is another one at all."""
    settings = settings_of(program)
    eager, _ = run(program, settings, label, compiled=False)
    seen, _ = run(program, settings, label, compiled=True)
    differences = list(itertools.islice(compare_outcomes(eager, seen, settings), 4))
    return differences, shows(eager)


def shows(outcome: Outcome) -> bool:
    """Whether the changed call ended otherwise than the one before it."""
    from kiln.testing import same

    first, second = outcome.calls[0], outcome.calls[1]
    if (first.raised is None) != (second.raised is None):
        return True
    try:
        return not same(first.returned, second.returned, gradients=False)
    except Exception:
        return True


def run(program: Program, settings: _Settings, label: str | None, *, compiled: bool) -> tuple[Outcome, list[Site]]:
    """Call, change, call, undo, call, in a world of its own."""
    kiln.reset()
    with clean_process(), numbered_from(settings.first_hook):
        seed_everything(0)
        with program.world() as (world, final_globals):
            seed_everything(0)
            function = settings.compile_program(world.program, "eager", False) if compiled else world.program
            outcome = Outcome()

            def call() -> None:
                given = world.calls[0]
                outcome.calls.append(observe_call(function, given.args, given.kwargs, backward=settings.grads))

            call()
            sites = sites_of(world)
            undo = find_site(sites, label).apply if label is not None else (lambda: lambda: None)
            try:
                undo = undo()
            except Exception as error:
                raise Unlike(f"cannot be changed: {error}") from error
            try:
                call()
            finally:
                undo()
            call()
            outcome.arguments = [(given.args, given.kwargs) for given in world.calls]
            outcome.program = world.program
            outcome.globals = dict(final_globals())
            return outcome, sites


def find_site(sites: list[Site], label: str) -> Site:
    for site in sites:
        if site.label == label:
            return site
    raise Unlike(f"{label} is not there in both worlds")


def failure_signature(failure: Failure) -> str:
    from fuzz.oracle import signature_of

    return f"{failure.kind} | {signature_of(failure.differences[0])}"


def as_rows(tally: Tally) -> dict[str, Any]:
    """A tally as plain data, to be sent from a worker."""
    return {
        "program": tally.program,
        "skipped": tally.skipped,
        "mutations": tally.mutations,
        "seen": tally.seen,
        "kinds": dict(tally.kinds),
        "failures": [vars(failure) for failure in tally.failures],
    }
