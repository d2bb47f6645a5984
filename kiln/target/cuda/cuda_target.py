"""An NVIDIA GPU as a target. What compiles is imported when it is needed: a program from the disk cache does without.

Kernels are linked to machine code of the GPU (a cubin) where its driver is there, so that it is stored; otherwise they
stay PTX, which shows what a machine with a GPU would run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...program import gpu_generators
from ..compile_queue import compile_all
from ..native_program import Launcher
from ..target import LaunchDescriber, LoadedCode, MachineCode, Target, modules_of, places_of
from . import driver

if TYPE_CHECKING:
    from kiln.loops.kernel import Kernel
    from kiln.loops.sizes import Size
    from kiln.loops.steps import Launch

USUAL_ARCHITECTURE = "sm_90"  # that PTX is for where there is no GPU
_prepared: dict[str, threading.Thread] = {}  # threads that load what compiling needs, by architecture


class CudaTarget(Target):
    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def index(self) -> int:
        return self.device.index or 0

    @property
    def architecture(self) -> str:
        return driver.architecture(self.index) if driver.is_available() else USUAL_ARCHITECTURE

    def identity(self) -> tuple[str, ...]:
        version = str(driver.version()) if driver.is_available() else "no driver"
        order = "ordered" if torch.are_deterministic_algorithms_enabled() else ""  # lowerings of scatters ask
        size = str(gpu_generators.processors_and_threads(self.index))  # random numbers depend on it
        return ("cuda", self.architecture, version, order, size)

    def refusal(self, kernel: Kernel) -> str | None:
        from .kernel_plan import NotOnGpu, plan_of

        try:
            plan_of(kernel)
        except NotOnGpu as reason:
            return f"no kernel on GPUs: {reason}"
        return None

    def prepare(self) -> None:
        """LLVM and the driver's linker are loaded by a thread while the graph is lowered, once in a process."""
        if self.architecture not in _prepared:
            thread = _prepared[self.architecture] = threading.Thread(target=self.compile_nothing, name="kiln-prepare")
            with contextlib.suppress(RuntimeError):  # no more threads: the first module loads them
                thread.start()

    def compile_nothing(self) -> None:
        from .cuda_module import emit_module

        with contextlib.suppress(Exception):  # which compiling a kernel shows as well
            self.image(emit_module({}) + "define ptx_kernel void @nothing() {\nret void\n}\n")

    def compile(self, kernels: Sequence[Kernel]) -> MachineCode:
        images = compile_all((self.llvm(module) for module in modules_of(kernels)), self.image)
        return MachineCode(tuple(images), places_of(kernels))

    def image(self, text: str) -> bytes:
        """An LLVM module as a cubin, or as PTX where no driver is there to link it."""
        from .ptx import compile_ptx

        ptx = compile_ptx(text, self.architecture)
        return driver.link(ptx, self.index) if driver.is_available() else ptx

    def load(self, code: MachineCode) -> LoadedCode:
        modules = [driver.load_module(image, self.index) for image in code.images]
        return LoadedCode(tuple(modules[place].function(name) for place, name in code.places), modules)

    def launcher(self) -> Launcher:
        return driver.launcher()

    def launch_step(self, launches: Sequence[Launch], describer: LaunchDescriber) -> list[Any]:
        from .kernel_plan import plan_of

        (launch,) = launches
        plan = plan_of(launch.kernel)
        return [
            "cuda_launch",
            launch.kernel.name,
            describer.kernel_number(launch),
            describer.pointers(launch),
            describer.sizes(launch.sizes),
            describer.sizes([actual_blocks(plan.blocks, launch)])[0],
            plan.threads,
            plan.shared_bytes,
        ]

    def alignments(self, kernel: Kernel) -> tuple[int, ...]:
        from .kernel_plan import plan_of

        return plan_of(kernel).aligned

    def resources(self, kernels: Sequence[Kernel], code: MachineCode, loaded: LoadedCode) -> dict[str, dict[str, int]]:
        from .kernel_plan import plan_of

        found = {}
        for kernel, (place, name) in zip(kernels, code.places, strict=True):
            said, plan = loaded.keep[place].attributes(name), plan_of(kernel)
            found[kernel.name] = {
                "registers": said["registers"],
                "bytes of shared memory": said["shared"] + plan.shared_bytes,
                "bytes spilled": said["local"],
                "threads": plan.threads,
            }
        return found

    def run_launch(self, launch: Launch, handle: int, pointers: Sequence[int], number: Callable[[Size], int]) -> None:
        from .kernel_call import call_kernel
        from .kernel_plan import plan_of

        plan = plan_of(launch.kernel)
        shape = (number(actual_blocks(plan.blocks, launch)), plan.threads, plan.shared_bytes)
        call_kernel(launch.kernel.name, handle, self.index, shape, [*pointers, *map(number, launch.sizes)])

    def llvm(self, kernels: Mapping[str, Kernel]) -> str:
        from .cuda_module import emit_module

        return emit_module(dict(kernels))

    def assembly(self, text: str) -> str:
        from .ptx import compile_ptx

        return compile_ptx(text, self.architecture).decode()


def actual_blocks(blocks: Size, launch: Launch) -> Size:
    """The number of blocks of a launch, for the sizes that it is launched with. A kernel whose sizes are no plain
    symbols is launched with its own sizes only (`lower.schedule.kernels.own_sizes`)."""
    if isinstance(blocks, int) or launch.sizes == launch.kernel.sizes:
        return blocks
    found = blocks.xreplace(dict(zip(launch.kernel.sizes, launch.sizes, strict=True)))
    return int(found) if found.is_Integer else found
