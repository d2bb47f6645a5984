"""Graphs for a GPU on a machine without one: functions traced on fake tensors that say they are on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kiln.loops import reference
from kiln.loops.steps import Call, Scheduled
from kiln.lower import ops  # noqa: F401  (fills the table of lowerings)
from kiln.lower.lowering import Lowering
from kiln.lower.schedule.scheduling import schedule
from kiln.platform.torch_fake import FakeTensorMode

CUDA = torch.device("cuda", 0)


def cuda_graph_of(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], stay: Sequence[int] = (), dynamic: bool = False
) -> torch.fx.GraphModule:
    """The graph of a function of tensors like these, on a GPU; those that ``stay`` are on the CPU."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if dynamic else None)
    fakes = []
    for place, given in enumerate(inputs):
        fake = mode.from_tensor(given, static_shapes=not dynamic)
        fakes.append(fake if place in stay else on_gpu(fake))

    def listed(*args: Any) -> list[Any]:
        found = function(*args)
        return list(found) if isinstance(found, (list, tuple)) else [found]

    with torch.no_grad(), mode:
        return make_fx(listed)(*fakes)


def cuda_scheduled_of(function: Callable[..., Any], inputs: Sequence[torch.Tensor], **how: Any) -> Scheduled:
    lowering = Lowering(cuda_graph_of(function, inputs, **how))
    assert lowering.device == CUDA
    return schedule(lowering.run(), "cuda")


def compile_for_gpu_reference(module: torch.fx.GraphModule, examples: Any = ()) -> Callable[..., Any]:
    """A compiler of graphs of CPU tensors: lowers and schedules them as for a GPU, and computes what that means."""
    scheduled, constants = scheduled_for_gpu(module)
    return lambda *inputs: reference.run(scheduled, [*inputs, *constants])


def scheduled_for_gpu(module: torch.fx.GraphModule) -> tuple[Scheduled, list[torch.Tensor]]:
    """The schedule for a GPU of a traced graph of CPU tensors, and the tensors it holds, which are its last inputs."""
    constants = constants_as_inputs(module)
    put_on_gpu(module)
    scheduled = schedule(Lowering(module).run(), "cuda")
    for step in scheduled.steps:
        if isinstance(step, Call) and "device" in step.kwargs:
            step.kwargs = {**step.kwargs, "device": torch.device("cpu")}
    return scheduled, constants


def put_on_gpu(module: torch.fx.GraphModule) -> None:
    """Has the values of a traced graph of CPU tensors say that they are on a CUDA device."""
    for node in module.graph.nodes:
        node.meta["val"] = pytree.tree_map_only(torch.Tensor, on_gpu, node.meta.get("val"))
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": CUDA}


def constants_as_inputs(module: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Makes the tensors that a graph holds, which are on the CPU, its last inputs."""
    constants = [node for node in module.graph.nodes if node.op == "get_attr"]
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    for node in constants:
        with module.graph.inserting_before(first):
            made = module.graph.placeholder(f"held_{node.name}")
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
    return [getattr(module, node.target) for node in constants]


def on_gpu(fake: Any) -> Any:
    with fake.fake_mode:
        memory = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=CUDA)
        return memory.as_strided(fake.shape, fake.stride(), fake.storage_offset())
