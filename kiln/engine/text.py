"""Graphs of backward passes as Python: a comment names the node of autograd's graph that the lines below belong to."""

from __future__ import annotations

from collections.abc import Callable

import torch.fx

COUNTER = "# COUNTER: "  # fx marks so the lines of each node, by its number


def comment(graph: torch.fx.Graph) -> None:
    """Have the graph's code tell the labels of its nodes."""

    def make(current: Callable[[list[str]], list[str]] | None) -> Callable[[list[str]], list[str]]:
        return lambda body: commented(graph, current(body) if current is not None else body)

    graph.on_generate_code(make)


def commented(graph: torch.fx.Graph, body: list[str]) -> list[str]:
    labels = [node.meta.get("label", "") for node in graph.nodes]
    lines: list[str] = []
    told = ""
    for line in body:
        if line.startswith(COUNTER):
            label = labels[int(line[len(COUNTER) :])]
            if label and label != told:
                lines.append(f"# {label}\n")
                told = label
        lines.append(line)
    return lines
