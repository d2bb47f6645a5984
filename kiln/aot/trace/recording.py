"""The dispatch mode that records the operations of a program that runs on fake tensors.

It is below autograd, so torch's own autograd decides what is differentiated and how, and above fake tensors, which
compute shapes. Each operation goes into a :class:`FunctionalGraph`, with the user's line, the number of the autograd
node that it belongs to and, in the backward pass, those of the forward operation that it comes from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from ...platform.torch_autograd import current_node, next_sequence_number, sequence_number_of
from ...platform.torch_dispatch import PlainDispatchMode
from ...platform.torch_fake import FakeTensor
from ...platform.torch_operators import OpOverload
from ...program.operators.operator_table import find_operator, operator_of
from ...program.shapes import shape_cache
from ...program.unsupported import Unsupported
from .functional_graph import FunctionalGraph, flat

aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default
# Operators whose schemas are incomplete: as_strided gives a view, and resize changes more than contents.
SAME_AS = {
    torch.ops.prims.as_strided.default: aten.as_strided.default,
    torch.ops.prims.resize.default: aten.resize_.default,
}
FORWARD_FIELDS = ("stack_trace", "source_fn", "source_fn_stack", "nn_module_stack")


class Recorder(PlainDispatchMode):
    """Records what runs."""

    def __init__(self, decompositions: dict[Any, Any]) -> None:
        super().__init__()
        self.functional = FunctionalGraph(self.annotate)
        self.decompositions = decompositions
        self.region = "forward"
        self.provenance: dict[str, Any] = {}  # of the call being traced, such as the user's line
        self.original: Any = None
        self.by_number: dict[int, dict[str, Any]] = {}  # provenance of forward operations, by their autograd node
        self.switches = switches()
        self.internal_error: Exception | None = None  # an error of Kiln's own, not of the program
        self.random_devices: set[torch.device] = set()  # where random numbers were drawn
        self.replayed: dict[torch.fx.Node, torch.fx.Node] = {}  # random nodes that repeat another
        self.drawn_in_region: list[torch.fx.Node] | None = None  # random nodes of the checkpointed region that runs
        self.to_replay: Iterator[torch.fx.Node] | None = None  # the same, while that region runs again

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # the most frequent call
        keywords = kwargs or {}
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper subclass: its own operations on inner tensors come here
        if not isinstance(function, OpOverload):
            raise Unsupported(f"the higher-order operator {function}")
        operator = operator_of(function)
        if operator.asks_form:
            return function(*args, **keywords)
        if operator.name == "resize_storage_bytes_":
            raise Unsupported("resizing a storage")
        if switches() != self.switches:
            raise Unsupported("operations under a default type, or deterministic algorithms, that it switches itself")
        function = SAME_AS.get(function, function)
        operator = operator_of(function)
        rule = self.decompositions.get(function)
        if rule is not None:
            with self.recording(function), self:
                result = rule(*args, **keywords)
            if result is not NotImplemented:
                return result
        if operator.replaces_metadata:
            self.functional.before_reshape(args[0])
        result = shape_cache.run(function, args, keywords)
        if (
            operator.derivative_reads_values
            and args[0].requires_grad
            and torch.is_grad_enabled()
            and is_complex(result)
        ):
            raise Unsupported(f"the derivative of {function}, which looks at values")
        with self.recording(function):
            try:
                self.functional.record(function, args, keywords, result)
            except Unsupported:
                raise
            except Exception as error:
                self.internal_error = error
                raise
        return result

    @contextlib.contextmanager
    def recording(self, function: Any) -> Iterator[None]:
        """Nodes made in the block originate from this operation."""
        if self.original is not None:
            yield
            return
        self.original = function
        try:
            yield
        finally:
            self.original = None

    def annotate(self, node: torch.fx.Node) -> None:
        """Note where a node comes from."""
        meta = node.meta
        meta["region"] = self.region
        meta["original_aten"] = self.original
        current = current_node()
        if current is None:
            number = next_sequence_number() - 1
            meta["seq_nr"] = number
            meta.update(self.provenance)
            self.by_number.setdefault(number, self.provenance)
        else:
            meta["seq_nr"] = number = sequence_number_of(current)
            forward = self.by_number.get(number, {})
            for name in FORWARD_FIELDS:
                if name in forward:
                    meta[f"fwd_{name}" if name.startswith("source") else name] = forward[name]
            meta["partitioner_tag"] = "is_backward"
        operator = find_operator(node.target)
        if operator is not None and operator.random:
            self.note_random(node)

    def note_random(self, node: torch.fx.Node) -> None:
        """A checkpointed region that runs again draws the same numbers again."""
        value = node.meta["val"]
        self.random_devices |= {part.device for part in flat(value) if isinstance(part, torch.Tensor)}
        if self.to_replay is not None:
            first = next(self.to_replay, None)
            if first is None:
                raise Unsupported("a checkpointed region that draws more random numbers when it runs again")
            self.replayed[node] = first
        elif self.drawn_in_region is not None:
            self.drawn_in_region.append(node)


def is_complex(results: Any) -> bool:
    return any(part.is_complex() for part in results)


def switches() -> tuple[torch.dtype, bool]:
    """Settings that operations depend on and that programs may change in between."""
    return torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
