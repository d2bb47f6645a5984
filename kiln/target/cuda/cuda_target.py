"""An NVIDIA GPU as a target. What compiles is imported when it is needed: a program from the disk cache does without.

Kernels are linked to machine code of the GPU (a cubin) where its driver is there, so that it is stored; otherwise they
stay PTX, which shows what a machine with a GPU would run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...loops import gpu_generators
from ..compile_queue import begin_all, thread_count
from ..native_program import Launcher
from ..target import LaunchDescriber, LoadedCode, MachineCode, Target, modules_of, places_of
from . import driver

if TYPE_CHECKING:
    from kiln.loops.kernel import Kernel
    from kiln.loops.sizes import Size
    from kiln.loops.steps import Launch

USUAL_ARCHITECTURE = "sm_90"  # that PTX is for where there is no GPU
ENOUGH_THREADS = 4  # for two programs at a time
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

    @property
    def compiles_aside(self) -> bool:
        return driver.is_available() and thread_count() >= ENOUGH_THREADS

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
        return self.begin(kernels)()

    def begin(self, kernels: Sequence[Kernel]) -> Callable[[], MachineCode]:
        images = begin_all((self.llvm(module) for module in modules_of(kernels)), self.image)
        return lambda: MachineCode(tuple(images()), places_of(kernels))

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

    def arrange(self, launches: Iterable[Sequence[Launch]]) -> None:
        from .launch_table import rows_for

        most: dict[Kernel, int] = {}
        for together in launches:
            kernel = together[0].kernel
            most[kernel] = max(most.get(kernel, 1), len(together))
        for kernel, count in most.items():
            kernel.table_rows = rows_for(kernel, count)

    def launch_steps(self, launches: Sequence[Launch], describer: LaunchDescriber) -> list[list[Any]]:
        from .kernel_plan import plan_of

        kernel = launches[0].kernel
        plan, number = plan_of(kernel), describer.kernel_number(launches[0])
        works = [self.work(launch, describer) for launch in launches]
        shape = plan.threads, plan.shared_bytes
        if kernel.table_rows:
            return [["cuda_table", kernel.name, number, works, kernel.table_rows, *shape]]
        return [["cuda_launch", kernel.name, number, *work, *shape] for work in works]

    def work(self, launch: Launch, describer: LaunchDescriber) -> list[Any]:
        """Pointers, sizes and the number of blocks."""
        from .kernel_plan import plan_of

        blocks = actual_blocks(plan_of(launch.kernel).blocks, launch)
        return [describer.pointers(launch), describer.sizes(launch.sizes), describer.sizes([blocks])[0]]

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
        from .launch_table import table_of_one

        plan = plan_of(launch.kernel)
        shape = (number(actual_blocks(plan.blocks, launch)), plan.threads, plan.shared_bytes)
        words = [*pointers, *map(number, launch.sizes)]
        given: list[Any] = [table_of_one(launch.kernel, words)] if launch.kernel.table_rows else words
        call_kernel(launch.kernel.name, handle, self.index, shape, given)

    def llvm(self, kernels: Mapping[str, Kernel]) -> str:
        from .cuda_module import emit_module

        return emit_module(dict(kernels))

    def assembly(self, text: str) -> str:
        from .ptx import compile_ptx

        return compile_ptx(text, self.architecture).decode()


def actual_blocks(blocks: Size, launch: Launch) -> Size:
    """The number of blocks of a launch, for the sizes that it is launched with. A kernel whose sizes are no plain
    symbols is launched with its own sizes only (`lower.schedule.kernels.own_sizes`)."""
    from kiln.loops.sizes import plain_size

    if isinstance(blocks, int) or launch.sizes == launch.kernel.sizes:
        return blocks
    return plain_size(blocks.xreplace(dict(zip(launch.kernel.sizes, launch.sizes, strict=True))))
