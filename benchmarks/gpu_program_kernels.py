"""The kernels of a model's training step, each alone on a GPU: its time, the bytes it has to move, its bandwidth.

    python -m benchmarks.gpu_program_kernels gpt2 [--layers 3] [--only backward:kernel5] [--set THREADS=128]

The graphs are traced on fake tensors of the CPU, with the casts that autocast makes on GPUs, and lowered for a GPU. So
``--dry`` prints plans and floors on a machine without one. ``--set`` changes a number of `target.cuda.kernel_plan`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from benchmarks import gpu_models, gpu_vision_models
from kiln.aot.compilation import Compilation, Compilers
from kiln.aot.partition.partitioners import min_cut_partition
from kiln.codegen import pipeline
from kiln.codegen.graph_compiler import prepare_joint
from kiln.loops.sizes import hint
from kiln.loops.steps import Launch, Scheduled
from kiln.platform.torch_fake import FakeTensorMode
from kiln.target.cuda import driver, kernel_call, kernel_plan
from kiln.target.cuda.cuda_target import CudaTarget, actual_blocks
from kiln.target.cuda.kernel_plan import plan_of

CUDA = torch.device("cuda", 0)
BANDWIDTH = 4.1e12  # of an H200, in bytes a second: a copy
LOW = {F.linear, F.scaled_dot_product_attention, torch.matmul, torch.conv2d, F.conv2d, torch.bmm}
HIGH = {F.layer_norm, F.group_norm, F.cross_entropy, F.log_softmax, F.softmax, torch.rsqrt}


class Autocast(TorchFunctionMode):
    """The casts of ``torch.autocast("cuda", torch.bfloat16)``, for the functions that the models call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = torch.bfloat16 if func in LOW else torch.float32 if func in HIGH else None

        def cast(value: Any) -> Any:
            is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(dtype) if is_float and dtype is not None else value

        return func(*map(cast, args), **{key: cast(value) for key, value in (kwargs or {}).items()})


class Found(Exception):
    """The graphs are there: nothing is to be compiled."""


def model_of(name: str, layers: int) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A model of the benchmark and its batch; transformers of text have so many layers."""
    if name == "llama":
        return gpu_models.Llama(32000, 1024, layers, 16, 2816, 1024), gpu_models.tokens_of(32000, 8, 1024)
    if name == "bert":
        bert = gpu_models.Transformer(30528, 768, layers, 12, 512, 0.1, False)
        return bert, gpu_models.tokens_of(30528, 16, 512)
    if name == "gpt2":
        gpt2 = gpu_models.Transformer(50304, 768, layers, 12, 1024, 0.0, True)
        return gpt2, gpu_models.tokens_of(50304, 8, 1024)
    made: tuple[Any, tuple[torch.Tensor, ...]] = getattr(gpu_vision_models, name, getattr(gpu_models, name, None))()
    return made


def graphs_of(name: str, layers: int) -> dict[str, torch.fx.GraphModule]:
    """The forward and the backward graph of a model, as if on a GPU."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    found: dict[str, torch.fx.GraphModule] = {}
    model, given_batch = model_of(name, layers)
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    state = {key: mode.from_tensor(tensor, static_shapes=True) for key, tensor in held.items()}
    batch = [mode.from_tensor(tensor, static_shapes=True) for tensor in given_batch]

    def program(*flat: Any) -> list[Any]:
        with Autocast():
            given = dict(zip(state, flat, strict=False))
            return [torch.func.functional_call(model, given, tuple(flat[len(state) :]))]

    def partition(module: torch.fx.GraphModule, inputs: Any, **how: Any) -> Any:
        found["forward"], found["backward"] = min_cut_partition(module, inputs, **how)
        raise Found

    def nothing(module: torch.fx.GraphModule, examples: Any = ()) -> Any:
        return module

    def prepare(module: torch.fx.GraphModule) -> None:
        move_to_gpu(module, mode)
        prepare_joint(module)

    compilers = Compilers(nothing, nothing, nothing, partition, prepare=prepare)
    with contextlib.suppress(Found):
        Compilation(program, [*state.values(), *batch], compilers)
    return found


