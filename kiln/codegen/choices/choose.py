"""Chooses among alternatives: by the rule's own preference, or by times on this GPU, which are kept on disk.

A time is measured once for each form of the inputs, with tensors of the same shapes, strides and types. The key of an
entry on disk has all that times depend on: GPU, driver, libraries, torch's settings of them, the alternatives, and the
inputs. Where nothing can be measured (no memory, a graph is being captured) the preferred alternative is taken and not
remembered.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from ...program import disk_cache
from ...report import events
from .alternatives import Alternative, Site

FORMAT = "choice 1"
GAIN = 0.03  # the part of the time that another alternative has to save

Measure = Callable[[Site], "list[float] | None"]


def preferred(site: Site) -> int:
    return site.preferred


class Measured:
    """Chooses by times. ``identity`` has what they depend on besides the site; ``measure`` gives seconds for each
    alternative, or None."""

    def __init__(self, identity: tuple[str, ...], measure: Measure) -> None:
        self.identity, self.measure = identity, measure
        self.known: dict[str, int] = {}

    def __call__(self, site: Site) -> int:
        text = site.text
        if text not in self.known:
            found = self.recall(site, text)
            if found is None:
                times = self.measure(site)
                if times is None:
                    return site.preferred
                found = fastest(times, site.preferred)
                self.remember(site, text, found, times)
            self.known[text] = found
        return self.known[text]

    def key(self, text: str) -> str:
        return disk_cache.key_of(FORMAT, *self.identity, text)

    def recall(self, site: Site, text: str) -> int | None:
        parts = disk_cache.read(self.key(text)) if disk_cache.is_on() else None
        try:
            name = json.loads(parts["choice"])["chosen"] if parts is not None else None
        except (KeyError, ValueError, TypeError):
            return None
        return place_of(name, site.alternatives)

    def remember(self, site: Site, text: str, chosen: int, times: list[float]) -> None:
        names = [one.name for one in site.alternatives]
        events.count("library calls measured", f"{text}: {names[chosen]}")
        if disk_cache.is_on():
            data = {"chosen": names[chosen], "times": dict(zip(names, times, strict=True))}
            disk_cache.write(self.key(text), {"choice": json.dumps(data).encode()})


def place_of(name: object, alternatives: tuple[Alternative, ...]) -> int | None:
    return next((place for place, one in enumerate(alternatives) if one.name == name), None)


def fastest(times: list[float], preferred: int) -> int:
    """The place of the shortest time, unless it saves too little to tell it from chance."""
    best = min(range(len(times)), key=times.__getitem__)
    return best if times[best] < (1 - GAIN) * times[preferred] else preferred


def measured_on(device: torch.device) -> Measured:
    """The chooser for a GPU; one for the process."""
    from .measuring import identity_of, seconds_of

    if device not in _CHOOSERS:
        _CHOOSERS[device] = Measured((), seconds_of)
    found = _CHOOSERS[device]
    found.identity = identity_of(device)  # settings may have changed
    return found


_CHOOSERS: dict[torch.device, Measured] = {}
