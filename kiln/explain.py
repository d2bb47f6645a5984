"""``kiln.explain`` and ``kiln.export``: what capture makes of a call, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from . import exc


@dataclass
class Explanation:
    """What was captured, where it broke and why, what is guarded, how long it took. ``str()`` tells it in words."""

    result: Any
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    breaks: list[Any] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)
    guards: list[tuple[str, list[str]]] = field(default_factory=list)
    code: list[tuple[str, str, str]] = field(default_factory=list)
    times: list[tuple[str, float]] = field(default_factory=list)

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def op_count(self) -> int:
        return sum(count_operations(graph) for graph in self.graphs)

    @property
    def break_count(self) -> int:
        return len(self.breaks)

    def __str__(self) -> str:
        lines = [f"{self.graph_count} graphs, {self.op_count} operations, {self.break_count} graph breaks"]
        for number, found in enumerate(self.breaks, 1):
            lines.append(f"\nBreak {number}: {found}")
            if found.hint:
                lines.append(f"  What to do: {found.hint}")
        for where, reason in self.skips:
            lines.append(f"\nNot compiled: {where}: {reason}")
        for number, graph in enumerate(self.graphs, 1):
            lines.append(f"\nGraph {number}:\n{graph.print_readable(print_output=False)}")
        for where, guards in self.guards:
            lines.append(f"\nGuards of {where}:")
            lines += [f"  {guard}" for guard in guards]
        for where, seconds in self.times:
            lines.append(f"\nCompiling {where} took {seconds * 1e3:.1f} ms")
        return "\n".join(lines)


def count_operations(module: torch.fx.GraphModule) -> int:
    return sum(node.op in ("call_function", "call_method", "call_module") for node in module.graph.nodes)


def explain(function: Callable, *, dynamic: bool | None = None) -> Callable[..., Explanation]:
    """``kiln.explain(f)(*args)``: run the call compiled, and tell what the compiler did for it."""
    from .api import compile
    from .report import events

    compiled = compile(function, backend=fresh_eager(), dynamic=dynamic)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        with events.listen() as heard:
            result = compiled(*args, **kwargs)
        return Explanation(result, heard.graphs, heard.breaks, heard.skips, heard.guards, heard.code, heard.times)

    return run


def fresh_eager() -> Callable:
    """A backend of its own, so that nothing compiled before is reused."""
    return lambda graph_module, example_inputs: graph_module.forward


@dataclass
class Exported:
    """A whole function as one graph, with the assumptions under which it holds."""

    graph_module: torch.fx.GraphModule
    guards: list[str]

    def __iter__(self):
        return iter((self.graph_module, self.guards))


def export(function: Callable, *, dynamic: bool | None = None) -> Callable[..., Exported]:
    """``kiln.export(f)(*args)``: the graph module of the whole call, and its guards. Raises where it would break."""
    from .api import compile
    from .report import events

    compiled = compile(function, backend=fresh_eager(), dynamic=dynamic, fullgraph=True)

    def run(*args: Any, **kwargs: Any) -> Exported:
        with events.listen() as heard:
            compiled(*args, **kwargs)
        if len(heard.graphs) != 1:
            found = len(heard.graphs)
            raise exc.UserError(f"kiln.export needs a call that does tensor work, in one graph; {found} graphs found")
        return Exported(heard.graphs[0], heard.guards[-1][1])

    return run
