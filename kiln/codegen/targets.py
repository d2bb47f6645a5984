"""Which target a graph is compiled for."""

from __future__ import annotations

import functools

import torch
import torch.fx

from ..program.graph_device import device_of_graph
from ..target.cpu.cpu_target import CPU
from ..target.target import Target


def target_of(module: torch.fx.GraphModule) -> Target:
    device = device_of_graph(module)
    return CPU if device.type == "cpu" else cuda_target(device)


@functools.cache
def cuda_target(device: torch.device) -> Target:
    from ..target.cuda.cuda_target import CudaTarget  # not imported where all graphs are for the CPU

    return CudaTarget(device)
