"""Why something was compiled again, as programs that look at ``guard_fail_fn`` know it: Kiln's words, and before them,
where there is one, the expression that torch's compiler would name."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import NamedTuple

# Kiln's words -> the ecosystem's. The first row that fits speaks.
WORDS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"^(\S+) and (\S+) are the same object now, and were two"), r"\1 is \2"),
    (re.compile(r"^(\S+) is (L\S+|G\S+) expected, another object seen"), r"\2 is \1"),
    (
        re.compile(r"^(\S+) requires_grad: (True|False) expected"),
        lambda found: f"tensor '{found[1]}' requires_grad mismatch. expected requires_grad={int(found[2] == 'True')}",
    ),
    (re.compile(r"^(\S*_hooks\S*) "), r"___check_obj_id(\1, …)"),
]


class GuardFail(NamedTuple):
    """What ``guard_fail_fn`` is called with: the reason, and the code that is compiled again."""

    reason: str
    orig_code: types.CodeType


def translated(reason: str) -> str:
    """The reason in the words of torch's compiler, then Kiln's own. To that one, closures are local variables too."""
    named = re.sub(r"closure ('\w+')", r"L[\1]", reason)
    named = re.sub(r"list\((\S+?)\.values\(\)\)\[(\d+)\]", r"\1[\2]", named)  # hooks, by their order
    for pattern, words in WORDS:
        found = pattern.match(named)
        if found:
            torch_words = words(found) if callable(words) else found.expand(words)
            return f"{torch_words}  ({reason})"
    return named
