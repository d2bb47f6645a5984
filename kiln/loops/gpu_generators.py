"""The random generators of GPUs: seed and offset of what ATen draws.

How ATen's kernels give numbers to elements (loops/philox.py) depends on torch's release and on the GPU. `is_known` says
whether it is known for this one: from its sources, or because the numbers were compared (`draw_check`).
"""

from __future__ import annotations

import functools

import torch

READ_RELEASES = ((2, 11), (2, 13))  # whose kernels were read
USUAL_GPU = (132, 2048)  # what is assumed where there is no GPU: an H100 or H200


def is_known() -> bool:
    """Whether kernels may draw what ATen would. A machine without a GPU shows what a machine with one would do."""
    if not torch.cuda.is_available():
        return True
    from ..platform.torch_devices import draw_address

    if draw_address() == 0:
        return False
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if READ_RELEASES[0] <= release <= READ_RELEASES[1]:
        return True
    return not torch.cuda.is_current_stream_capturing() and all_agree()


@functools.cache
def all_agree() -> bool:
    """Whether every GPU draws as expected. What kernels draw is compared when it is first asked for."""
    from .draw_check import agrees

    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return all(agrees(device, *processors_and_threads(device.index)) for device in devices)


@functools.cache
def processors_and_threads(index: int) -> tuple[int, int]:
    """How many multiprocessors a GPU has, and how many threads each runs at most."""
    if not torch.cuda.is_available():
        return USUAL_GPU
    found = torch.cuda.get_device_properties(index)
    return found.multi_processor_count, found.max_threads_per_multi_processor


def current_seed_and_offset(device: torch.device) -> torch.Tensor:
    """Seed and offset that an operator on the device would draw with now."""
    generator = torch.cuda.default_generators[device.index or 0]
    seed = generator.initial_seed()
    return torch.tensor([seed - (1 << 64) if seed >> 63 else seed, generator.get_offset()])


def draw(device: torch.device, increment: int) -> torch.Tensor:
    """Seed and offset; the generator moves on. What the native program's step does, in Python."""
    found = current_seed_and_offset(device)
    generator = torch.cuda.default_generators[device.index or 0]
    generator.set_offset(generator.get_offset() + increment)
    return found
