"""Enumerations keep tables of their members in private attributes; what native code reads of them is guarded whole."""

from __future__ import annotations

import enum

from ..guards.source import Computed
from .trace import Trace

TABLES = ("_member_names_", "_member_map_", "_value2member_map_")


def watch_members(trace: Trace, cls: enum.EnumMeta) -> None:
    """Native code is going to look up members of a class, or to iterate over them."""
    trace.guards.add(Computed(SameMembers(cls), (trace.outside.pinned(cls),)), "constant", True)


class SameMembers:
    """Whether the tables of a class hold what they held; one for each class and state.

    A flag gets members for combinations of others when these are first asked for: more members are no change of it.
    """

    __name__ = "same_members"

    def __init__(self, cls: enum.EnumMeta):
        self.cls = cls
        self.tables = tables_of(cls)
        self.state = state_of(self.tables)
        self.grows = issubclass(cls, enum.Flag)

    def __call__(self, cls: enum.EnumMeta) -> bool:
        found = state_of(tables_of(cls))
        if self.grows:
            found = [now[: len(before)] for now, before in zip(found, self.state, strict=True)]
        return found == self.state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameMembers) and other.cls is self.cls and other.state == self.state

    def __hash__(self) -> int:
        return id(self.cls)


def tables_of(cls: enum.EnumMeta) -> list[object]:
    """Copies of the tables; anything else that stands in their place, itself."""
    found = [type.__getattribute__(cls, "__dict__").get(name) for name in TABLES]
    return [table.copy() if type(table) in (list, dict) else table for table in found]


def state_of(tables: list[object]) -> list[tuple[int, ...]]:
    """What tells tables apart: their keys and members, by identity (none of them is compared, or hashed)."""
    found = []
    for table in tables:
        parts = [table]
        if type(table) is dict:
            parts = [part for item in table.items() for part in item]
        elif type(table) is list:
            parts = table
        found.append((id(type(table)), *map(id, parts)))
    return found
