"""The CPU as a target. What compiles is imported when it is needed: a program from the disk cache does without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..target import LaunchDescriber, LoadedCode, MachineCode, Target, modules_of, places_of
from . import jit

if TYPE_CHECKING:
    from kiln.loops.kernel import Kernel
    from kiln.loops.sizes import Size
    from kiln.loops.steps import Launch


MOST_NAMES = 3  # of kernels, in the name of a step that launches several at once


class CpuTarget(Target):
    device = torch.device("cpu")

    def identity(self) -> tuple[str, ...]:
        return ()  # the CPU is in every key

    def refusal(self, kernel: Kernel) -> str | None:
        return None

    def compile(self, kernels: Sequence[Kernel]) -> MachineCode:
        # A generator: a module is compiled while the text of the next is written.
        objects = jit.compile_objects(self.llvm(module) for module in modules_of(kernels))
        return MachineCode(tuple(objects), places_of(kernels))

    def load(self, code: MachineCode) -> LoadedCode:
        modules = [jit.load_object(image) for image in code.images]
        return LoadedCode(tuple(modules[place].address(name) for place, name in code.places), modules)

    def arrange(self, launches: Iterable[Sequence[Launch]]) -> None:
        """Code does not depend on it: threads share any launches."""

    def launch_steps(self, launches: Sequence[Launch], describer: LaunchDescriber) -> list[list[Any]]:
        described = [self.one_launch(launch, describer) for launch in launches]
        return [["launch", joint_name([launch.kernel.name for launch in launches]), *described]]

    def one_launch(self, launch: Launch, describer: LaunchDescriber) -> list[Any]:
        from .emit.kernel_plan import plan_of
        from .workload import extent_of

        extent, size = extent_of(plan_of(launch.kernel)), launch.kernel.sizes_of_launch(launch.sizes)
        return [
            describer.kernel_number(launch),
            describer.pointers(launch),
            describer.sizes(launch.sizes),
            describer.sizes([extent.units(size), extent.work(size)]),
            int(extent.is_whole),
        ]

    def alignments(self, kernel: Kernel) -> tuple[int, ...]:
        return (1,) * len(kernel.buffers)

    def run_launch(self, launch: Launch, handle: int, pointers: Sequence[int], number: Callable[[Size], int]) -> None:
        from .kernel_call import call_kernel

        call_kernel(launch.kernel, handle, pointers, list(map(number, launch.sizes)), torch.get_num_threads())

    def llvm(self, kernels: Mapping[str, Kernel]) -> str:
        from .emit import llvm_module

        return llvm_module.emit_module(kernels)

    def assembly(self, text: str) -> str:
        return jit.assembly(text)


def joint_name(names: Sequence[str]) -> str:
    """What a profiler shows for launches that run at once."""
    different = list(dict.fromkeys(names))
    if len(different) <= MOST_NAMES:
        return ", ".join(different)
    return f"{', '.join(different[:MOST_NAMES])} and {len(different) - MOST_NAMES} more"


CPU = CpuTarget()
