"""``options={"check": True}``: each kernel runs beside eager, and the first that differs is named.

The graph runs operator by operator first, and all its values are kept. Then the program runs step by step. What a
kernel writes is compared with the values of the graph's nodes it implements. Values that are no node's (such as the
mean inside a normalization) are compared with the reference interpreter. Each kernel reads eager's values, so
differences do not add up. Calls of ATen are not repeated: their results in the eager run are taken, so random numbers
are drawn once. Where results differ by much, they are computed in float64 as well (float64_reference.py): a kernel is
wrong if it is further from that than eager is.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch.nn import Parameter

from ..exc import CheckFailed
from ..loops.gpu_generators import current_seed_and_offset
from ..loops.ir import Buffer
from ..loops.reference import Reference
from ..loops.steps import Call, Draw, Launch, Scheduled, View
from ..loops.tensor_views import Tensor
from ..lower.lowering import Lowering
from ..program.operators.operator_table import find_operator
from ..target.native_program import Boxed
from ..target.target import LoadedCode, Target
from .float64_reference import Float64Reference, float64_values

# How far a kernel may be from eager: relative to the element, and to the greatest one, which sums may have cancelled.
RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
RELATIVE_TO_LARGEST = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TOLERANCE_FACTOR = 4.0  # a kernel may be this many times as far from the exact result as eager is
PLAIN = (torch.Tensor, Parameter)

Part = tuple[torch.fx.Node, int | None, View]  # a node, the number of its result, and its memory


class CheckedProgram:
    """A program that checks itself: a function of a list that it empties. Tensor subclasses run ``otherwise``."""

    _boxed_call = True

    def __init__(
        self,
        module: torch.fx.GraphModule,
        lowering: Lowering,
        scheduled: Scheduled,
        target: Target,
        code: LoadedCode,
        otherwise: Boxed,
    ) -> None:
        self.module, self.scheduled, self.target, self.code = module, scheduled, target, code
        self.otherwise = otherwise
        self.handles = dict(zip(scheduled.kernels, code.handles, strict=True))
        self.parts: dict[Buffer, list[Part]] = {}
        for part in parts_of(lowering):
            self.parts.setdefault(part[2].buffer, []).append(part)
        self.last: dict[Buffer, Launch] = {}  # which launch is the last to write a buffer
        for step in scheduled.steps:
            if isinstance(step, Launch):
                self.last.update(dict.fromkeys(written_by(step), step))

    def __call__(self, arguments: list[Any]) -> Any:
        if any(isinstance(one, torch.Tensor) and type(one) not in PLAIN for one in arguments):
            return self.otherwise(arguments)
        inputs = list(arguments)
        arguments.clear()
        made_on = self.target.device if self.target.is_gpu else contextlib.nullcontext()  # tensors of the check itself
        with torch.no_grad(), made_on:
            return CheckedRun(self, inputs).run()


def parts_of(lowering: Lowering) -> Iterator[Part]:
    """The values of nodes that are in memory written by kernels."""
    for node, value in lowering.values.items():
        several = isinstance(value, tuple)
        for index, one in enumerate(value if several else (value,)):
            access = one.access if isinstance(one, Tensor) else None
            if access is not None and access.buffer.kind == "made":
                view = View(access.buffer, one.shape, access.strides, access.offset)
                yield node, index if several else None, view


def written_by(launch: Launch) -> list[Buffer]:
    """The buffers that a launch writes."""
    actual = launch.actual
    return list(dict.fromkeys(actual[output.target.buffer] for output in launch.kernel.outputs))


class EagerInterpreter(torch.fx.Interpreter):
    """Runs the graph operator by operator. Uninitialized memory is zeros, as it is in expressions."""

    def __init__(self, module: torch.fx.GraphModule, device: torch.device) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.device = device
        self.drawn: dict[torch.fx.Node, torch.Tensor] = {}  # seed and offset before each random node

    def run_node(self, node: torch.fx.Node) -> Any:
        called = find_operator(node.target)
        if called is not None and called.random and self.device.type == "cuda":
            self.drawn[node] = current_seed_and_offset(self.device)
        return super().run_node(node)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = super().call_function(target, args, kwargs)
        called = find_operator(target)
        if called is not None and called.leaves_unwritten:
            found.untyped_storage().fill_(0)  # (elements may overlap)
        return found


class CheckedRun(Reference):
    """One run of a checked program."""

    def __init__(self, checked: CheckedProgram, inputs: list[Any]) -> None:
        super().__init__(checked.scheduled, inputs)
        self.checked = checked
        for place in checked.scheduled.inputs:
            if isinstance(place, Buffer):
                self.memory[place] = self.laid_out(place, self.memory[place])
        interpreter = EagerInterpreter(checked.module, checked.target.device)
        interpreter.run(*inputs, enable_io_processing=False)
        self.drawn = interpreter.drawn
        self.eager: dict[torch.fx.Node, Any] = interpreter.env
        self.wide: dict[torch.fx.Node, Any] | None = None  # the same in float64, where it is asked for

    def run(self) -> list[Any]:
        """The results, detached: autograd does not see them as views, but they share version counters."""
        found = super().run()
        known: dict[int, Any] = {}  # what is given twice is one tensor
        for place, output in enumerate(self.checked.scheduled.outputs):
            if isinstance(output, View) and output.buffer.kind != "input":
                found[place] = known.setdefault(id(output), found[place].detach())
        return found

    def laid_out(self, place: Buffer, given: torch.Tensor) -> torch.Tensor:
        """An input with the strides that kernels expect."""
        strides = self.numbers(place.strides)
        if all(size < 2 or one == other for size, one, other in zip(given.shape, given.stride(), strides, strict=True)):
            return given
        return torch.empty_strided(given.shape, strides, dtype=given.dtype).copy_(given)

    def call(self, call: Call) -> None:
        """Takes the results of the eager run, except for calls that only the program makes."""
        if isinstance(call, Draw):
            self.take(call, self.drawn[call.node])
            return
        if call.node is None or call.node not in self.eager or call.target is not call.node.target:
            super().call(call)
            return
        self.take(call, self.eager[call.node])

    def launch(self, launch: Launch) -> None:
        written = written_by(launch)
        before = {buffer: self.elements(buffer).clone() for buffer in written}
        own = [buffer for buffer in written if not self.checked.parts.get(buffer)]
        meant = self.meaning(launch, before) if own else {}
        self.run_code(launch)
        for buffer in own:
            exact = functools.partial(self.exact_elements, launch, before, buffer)
            self.compare(launch, buffer.name, self.elements(buffer), meant[buffer], exact, "what its loops mean")
        for buffer in written:
            if self.checked.last[buffer] is launch:
                for part in self.checked.parts.get(buffer, ()):
                    self.check_part(launch, *part)

    def meaning(self, launch: Launch, before: dict[Buffer, torch.Tensor]) -> dict[Buffer, torch.Tensor]:
        """What the reference interpreter writes for a kernel: the elements of each buffer."""
        kept, self.memory = self.memory, self.memory | {buffer: one.clone() for buffer, one in before.items()}
        super().launch(launch)
        found = {buffer: self.memory[buffer] for buffer in before}
        self.memory = kept
        return found

    def exact_elements(self, launch: Launch, before: dict[Buffer, torch.Tensor], buffer: Buffer) -> torch.Tensor:
        return Float64Reference(self).written(launch, before)[buffer]

    def exact_value(self, node: torch.fx.Node, index: int | None) -> torch.Tensor:
        if self.wide is None:
            self.wide = float64_values(self.checked.module, self.eager)
        found: torch.Tensor = self.wide[node] if index is None else self.wide[node][index]
        return found

    def run_code(self, launch: Launch) -> None:
        needed = self.checked.target.alignments(launch.kernel)
        tensors = [aligned(self.tensor(buffer), count) for buffer, count in zip(launch.buffers, needed, strict=True)]
        pointers = [
            word
            for buffer, tensor in zip(launch.buffers, tensors, strict=True)
            for word in ([*tensor.tolist(), 0] if buffer.kind == "drawn" else [tensor.data_ptr()])
        ]
        handle = self.checked.handles[launch.kernel]
        self.checked.target.run_launch(launch, handle, pointers, self.number)

    def check_part(self, launch: Launch, node: torch.fx.Node, index: int | None, view: View) -> None:
        expected = self.eager[node] if index is None else self.eager[node][index]
        name = node.name if index is None else f"{node.name}[{index}]"
        got = self.for_call(view)
        expected = expected.to(got.dtype)
        self.compare(launch, name, got, expected, functools.partial(self.exact_value, node, index), "eager")
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in got.stride())
        got[once].copy_(expected[once])

    def compare(
        self,
        launch: Launch,
        name: str,
        got: torch.Tensor,
        expected: torch.Tensor,
        exact: Callable[[], torch.Tensor],
        beside: str,
    ) -> None:
        wrong = differs(got, expected)
        if bool(wrong.any()) and got.dtype.is_floating_point:
            wrong &= is_worse(got, expected, exact(), torch.finfo(got.dtype).eps * self.least_input(launch))
        if bool(wrong.any()):
            raise CheckFailed(difference_text(launch, name, got, expected, wrong, beside))

    def least_input(self, launch: Launch) -> float:
        """The smallest of the maxima of what a kernel reads: rounding errors are relative to it."""
        outputs = set(written_by(launch))
        read = [self.tensor(buffer) for buffer in launch.buffers if buffer not in outputs]
        sizes = [
            float(one.double().abs().nan_to_num(0.0).max()) for one in read if one.is_floating_point() and one.numel()
        ]
        return min(sizes, default=0.0)


def aligned(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The tensor, or a copy if it does not begin at a multiple of so many bytes. What the check allocates does."""
    if tensor.data_ptr() % count == 0:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def is_worse(got: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor, slack: float) -> torch.Tensor:
    """Where a result is further from the exact one than the rounding errors of the expected one explain."""
    apart = (expected.double() - exact).abs()
    usual = torch.where(apart.isfinite(), apart, 0.0).max()
    near = (got.double() - exact).abs() <= TOLERANCE_FACTOR * usual + slack
    return ~(near & exact.isfinite() & expected.isfinite())


