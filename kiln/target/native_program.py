"""Makes the native program of a description. A program from the disk cache needs nothing else.

codegen/program_description.py explains descriptions. Kernels are given by address; constants are found in the graph
(`constant_in`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx

from .. import operator_functions as operator
from .._native import OperatorProgram
from ..platform.torch_pytree import TreeSpec, tree_flatten, tree_unflatten
from ..report import events
from .malloc import keep_freed_memory

Boxed = Callable[[list[Any]], Any]
Data = dict[str, Any]
HOLE = object()


class Launcher(NamedTuple):
    """What a program needs to launch kernels on a GPU."""

    address: int  # of the driver's cuLaunchKernel
    current_stream: Callable[[int], int]  # of a device, as the driver knows it
    failed: Callable[[str, int, int], None]
    """Takes a kernel's name, the driver's error and the device. Raises, or returns for the launch to be tried again."""
    draw: int = 0  # address of the function that random numbers are drawn with (native/platform/random.h); 0: none


# ---- Python functions in the graph -----------------------------------------------------------------------------------


class PythonTarget:
    """A function of the graph, called with its dynamic arguments; the others are constants."""

    def __init__(self, target: Callable[..., Any], leaves: list[Any], structure: TreeSpec) -> None:
        self.target, self.leaves, self.structure = target, leaves, structure

    def __call__(self, *values: Any) -> Any:
        given = iter(values)
        leaves = [next(given) if leaf is HOLE else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return self.target(*args, **kwargs)


def python_target(node: torch.fx.Node) -> PythonTarget:
    leaves, structure = tree_flatten((list(node.args), dict(node.kwargs)))
    assert callable(node.target)
    return PythonTarget(node.target, [HOLE if is_dynamic(leaf) else leaf for leaf in leaves], structure)


def is_dynamic(leaf: Any) -> bool:
    return isinstance(leaf, (torch.fx.Node, torch.SymInt))


def constant_in(module: torch.fx.GraphModule, kind: str, name: str) -> Any:
    """A constant of a program, found in the graph that it was made of."""
    node = next(node for node in module.graph.nodes if node.name == name)
    if kind == "call":
        return python_target(node)
    return operator.attrgetter(str(node.target))(module)


# ---- from data to a program ------------------------------------------------------------------------------------------


def assemble(
    data: Data,
    addresses: Sequence[int],
    constants: Sequence[Any],
    otherwise: Boxed,
    keep: Any = None,
    launcher: Launcher | None = None,
) -> Boxed:
    """The program that data describes. ``keep`` lives as long as it does: what holds the machine code.

    A program on a GPU has that GPU's index in ``data["device"]``; its addresses are handles of the driver, and it needs
    a launcher. ``data["aligned"]`` has pairs of a value that kernels access, which is the register of an input or of a
    call's result, or ``["constant", k]``, and the alignment in bytes that they need.
    """
    device = data.get("device", -1)
    if device < 0:
        keep_freed_memory()
    place = (device, launcher) if launcher is not None else (device,) if device >= 0 else ()
    aligned = data.get("aligned", ())
    if not all(constants[value[1]].data_ptr() % bytes == 0 for value, bytes in aligned if isinstance(value, list)):
        return otherwise
    found = Assembler(addresses, constants, {value: bytes for value, bytes in aligned if isinstance(value, int)})
    program = OperatorProgram(
        data["inputs"],
        data["registers"],
        [found.step(step) for step in data["steps"]],
        [found.argument(output) for output in data["outputs"]],
        WritesInputs(otherwise, data["written"]) if data["written"] else otherwise,
        [tuple(instruction) for instruction in data["instructions"]],
        [(index, found.layout(check, index)) for index, check in data["checks"]],
        [tuple(pair) for pair in data["exposed"]],
        *place,
    )
    program.code = keep
    for _ in addresses:
        events.count("kernels")
    program.written_inputs = frozenset(place for place, _ in data["written"])
    program.work_steps = sum(step[0] not in ("allocate", "view", "item", "draw") for step in data["steps"])
    return program


class WritesInputs:
    """Runs a graph that returns new contents of inputs, and copies them into the inputs."""

    def __init__(self, run: Boxed, written: list[list[int]]) -> None:
        self.run, self.written = run, written

    def __call__(self, arguments: list[Any]) -> tuple[Any, ...]:
        changed = [(place, arguments[index]) for place, index in self.written]
        results = list(self.run(arguments))
        for place, tensor in changed:
            tensor.data.copy_(results[place])  # the caller bumps the version counter
            results[place] = tensor
        return tuple(results)


class Assembler:
    def __init__(self, addresses: Sequence[int], constants: Sequence[Any], aligned: dict[int, int]) -> None:
        self.addresses, self.constants, self.aligned = addresses, constants, aligned

    def step(self, step: list[Any]) -> tuple[Any, ...]:
        made: tuple[Any, ...] = getattr(self, step[0])(*step[1:])
        return made

    def operator(
        self, name: str, overload: str, arguments: list[Any], results: list[int], layouts: list[Any]
    ) -> tuple[Any, ...]:
        expected = tuple(self.layout(one, result) for one, result in zip(layouts, results, strict=False))
        return (name, overload), tuple(map(self.argument, arguments)), tuple(results), expected

    def python(self, target: int, arguments: list[Any], result: int, expected: Any) -> tuple[Any, ...]:
        described = tuple(map(self.argument, arguments))
        return self.constants[target], described, (result,), (self.layout(expected, result),)

    def item(self, place: int, source: int, result: int, expected: Any) -> tuple[Any, ...]:
        return place, (source,), (result,), (self.layout(expected, result),)

    def allocate(self, register: int, described: list[Any], donor: int) -> tuple[Any, ...]:
        return "allocate", register, layout(described), donor

    def view(self, register: int, source: Any, described: list[Any], offset: Any) -> tuple[Any, ...]:
        return "view", register, self.argument(source), layout(described), number(offset)

    def launch(self, name: str, *launches: list[Any]) -> tuple[Any, ...]:
        return "launch", name, *(self.one_launch(*one) for one in launches)

    def one_launch(
        self, kernel: int, pointers: list[Any], sizes: list[Any], extent: list[Any], is_whole: int
    ) -> tuple[Any, ...]:
        places = self.pointers(pointers)
        return self.addresses[kernel], places, tuple(map(number, sizes)), tuple(map(number, extent)), is_whole

    def cuda_launch(
        self, name: str, kernel: int, pointers: list[Any], sizes: list[Any], blocks: Any, threads: int, shared: int
    ) -> tuple[Any, ...]:
        geometry = number(blocks), threads, shared
        return (
            "cuda_launch",
            name,
            self.addresses[kernel],
            self.pointers(pointers),
            tuple(map(number, sizes)),
            *geometry,
        )

    def draw(self, register: int, increment: Any) -> tuple[Any, ...]:
        return "draw", register, number(increment)

    def cuda_table(
        self, name: str, kernel: int, works: list[Any], rows: int, threads: int, shared: int
    ) -> tuple[Any, ...]:
        described = tuple((self.pointers(one), tuple(map(number, sizes)), number(count)) for one, sizes, count in works)
        return "cuda_table", name, self.addresses[kernel], described, rows, threads, shared

    def pointers(self, described: list[Any]) -> tuple[Any, ...]:
        return tuple((self.argument(source), offset, written) for source, offset, written in described)

    def layout(self, described: list[Any] | None, register: int) -> tuple[Any, ...] | None:
        """The layout that the value of a register must have, and its alignment if it needs one."""
        if described is None:
            return None
        alignment = self.aligned.get(register)
        return layout(described) if alignment is None else (*layout(described), alignment)

    def argument(self, described: Any) -> Any:
        if described is None or isinstance(described, int):
            return described
        kind, value = described
        if kind == "list":
            return [self.argument(part) for part in value]
        return (self.value(kind, value),)

    def value(self, kind: str, value: Any) -> Any:
        if kind == "constant":
            return self.constants[value]
        if kind == "torch":
            return getattr(torch, value)
        return CONSTRUCTORS[kind](value) if kind in CONSTRUCTORS else value


CONSTRUCTORS: dict[str, Callable[[str], Any]] = {"device": torch.device, "complex": complex}


def number(described: Any) -> Any:
    return tuple(described) if isinstance(described, list) else described


def layout(described: list[Any]) -> tuple[Any, ...]:
    dtype, sizes, strides = described
    return getattr(torch, dtype), tuple(map(number, sizes)), tuple(map(number, strides))
