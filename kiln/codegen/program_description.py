"""The description of the native program for a scheduled graph and its memory plan.

`Describer` writes the program as plain data (numbers, strings, lists: JSON), so that it can be stored. `assemble`
(target/native_program.py) makes the program of that data, of the kernels' addresses and of the constants, which
`constant_in` finds in the graph. kiln/native/program/program.h explains registers and steps.

An argument in the data is the number of a register; or ``["constant", k]``, ``["list", arguments]``, ``["value", v]``,
``["torch", name]`` (a dtype, layout or memory format), ``["device", name]``, ``["complex", text]``; or None for the
default. Sizes are ints, or ``[k]`` for the k-th number that is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from ..loops.ir import Buffer
from ..loops.sizes import Size, Strides
from ..loops.steps import Call, Draw, Launch, Opaque, Scheduled, View
from ..lower.lowering import CannotLower
from ..lower.schedule.memory_plan import Plan
from ..platform.torch_operators import OpOverload, schema_of
from ..platform.torch_pytree import tree_leaves
from ..target.native_program import Data, is_dynamic, python_target
from ..target.target import Target
from .size_instructions import SizeInstructions

MOST_ORIGINS = 64  # nodes that are noted for a kernel


class Describer:
    """Assigns registers to values, and describes the steps."""

    def __init__(self, scheduled: Scheduled, plan: Plan, target: Target) -> None:
        self.scheduled, self.plan, self.target = scheduled, plan, target
        self.kernels = scheduled.kernels
        self.kernel_numbers = {kernel: number for number, kernel in enumerate(self.kernels)}
        self.numbers = SizeInstructions(scheduled.inputs)
        self.registers: dict[Any, int] = {}
        self.count = len(scheduled.inputs)
        self.constants: list[Any] = []
        self.constant_names: list[list[str]] = []
        self.constant_places: dict[int, int] = {}
        self.exposed: list[list[int]] = []
        self.checks: list[Any] = []
        self.steps: list[list[Any]] = []
        self.launching_steps: list[tuple[str, list[Launch]]] = []  # with the names of their ranges
        self.scratch: int | None = None
        self.needed = self.alignments() if target.is_gpu else {}
        self.seen = seen_inside(scheduled) | self.needed.keys()

    def run(self) -> Data:
        for index, value in enumerate(self.scheduled.inputs):
            if isinstance(value, (Buffer, Opaque)):
                self.registers[value] = index
        for result, changed in self.plan.written.items():
            self.registers[result] = self.registers[changed]
        for index, value in enumerate(self.scheduled.inputs):
            if isinstance(value, (Buffer, Opaque)):
                self.checks.append([index, self.expected(value)])
        for index, run in enumerate(self.plan.runs):
            self.allocate(index)
            if not run:
                continue
            if isinstance(run[0], Call):
                self.call(run[0])
            else:
                launches = [launch for launch in run if isinstance(launch, Launch)]
                steps = self.target.launch_steps(launches, self)  # first: it may add a step
                self.steps.extend(steps)
                self.launching_steps.append((str(steps[0][1]), launches))
        self.allocate(len(self.plan.runs))
        outputs = [self.argument(output) for output in self.scheduled.outputs]
        origins: dict[Any, list[str]] = {kernel: [] for kernel in self.kernels}  # names of nodes, for messages
        for launch in (step for step in self.scheduled.steps if isinstance(step, Launch)):
            origins[launch.kernel] += [node.name for node in launch.origins if hasattr(node, "name")]
        return self.of_device() | {
            "inputs": len(self.scheduled.inputs),
            "registers": self.count,
            "instructions": [list(instruction) for instruction in self.numbers.instructions],
            "checks": self.checks,
            "exposed": self.exposed,
            "steps": self.steps,
            "outputs": outputs,
            "constants": self.constant_names,
            "names": [kernel.name for kernel in self.kernels],
            "origins": [list(dict.fromkeys(nodes))[:MOST_ORIGINS] for nodes in origins.values()],
            "written": [
                [place, self.registers[output.buffer]]
                for place, output in enumerate(self.scheduled.outputs)
                if isinstance(output, View) and output.buffer in self.plan.written
            ],
        }

    def of_device(self) -> Data:
        """What only programs for a GPU have: its number, and the alignment in bytes that values need which are not
        allocated by the program itself."""
        if not self.target.is_gpu:
            return {}
        aligned = [[self.source(buffer), count] for buffer, count in self.needed.items() if buffer.kind != "made"]
        return {"device": self.target.device.index, "aligned": aligned}

    def alignments(self) -> dict[Buffer, int]:
        """The alignment in bytes that kernels need of buffers, where it is more than any pointer has. Memory that a
        buffer takes over has to have the buffer's."""
        needed: dict[Buffer, int] = dict(self.scheduled.aligned)
        for launch in (step for step in self.scheduled.steps if isinstance(step, Launch)):
            for buffer, count in zip(launch.buffers, self.target.alignments(launch.kernel), strict=True):
                needed[buffer] = max(needed.get(buffer, 1), count)
        takers = [one for _, allocations in sorted(self.plan.allocations.items()) for one in allocations]
        taken = [(one.buffer, one.donor) for one in reversed(takers)] + list(self.plan.written.items())
        for buffer, donor in taken:
            if donor is not None:
                needed[donor] = max(needed.get(donor, 1), needed.get(buffer, 1))
        return {buffer: count for buffer, count in needed.items() if count > 1}

    def new(self, value: Any = None) -> int:
        self.count += 1
        if value is not None:
            self.registers[value] = self.count - 1
        return self.count - 1

    # ---- values ------------------------------------------------------------------------------------------------------

    def size(self, size: Size) -> Any:
        number = self.numbers.number(size)
        return list(number) if isinstance(number, tuple) else number

    def sizes(self, sizes: Sequence[Size]) -> list[Any]:
        return [self.size(size) for size in sizes]

    def layout(self, dtype: torch.dtype, shape: Sequence[Size], strides: Strides) -> list[Any]:
        return [name_of(dtype), self.sizes(shape), self.sizes(strides)]

    def constant(self, value: Any, kind: str, name: str) -> list[Any]:
        if id(value) not in self.constant_places:
            self.constant_places[id(value)] = len(self.constants)
            self.constants.append(value)
            self.constant_names.append([kind, name])
        return ["constant", self.constant_places[id(value)]]

    def argument(self, value: Any) -> Any:
        """The description of a value."""
        if isinstance(value, View):
            return self.view(value)
        if isinstance(value, Opaque):
            is_constant = value.tensor is not None
            return self.constant(value.tensor, "tensor", value.name) if is_constant else self.registers[value]
        if isinstance(value, sympy.Basic):
            number = self.numbers.number(value)
            return ["value", number] if isinstance(number, int) else self.expose(number[0])
        if isinstance(value, (list, tuple)):
            parts = [self.argument(part) for part in value]
            if all(isinstance(part, list) and part[0] == "value" for part in parts):
                return ["value", [part[1] for part in parts]]
            return ["list", parts]
        if value is None or isinstance(value, (bool, int, float, str)):
            return ["value", value]
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return ["torch", name_of(value)]
        if isinstance(value, (torch.device, complex)):
            return [type(value).__name__, str(value)]
        raise CannotLower(f"an argument of the type {type(value).__name__}")

    def expose(self, number: int) -> int:
        """The register that a computed number is in."""
        key = ("number", number)
        if key not in self.registers:
            self.exposed.append([number, self.new(key)])
        return self.registers[key]

    def source(self, buffer: Buffer) -> Any:
        if buffer.kind == "constant":
            return self.constant(buffer.tensor, "tensor", buffer.name)
        return self.registers[buffer]

    def view(self, view: View) -> Any:
        source = self.source(view.buffer)
        if view.is_whole:
            return source
        if view not in self.registers:
            layout = self.layout(view.buffer.dtype, view.shape, view.strides)
            self.steps.append(["view", self.new(view), source, layout, self.size(view.offset)])
        return self.registers[view]

    # ---- memory and kernels ------------------------------------------------------------------------------------------

    def allocate(self, index: int) -> None:
        for one in self.plan.allocations.get(index, ()):
            buffer = one.buffer
            donor = self.registers[one.donor] if one.donor is not None else -1
            layout = self.layout(buffer.dtype, buffer.shape, buffer.strides)
            self.steps.append(["allocate", self.new(buffer), layout, donor])

    def kernel_number(self, launch: Launch) -> int:
        return self.kernel_numbers[launch.kernel]

    def pointers(self, launch: Launch) -> list[Any]:
        return [self.pointer(buffer) for buffer in launch.buffers]

    def pointer(self, buffer: Buffer) -> list[Any]:
        place = self.plan.scratch.get(buffer)
        if buffer.kind == "drawn":
            return [self.source(buffer), 0, 2]
        if place is None:
            return [self.source(buffer), 0, int(buffer in self.plan.written)]
        if self.scratch is None:
            self.scratch = self.new()
            layout = self.layout(torch.uint8, (self.plan.scratch_bytes,), (1,))
            self.steps.append(["allocate", self.scratch, layout, -1])
        return [self.scratch, place, 0]

    # ---- calls -------------------------------------------------------------------------------------------------------

    def call(self, call: Call) -> None:
        if isinstance(call, Draw):
            self.steps.append(["draw", self.new(call.results[0]), self.size(call.increment)])
            return
        if type(call.target) is OpOverload:
            self.call_operator(call, call.target)
            return
        values = tree_leaves((list(call.args), dict(call.kwargs)))
        places = tree_leaves((list(call.node.args), dict(call.node.kwargs)))
        arguments = [self.argument(value) for value, place in zip(values, places, strict=True) if is_dynamic(place)]
        target = self.constant(python_target(call.node), "call", call.node.name)
        is_list = isinstance(call.node.meta.get("val"), (list, tuple))
        result, items = self.results_of_one(call, is_list)
        expected = None if is_list or not call.results else self.expected(call.results[0])
        self.steps.append(["python", target[1], arguments, result, expected])
        self.steps.extend(items)

    def call_operator(self, call: Call, target: OpOverload) -> None:
        schema = schema_of(target)
        given = dict(zip([argument.name for argument in schema.arguments], call.args, strict=False)) | call.kwargs
        arguments = [self.argument(given[one.name]) if one.name in given else None for one in schema.arguments]
        if call in self.plan.out_variants:
            out = self.registers[call.results[0]]
            self.steps.append(["operator", schema.name, "out", [*arguments, out], [-1], []])
            return
        if len(schema.returns) == 1:
            is_list = isinstance(schema.returns[0].type, torch.ListType)
            result, items = self.results_of_one(call, is_list)
            layouts = [] if is_list else [self.expected(call.results[0])]
            self.steps.append(["operator", schema.name, schema.overload_name, arguments, [result], layouts])
            self.steps.extend(items)
            return
        registers = [self.new(result) if result is not None else -1 for result in call.results]
        layouts = [self.expected(result) for result in call.results]
        self.steps.append(["operator", schema.name, schema.overload_name, arguments, registers, layouts])

    def results_of_one(self, call: Call, is_list: bool) -> tuple[int, list[list[Any]]]:
        """The register of the one result, and the steps that take its items if it is a list."""
        if not is_list:
            result = call.results[0] if call.results else None
            return (self.new(result) if result is not None else -1), []
        whole = self.new()
        wanted = [(place, result) for place, result in enumerate(call.results) if result is not None]
        return whole, [["item", place, whole, self.new(result), self.expected(result)] for place, result in wanted]

    def expected(self, value: Any) -> Any:
        """The layout that an input or result must have; None where only calls see it. Fake tensors do not always
        predict the layout of a call's results."""
        if not isinstance(value, Buffer) or value not in self.seen:
            return None
        return self.layout(value.dtype, value.shape, value.strides)


def seen_inside(scheduled: Scheduled) -> set[Buffer]:
    """The buffers that kernels or views access."""
    found = {buffer for step in scheduled.steps if isinstance(step, Launch) for buffer in step.buffers}
    given = [scheduled.outputs, *((step.args, step.kwargs) for step in scheduled.steps if isinstance(step, Call))]
    for view in tree_leaves(given):
        if isinstance(view, View) and not view.is_whole:
            found.add(view.buffer)
    return found


def name_of(value: Any) -> str:
    """The name of a dtype, layout or memory format in torch."""
    return str(value).removeprefix("torch.")
