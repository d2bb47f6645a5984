"""Operators that the user wants ATen to run: ``kiln.config.disable_kernels``, ``options={"disable_kernels": […]}``.

Each entry names an operator ("gelu", "aten.gelu", "aten.gelu.default", "aten::gelu"), or a kernel as profilers and
errors show it ("kiln_gelu_sum_3"), then all operators that it came from. ``*`` stands for any letters; ``*`` alone
disables all kernels.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection

import torch.fx

from ..loops.steps import Launch, Scheduled
from ..lower.schedule.kernel_names import PREFIX
from ..platform.torch_operators import OpOverload

REASON = "kernels for it are disabled (disable_kernels)"


def disabled_nodes(module: torch.fx.GraphModule, disabled: Collection[str]) -> dict[str, str]:
    """The nodes of a graph whose operators are disabled, with the reason."""
    if not disabled:
        return {}
    return {node.name: REASON for node in module.graph.nodes if is_disabled(node.target, disabled)}


def nodes_of_disabled_kernels(scheduled: Scheduled, disabled: Collection[str]) -> dict[str, str]:
    """The nodes that kernels which are disabled by their own names came from."""
    names = [name for name in disabled if name.startswith(f"{PREFIX}_")]
    launches = [step for step in scheduled.steps if isinstance(step, Launch)] if names else []
    found = [launch for launch in launches if any(fnmatch.fnmatchcase(launch.kernel.name, name) for name in names)]
    return {node.name: REASON for launch in found for node in launch.origins if hasattr(node, "name")}


def is_disabled(target: object, disabled: Collection[str]) -> bool:
    if not isinstance(target, OpOverload):
        return False
    namespace, _, rest = str(target).partition(".")  # aten.add.Tensor
    forms = (f"{namespace}.{rest}", f"{namespace}.{rest.rpartition('.')[0]}", rest, rest.rpartition(".")[0])
    return any(fnmatch.fnmatchcase(form, name.replace("::", ".")) for name in disabled for form in forms)


def operator_names(nodes: Collection[torch.fx.Node]) -> list[str]:
    """What to write into ``disable_kernels`` for these nodes."""
    targets = [str(node.target) for node in nodes if isinstance(node.target, OpOverload)]
    return list(dict.fromkeys(target.rpartition(".")[0] for target in targets))