def differs(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where two tensors differ by more than rounding."""
    if not got.dtype.is_floating_point or not got.numel():
        return got != expected
    a, b = got.double(), expected.double()
    finite = b.isfinite()
    greatest = torch.where(finite, b.abs(), 0.0).max()
    near = (a - b).abs() <= RELATIVE[got.dtype] * b.abs() + RELATIVE_TO_LARGEST[got.dtype] * greatest
    same = (a == b) | (a.isnan() & b.isnan())
    return ~(same | (near & finite))


def difference_text(
    launch: Launch, name: str, got: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, beside: str
) -> str:
    """The difference in words."""
    size = torch.where(wrong, (got.double() - expected.double()).abs().nan_to_num(torch.inf), -1.0)
    place = torch.unravel_index(size.reshape(-1).argmax(), size.shape) if size.dim() else ()
    at = tuple(int(index) for index in place)
    nodes = ", ".join(str(node) for node in launch.nodes)
    count = f"{int(wrong.sum())} of {wrong.numel()} elements"
    lines = [
        f"{launch.kernel.name} differs from {beside} in {name}: {count}, most at {list(at)}: "
        f"{got[at].item()}, where {beside} has {expected[at].item()}",
        f"It stands for: {nodes}",
        launch.kernel.text,
    ]
    return "\n".join(lines)