def move_to_gpu(module: torch.fx.GraphModule, mode: Any) -> None:
    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            with mode:
                whole = torch.empty(value.untyped_storage().nbytes() // value.itemsize, dtype=value.dtype, device=CUDA)
                return whole.as_strided(value.shape, value.stride(), value.storage_offset())
        return type(value)(map(moved, value)) if isinstance(value, (list, tuple)) else value

    for node in module.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = moved(node.meta["val"])
        if "device" in node.kwargs:
            node.kwargs = dict(node.kwargs) | {"device": CUDA}


def moved_bytes(launch: Launch) -> int:
    """The elements of each buffer that the kernel accesses, once."""
    kernel, size = launch.kernel, launch.kernel.sizes_of_launch(launch.sizes)
    counts: dict[Any, int] = {}
    for access in dict.fromkeys(kernel.accesses()):
        count = 1
        for loop, stride in zip(kernel.loops, access.strides, strict=True):
            count *= hint(size(loop.size)) if stride != 0 or access.indirect else 1
        actual = launch.buffers[kernel.buffers.index(access.buffer)]
        counts[actual] = min(counts.get(actual, 0) + count, hint(actual.span))
    return sum(count * buffer.dtype.itemsize for buffer, count in counts.items())


def launches_of(scheduled: Scheduled) -> Iterator[tuple[int, Launch]]:
    """The launches that differ in their kernel or in what they move, and how many there are of each."""
    counts: dict[Any, list[Any]] = {}
    for step in scheduled.steps:
        if isinstance(step, Launch):
            counts.setdefault((step.kernel.name, moved_bytes(step)), [0, step])[0] += 1
    yield from ((count, launch) for count, launch in counts.values())


def tensor_for(buffer: Any) -> torch.Tensor:
    span = hint(buffer.span)
    if buffer.dtype.is_floating_point:
        return torch.randn(span, device="cuda").to(buffer.dtype)
    return torch.randint(0, 1000 if buffer.dtype is torch.int64 else 2, (span,), device="cuda").to(buffer.dtype)


def starter(launch: Launch, handle: int, pointers: list[int]) -> Callable[[], None]:
    """A function that launches a kernel, and does not wait for it."""
    plan = plan_of(launch.kernel)
    given = [ctypes.c_int64(number) for number in (*pointers, *map(hint, launch.sizes))]
    places = (ctypes.c_void_p * len(given))(*(ctypes.addressof(one) for one in given))
    blocks, call = hint(actual_blocks(plan.blocks, launch)), kernel_call.Launch(driver.launcher().address)
    shape = (blocks, 1, 1, plan.threads, 1, 1, plan.shared_bytes)

    def start() -> None:
        assert given and not call(handle, *shape, torch.cuda.current_stream().cuda_stream, places, None)

    return start


def microseconds(launch: Launch, handle: int, repeats: int = 7) -> float:
    tensors = {buffer: tensor_for(buffer) for buffer in dict.fromkeys(launch.buffers)}
    pointers = [tensors[buffer].data_ptr() for buffer in launch.buffers]
    start_kernel = starter(launch, handle, pointers)
    flushed = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")  # larger than the cache
    times = []
    for _ in range(repeats):
        flushed.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(400_000)  # until the launch is in the queue
        start.record()
        start_kernel()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times)


def show(launch: Launch) -> str:
    plan = plan_of(launch.kernel)
    loops = "x".join(f"{hint(loop.size)}{'r' if loop.is_reduced else ''}" for loop in launch.kernel.loops)
    how = "columns" if plan.is_by_columns else "rows" if plan.reduced else "points"
    blocks = hint(actual_blocks(plan.blocks, launch))
    return f"{how} {loops} lanes {plan.lanes} members {plan.members} copies {plan.copies} {blocks}x{plan.threads}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="gpt2, llama, bert, dlrm, or a model of gpu_vision_models")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--only", default="", help="kernels, such as backward:kernel5")
    parser.add_argument("--set", action="append", default=[], help="NAME=NUMBER")
    parser.add_argument("--dry", action="store_true", help="without a GPU")
    parser.add_argument("--text", action="store_true", help="prints the kernels")
    options = parser.parse_args()
    for setting in options.set:
        name, _, value = setting.partition("=")
        assert hasattr(kernel_plan, name), name
        setattr(kernel_plan, name, int(value))
    target, only = CudaTarget(CUDA), [name for name in options.only.split(",") if name]
    for part, module in graphs_of(options.model, options.layers).items():
        scheduled = pipeline.lower_for(module, target, [])[2]
        for why in dict.fromkeys(map(str, scheduled.called.values())) if options.dry else ():
            print(f"{part}: ATen: {why[:150]}")
        loaded = None if options.dry else target.load(target.compile(scheduled.kernels))
        total = 0.0
        for count, launch in launches_of(scheduled):
            name = f"{part}:{launch.kernel.name}"
            if only and name not in only:
                continue
            moved = moved_bytes(launch)
            row = f"{name:58} {count:3}x {moved / 1e6:7.1f} MB  floor {1e6 * moved / BANDWIDTH:6.1f} us"
            if loaded is not None:
                time = microseconds(launch, loaded.handles[scheduled.kernels.index(launch.kernel)])
                total += count * time
                row += f"  {time:7.1f} us {moved / time / 1e3:6.0f} GB/s"
            print(f"{row}  {show(launch)}", flush=True)
            if options.text:
                print(launch.kernel.text)
        print(f"{part}: {total / 1e3:.3f} ms in all")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
