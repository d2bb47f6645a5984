"""Times of alternatives on a GPU, with tensors like the graph's, and what such times depend on."""

from __future__ import annotations

from typing import Any

import torch

from ...platform.torch_symbols import hint_of
from ...target.cuda import driver
from .alternatives import Site

WARMING, CALLS, ROUNDS = 3, 10, 3


def identity_of(device: torch.device) -> tuple[str, ...]:
    """The GPU, its driver and libraries, and torch's settings of them."""
    properties = torch.cuda.get_device_properties(device)
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    settings = (
        torch.are_deterministic_algorithms_enabled(),
        products.allow_tf32,
        products.allow_fp16_reduced_precision_reduction,
        products.allow_bf16_reduced_precision_reduction,
        cudnn.allow_tf32,
        cudnn.benchmark,
        str(torch.backends.cuda.preferred_blas_library()),
    )
    libraries = f"cuda {torch.version.cuda} cudnn {cudnn_version()} driver {driver.version()}"
    return properties.name, str(properties.multi_processor_count), libraries, str(settings)


def cudnn_version() -> Any:
    module: Any = torch.backends.cudnn
    return module.version()


def is_possible() -> bool:
    """Whether there is a GPU to measure on."""
    return driver.is_available()


def seconds_of(site: Site) -> list[float] | None:
    """The time of each alternative in seconds; None where it cannot be measured now."""
    values = [node.meta["val"] for node in site.inputs]
    device = values[0].device
    if torch.cuda.is_current_stream_capturing():
        return None
    try:
        with torch.no_grad(), torch.autocast("cuda", enabled=False), torch.cuda.device(device):
            inputs = [like(value) for value in values]
            return [timed(lambda one=one: one.compute(call, *inputs)) for one in site.alternatives]
    except torch.OutOfMemoryError:
        return None


def call(target: Any, *args: Any, **kwargs: Any) -> Any:
    return target(*args, **kwargs)


def like(value: torch.Tensor) -> torch.Tensor:
    """A tensor of random numbers with the form of a (fake) tensor. The program's generators are left alone."""
    shape, strides = [number(size) for size in value.shape], [number(stride) for stride in value.stride()]
    made = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    if value.dtype.is_floating_point:
        made.normal_(generator=torch.Generator(value.device).manual_seed(0))
    else:
        made.zero_()
    return made


def number(size: Any) -> int:
    """A size, of a dynamic one that of the traced call."""
    return int(hint_of(size)) if isinstance(size, torch.SymInt) else int(size)


def timed(run: Any) -> float:
    for _ in range(WARMING):
        run()
    times: list[float] = []
    event: Any = torch.cuda.Event
    for _ in range(ROUNDS):
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        for _ in range(CALLS):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / CALLS)
    return min(times)
