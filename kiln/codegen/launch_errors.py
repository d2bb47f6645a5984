"""What is said when a kernel fails on a GPU: the operators that it came from, their lines, and how to do without it.

The operators are found when an error is raised, from the names of nodes in the program's description
(``data["origins"]``) and the graph. Explaining never raises.
"""

from __future__ import annotations

import torch.fx

from ..exc import DriverError
from ..report.node_places import line_of
from ..target.native_program import Data, Launcher
from ..target.target import Target

MOST_OPERATORS = 12  # that a message shows


def launcher_of(target: Target, data: Data, module: torch.fx.GraphModule) -> Launcher | None:
    """What the program of a graph launches kernels with; its errors are explained."""
    launcher = target.launcher()
    return launcher and launcher._replace(failed=LaunchErrors(launcher, data, module))


class LaunchErrors:
    """Takes the name of a kernel, an error of the driver and the device (`Launcher.failed`)."""

    def __init__(self, launcher: Launcher, data: Data, module: torch.fx.GraphModule) -> None:
        self.failed, self.module = launcher.failed, module
        self.origins = dict(zip(data.get("names", ()), data.get("origins", ()), strict=False))

    def __call__(self, kernel: str, error: int, device: int) -> None:
        try:
            self.failed(kernel, error, device)  # returns where the launch is to be tried again
        except DriverError as raised:
            raise DriverError(f"{raised.message}{self.explanation(kernel)}", raised.number) from None

    def explanation(self, kernel: str) -> str:
        try:
            return explanation(kernel, self.nodes_of(kernel))
        except Exception:
            return ""

    def nodes_of(self, kernel: str) -> list[torch.fx.Node]:
        wanted = set(self.origins.get(kernel, ()))
        return [node for node in self.module.graph.nodes if node.name in wanted]


def explanation(kernel: str, nodes: list[torch.fx.Node]) -> str:
    """Which operators a kernel came from, and what to do."""
    from .disabled_kernels import operator_names

    lines = []
    for node in nodes[:MOST_OPERATORS]:
        place = line_of(node)
        lines.append(f"  {node.target}" + (f"   {place}" if place is not None else ""))
    if len(nodes) > MOST_OPERATORS:
        lines.append(f"  and {len(nodes) - MOST_OPERATORS} more")
    names = operator_names(nodes) or [kernel]
    found = [f"The kernel {kernel} computes:", *lines] if lines else []
    found += [
        f"To have ATen run these operators: kiln.compile(…, options={{'disable_kernels': {names}}}), or",
        f"KILN_DISABLE_KERNELS={','.join(names)} in the environment, which is kiln.config.disable_kernels.",
    ]
    return ".\n" + "\n".join(found)
