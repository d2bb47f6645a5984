"""Graphs for a GPU on a machine without one: functions traced on fake tensors that say they are on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kiln.loops.steps import Scheduled
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
        with mode:
            strides, dtype = fake.stride(), fake.dtype
            on_gpu = torch.empty_strided(fake.shape, strides, dtype=dtype, device=CUDA)
        fakes.append(fake if place in stay else on_gpu)

    def listed(*args: Any) -> list[Any]:
        found = function(*args)
        return list(found) if isinstance(found, (list, tuple)) else [found]

    with torch.no_grad(), mode:
        return make_fx(listed)(*fakes)


def cuda_scheduled_of(function: Callable[..., Any], inputs: Sequence[torch.Tensor], **how: Any) -> Scheduled:
    lowering = Lowering(cuda_graph_of(function, inputs, **how))
    assert lowering.device == CUDA
    return schedule(lowering.run(), "cuda")
