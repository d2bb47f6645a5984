"""Graphs that are quick to write: fx's own, but for a look at every argument of every node."""

from __future__ import annotations

from typing import Any

import torch.fx


class Graph(torch.fx.Graph):
    """A graph whose writers turn symbolic numbers into nodes themselves.

    torch (2.13) goes through the arguments of each new node in search of such numbers, to warn of them, which takes
    twice as long as all else. It does not where arguments are given afterwards.
    """

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> torch.fx.Node:
        node = super().create_node(op, target, (), {}, name, type_expr)
        if args:
            assign(node, "args", args)
        if kwargs:
            assign(node, "kwargs", kwargs)
        return node


assign = object.__setattr__  # a node's own looks whether its operator changes
