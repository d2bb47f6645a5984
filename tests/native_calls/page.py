"""The page docs/natives.md: which builtins run on shadows, what they may do, and what capture's tables do with them."""

from __future__ import annotations

import collections
from pathlib import Path

from .entries import all_entries, treatment
from .traits import FAMILIES, GROUPS, family_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "natives.md"

HEAD = """# What runs natively

Written by `make natives` (CPython 3.11); a test in `tests/native_calls` checks that it is up to date.

While tracing, capture runs builtins on shadows (`capture.md`): lists with lazy elements, fake tensors, symbolic
numbers, proxies. This is safe only if a builtin does no more with its arguments than `builtin_tables.py` assumes. This
page lists every builtin that may run, in families that declare what they may do, and how capture treats it:

| word | meaning |
| --- | --- |
| rule | a rule in Python computes the result, and decides what native code sees |
| polyfill | interpreted in Python where an argument has special methods in Python |
| shallow | passes elements on: they may be lazy values and symbols. Arguments that it iterates over are realized |
| deep | everything in its arguments is realized first; symbols become concrete numbers |
| symbols | symbolic numbers stay symbolic |
| text | breaks the graph on tensors and objects: capture does not know their text |
| hashing | keys with `__hash__` or `__eq__` in Python are interpreted first, see `hashing.py` |
| mutating | changes its first argument |
| proxies | objects with special methods in Python become proxies, which call the interpreter |
| callback | takes a callable, which becomes a trampoline |

This holds for all of them:

- A special method in Python that native code reaches without a proxy does not run: the call is watched
  (`native_watch.py`) and the graph breaks.
- A lazy value that native code reads breaks the graph (`Lazy` in `values.py`).
- An error message with the name of a proxy class in it breaks the graph: eager has the real name.

`tests/sweep_natives.py` calls each entry with random arguments (subclasses of builtins that log their special methods,
objects with one special method, tensors, symbolic numbers, lazy values, iterators, callbacks, the same object twice,
containers that change while they are compared), in eager and compiled, and compares results, arguments, exceptions and
logs over three calls. The tests run a sample; tests of what it found are in
`tests/capture/shadows/test_native_special_methods.py`.

One difference from eager remains: an iterator over a dictionary, set or range that is alive at a graph break may come
back as an iterator of another class over the same elements.

## Families

Groups of special methods:

"""


def page() -> str:
    lines = [HEAD + "| group | special methods |", "| --- | --- |"]
    lines += [f"| {name} | {' '.join(f'`{method}`' for method in text.split())} |" for name, text in GROUPS.items()]
    members: dict[str, dict[str, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    entries = all_entries()
    for entry in entries:
        family = family_of(entry)
        members[family.name if family else "none"][", ".join(treatment(entry))].append(entry.name)
    lines += ["", f"{len(entries)} builtins in {len(FAMILIES)} families.", ""]
    lines += ["| family | builtins | asks arguments | asks elements | changes an argument | keeps arguments |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for family in FAMILIES:
        count = sum(map(len, members[family.name].values()))
        asked = "anything" if set(family.arguments.split()) == set(GROUPS) else family.arguments or "nothing"
        inside = "anything" if set(family.elements.split()) == set(GROUPS) else family.elements or "nothing"
        changes, keeps = ("yes" if flag else "no" for flag in (family.changes, family.keeps))
        lines.append(f"| {family.name} | {count} | {asked} | {inside} | {changes} | {keeps} |")
    lines += ["", "## Builtins"]
    for family in FAMILIES:
        lines += ["", f"### {family.name.capitalize()}", ""]
        for words, names in sorted(members[family.name].items()):
            lines.append(f"- {words}: {', '.join(f'`{name}`' for name in names)}")
    return "\n".join(lines) + "\n"
