"""Names of kernels: what they compute, in the words of the operators that they came from.

A name is ``kiln_<operators>_<number>``: letters, digits and underscores, at most `MOST_CHARACTERS`. It depends on the
graph alone, so the same graph gives the same names. Profilers, logs and errors show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MOST_CHARACTERS = 60
PREFIX = "kiln"

# Operators that say little of what a kernel does. Where a name is too long, or others say more, they are left out.
MOVEMENT = frozenset(
    "view reshape expand permute transpose t unsqueeze squeeze slice select split clone alias detach getitem "
    "as_strided to_copy unsafe_view lift_fresh_copy contiguous cat stack constant_pad_nd copy empty full zeros ones "
    "scalar_tensor convert_element_type zeros_like ones_like empty_like full_like arange".split()
)
ARITHMETIC = frozenset("add sub mul div neg where eq ne lt le gt ge rsub bitwise_and bitwise_not square".split())


def kernel_name(nodes: Iterable[Any], number: int) -> str:
    """The name of the kernel that computes these nodes of a graph, the ``number``-th of its program."""
    words = list(dict.fromkeys(word for node in nodes if (word := word_of(node))))
    room = MOST_CHARACTERS - len(f"{PREFIX}__{number}")
    for unimportant in (MOVEMENT, ARITHMETIC):
        telling = [word for word in words if word not in unimportant]
        if telling and (unimportant is MOVEMENT or not fits(words, room)):
            words = telling
    while len(words) > 1 and not fits(words, room):
        del words[len(words) // 2]  # what comes first and last says most
    text = "_".join(words)[:room].rstrip("_")
    return "_".join(part for part in (PREFIX, text, str(number)) if part)


def fits(words: list[str], room: int) -> bool:
    return len("_".join(words)) <= room


def word_of(node: Any) -> str:
    """What a node's operator is called: "gelu_backward" for aten.gelu_backward.default; "" for what is no operator."""
    if getattr(node, "op", "call_function") != "call_function":
        return ""
    target = getattr(node, "target", node)
    name = str(getattr(target, "__name__", target)).split(".")[0]  # an overload is called "add.Tensor"
    return re.sub(r"\W+", "_", name).strip("_")
