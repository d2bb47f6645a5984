"""Comments in the code of graphs: each names the node of autograd's graph that the lines below belong to."""

from __future__ import annotations

from collections.abc import Callable

import torch.fx

from .node_meta import NOWHERE, origin_of

COUNTER = "# COUNTER: "  # fx marks so the lines of each node, by its number


def add_comments(graph: torch.fx.Graph) -> None:
    """Have the graph's code contain the labels of its nodes."""

    def make(current: Callable[[list[str]], list[str]] | None) -> Callable[[list[str]], list[str]]:
        return lambda body: commented(graph, current(body) if current is not None else body)

    graph.on_generate_code(make)


def commented(graph: torch.fx.Graph, body: list[str]) -> list[str]:
    labels = [(origin_of(node) or NOWHERE).label for node in graph.nodes]
    lines: list[str] = []
    last = ""
    for line in body:
        if line.startswith(COUNTER):
            label = labels[int(line[len(COUNTER) :])]
            if label and label != last:
                lines.append(f"# {label}\n")
                last = label
        lines.append(line)
    return lines
