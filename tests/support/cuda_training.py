"""The forward and backward graphs of a training step on a GPU, and their kernels, on a machine without one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from kiln.aot.compilation import Compilation, Compilers
from kiln.aot.partition.partitioners import min_cut_partition
from kiln.codegen import pipeline
from kiln.codegen.graph_compiler import prepare_joint
from kiln.codegen.inspection import Generated
from kiln.platform.torch_fake import FakeTensorMode
from kiln.target.cuda.cuda_target import CudaTarget
from tests.support.cuda_programs import CUDA

aten = torch.ops.aten


class TrainingGraphs:
    """A module's loss and the gradients of its parameters: the joint graph cut in two.

    Autograd needs the device to be there, so the step is traced on the CPU with the operators that a GPU would run, and
    its values are then said to be on the GPU.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule

    def __init__(self, module: torch.nn.Module, batch: Sequence[torch.Tensor]) -> None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        names = [name for name, _ in module.named_parameters()] + [name for name, _ in module.named_buffers()]
        state = [*module.parameters(), *module.buffers()]

        def run(*flat: torch.Tensor) -> list[Any]:
            given = dict(zip(names, flat, strict=False))
            with torch.autocast("cpu", torch.bfloat16), operators_of_gpus():
                found = torch.func.functional_call(module, given, flat[len(names) :])
            return list(found) if isinstance(found, (list, tuple)) else [found]

        def partition(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
            self.forward, self.backward = min_cut_partition(joint, *args, **kwargs)
            return self.forward, self.backward

        def prepare(joint: torch.fx.GraphModule) -> None:
            move_to_gpu(joint, mode)
            prepare_joint(joint)

        def no_compiler(module: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
            return module.forward

        fakes = [fake_of(mode, one) for one in (*state, *batch)]
        compilers = Compilers(no_compiler, no_compiler, no_compiler, partition=partition, prepare=prepare)
        Compilation(run, fakes, compilers)


def fake_of(mode: FakeTensorMode, given: torch.Tensor) -> torch.Tensor:
    with mode:
        made = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype)
    if isinstance(given, torch.nn.Parameter):
        return torch.nn.Parameter(made, given.requires_grad)
    return made.requires_grad_(given.requires_grad)


def move_to_gpu(module: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    """All values of a graph are on the GPU."""

    def moved(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)([moved(part) for part in value])
        if not isinstance(value, torch.Tensor):
            return value
        with mode, torch.no_grad():
            size = value.untyped_storage().nbytes() // value.element_size()
            memory = torch.empty(size, dtype=value.dtype, device=CUDA)
            return memory.as_strided(value.shape, value.stride(), value.storage_offset())

    for node in module.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = moved(node.meta["val"])
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": CUDA}


@contextlib.contextmanager
def operators_of_gpus() -> Iterator[None]:
    """Attention is cuDNN's, as on an H200; normalizations and losses are in float32, as autocast has them on GPUs."""
    names = ("scaled_dot_product_attention", "layer_norm", "cross_entropy")
    originals = {name: getattr(F, name) for name in names}

    def attention(
        q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False
    ) -> Any:
        q, k, v = (one.to(torch.bfloat16) for one in (q, k, v))
        call = aten._scaled_dot_product_cudnn_attention.default
        return call(q, k, v, attn_mask, True, dropout_p, is_causal, False)[0]

    def in_float32(name: str) -> Callable[..., Any]:
        return lambda given, *args, **kwargs: originals[name](given.float(), *args, **kwargs)

    replaced = {"scaled_dot_product_attention": attention}
    try:
        for name in names:
            setattr(F, name, replaced.get(name) or in_float32(name))
        yield
    finally:
        for name, original in originals.items():
            setattr(F, name, original)


def generated_of(module: torch.fx.GraphModule) -> Generated:
    """The kernels and calls of a graph on the GPU, with the memory that each kernel reads and writes."""
    target = CudaTarget(CUDA)
    _, lowered, scheduled = pipeline.lower_for(module, target, [])
    return Generated.of(module, lowered, scheduled, target, {}, "")
