"""What may run natively: the page is current, declarations hold, and calls do under Kiln what they do without."""

import sys

import pytest
import torch

from kiln.capture.shadows import builtin_tables

from .entries import all_entries, treatment
from .judging import Drawer, judge
from .observing import observe
from .page import PAGE, page
from .traits import FAMILIES, GROUPS, family_of

ENTRIES = all_entries()
CHUNKS = 8


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11) or not torch.__version__.startswith("2.13."),
    reason="the page lists what the builtins of CPython 3.11 and torch 2.13 have",
)
def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run `make natives`"


def test_each_builtin_has_a_family_and_each_family_builtins():
    assert [entry.name for entry in ENTRIES if family_of(entry) is None] == []
    used = {family_of(entry) for entry in ENTRIES}
    assert [family.name for family in FAMILIES if family not in used] == []


def test_every_way_into_the_tables_is_listed():
    listed = {id(entry.function) for entry in ENTRIES}
    functions = {*builtin_tables.SAFE_FUNCTIONS, *builtin_tables.SHALLOW_FUNCTIONS, *builtin_tables.TEXT_FUNCTIONS}
    missing = [f for f in functions if id(f) not in listed and builtin_tables.is_allowed(f)]
    assert [f for f in missing if not is_listed_by_equality(f)] == []


def is_listed_by_equality(function):
    """Class methods are made anew each time that they are read."""
    return any(entry.function == function for entry in ENTRIES)


def test_what_passes_elements_on_asks_them_nothing():
    """Elements of shallow builtins may be lazy: they are asked only where they are looked at first."""
    looked_at_first = {"hashing", "callback", "rule"}
    for entry in ENTRIES:
        words = set(treatment(entry))
        if "shallow" not in words or words & looked_at_first:
            continue
        family = family_of(entry)
        assert not family.elements or family.name in PASSING, entry


# Families with builtins that ask elements, and others that do not.
PASSING = ("iterators", "iterators, moving", "operators as functions", "state for copies", "dictionaries", "callables")


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_builtins_do_no_more_than_their_family_declares(chunk):
    wrong = []
    for entry in ENTRIES[chunk::CHUNKS]:
        family = family_of(entry)
        seen = observe(entry, Drawer(entry.name, changing=False), 8)
        more = sorted(seen.argument_methods - family.methods(family.arguments))
        inside = sorted(seen.element_methods - family.methods(family.elements) - NESTED)
        if more or inside or (seen.mutates and not family.changes) or (seen.keeps and not family.keeps):
            wrong.append((entry.name, family.name, more, inside, seen.mutates, seen.keeps))
    assert wrong == []


NESTED = frozenset(GROUPS["iterate"].split())  # an element that is a container is an argument to what goes through it


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_sample_of_calls_does_under_kiln_what_it_does_without(chunk):
    """`tests/sweep_natives.py` makes as many calls as one likes."""
    wrong = []
    for entry in ENTRIES[chunk :: CHUNKS * 2]:
        for call in Drawer(entry.name, tried=20).calls(entry, 1):
            found = judge(call)
            if found:
                wrong.append((call.describe(), found))
    assert wrong == []
