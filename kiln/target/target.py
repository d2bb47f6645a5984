"""What code generation asks of a target: machine code of kernels, loading it, and how the program launches them.

There is one target for each kind of device: `cpu.cpu_target.CpuTarget`, `cuda.cuda_target.CudaTarget`. Loading a stored
program imports neither the code generator nor LLVM.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..platform.light_dataclass import dataclass
from .compile_queue import thread_count
from .native_program import Launcher

if TYPE_CHECKING:  # a program from the disk cache does without kernels
    from ..loops.kernel import Kernel
    from ..loops.sizes import Size
    from ..loops.steps import Launch

MOST_KERNELS_OF_A_MODULE = 4  # more modules keep more threads busy; fewer repeat less of what kernels share


@dataclass(frozen=True)
class MachineCode:
    """Kernels as machine code. ``places``: for each kernel the number of its image, and the name of its function."""

    images: tuple[bytes, ...]
    places: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class LoadedCode:
    """Kernels in memory: a handle for each, and what has to live as long as they are launched."""

    handles: tuple[int, ...]
    keep: Any


class LaunchDescriber(Protocol):
    """Describes what a launch takes, as plain data (`codegen.program_description.Describer`)."""

    def kernel_number(self, launch: Launch) -> int: ...

    def pointers(self, launch: Launch) -> list[Any]: ...

    def sizes(self, sizes: Sequence[Size]) -> list[Any]: ...


class Target(ABC):
    """Makes and loads machine code for one device."""

    device: torch.device

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @abstractmethod
    def identity(self) -> tuple[str, ...]:
        """What machine code depends on, besides the kernels and what every key of the disk cache has."""

    @abstractmethod
    def refusal(self, kernel: Kernel) -> str | None:
        """Why the target cannot run a kernel; None where it can."""

    def prepare(self) -> None:  # noqa: B027  most targets have nothing to do
        """Told that kernels are going to be compiled: what that needs may be loaded in the meantime."""

    @property
    def compiles_aside(self) -> bool:
        """Whether threads compile, without Python's lock and on cores of their own, what was begun."""
        return False

    @abstractmethod
    def compile(self, kernels: Sequence[Kernel]) -> MachineCode: ...

    def begin(self, kernels: Sequence[Kernel]) -> Callable[[], MachineCode]:
        """Begin to compile, where threads do: what is given waits for their code."""
        return functools.partial(self.compile, kernels)

    @abstractmethod
    def load(self, code: MachineCode) -> LoadedCode: ...

    def launcher(self) -> Launcher | None:
        """What the program launches kernels with, on a GPU."""
        return None

    @abstractmethod
    def arrange(self, launches: Iterable[Sequence[Launch]]) -> None:
        """Called with the launches that run together, before kernels are compiled."""

    @abstractmethod
    def launch_steps(self, launches: Sequence[Launch], describer: LaunchDescriber) -> list[list[Any]]:
        """The steps of the program's description that run these launches, which run together."""

    @abstractmethod
    def alignments(self, kernel: Kernel) -> tuple[int, ...]:
        """For each of the kernel's buffers, the alignment in bytes that its pointer must have."""

    @abstractmethod
    def run_launch(self, launch: Launch, handle: int, pointers: Sequence[int], number: Callable[[Size], int]) -> None:
        """Run a launch of a loaded kernel alone, for checks; ``number`` gives sizes of the launch as numbers."""

    def resources(self, kernels: Sequence[Kernel], code: MachineCode, loaded: LoadedCode) -> dict[str, dict[str, int]]:
        """What kernels need of the machine, by name; nothing where it is not known."""
        return {}

    @abstractmethod
    def llvm(self, kernels: Mapping[str, Kernel]) -> str:
        """The kernels as LLVM IR."""

    @abstractmethod
    def assembly(self, text: str) -> str:
        """LLVM IR as assembly text."""


def modules_of(kernels: Sequence[Kernel]) -> Iterator[dict[str, Kernel]]:
    """The kernels by name, those that are compiled together in one dictionary."""
    named = list(zip(function_names(kernels), kernels, strict=True))
    size = module_size(len(kernels))
    for start in range(0, len(named), size):
        yield dict(named[start : start + size])


def places_of(kernels: Sequence[Kernel]) -> tuple[tuple[int, str], ...]:
    """Where `modules_of` puts each kernel."""
    size = module_size(len(kernels))
    return tuple((number // size, name) for number, name in enumerate(function_names(kernels)))


def module_size(count: int) -> int:
    """How many of so many kernels are compiled together: so few that each thread has a module."""
    return min(MOST_KERNELS_OF_A_MODULE, max(1, -(-count // thread_count())))


def function_names(kernels: Sequence[Kernel]) -> list[str]:
    """The names of the kernels' functions: their own, which profilers show; scheduling gives no name twice."""
    names = [kernel.name for kernel in kernels]
    unique = len(set(names)) == len(names)
    return names if unique else [f"{name}_{number}" for number, name in enumerate(names)]
