"""The mode under which a program runs on fake tensors while its operations are written down.

It sits below autograd, so torch's own autograd decides what is differentiated and how, and above fake tensors, which
work out shapes. Each operation goes into a :class:`FunctionalGraph`, with the user's line, the number of the autograd
node that it belongs to and, in the backward pass, those of the forward operation that it comes from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...program.operators.operator_table import find_operator, operator_of
from ...program.shapes import shape_cache
from ...program.unsupported import Unsupported
from .functional_graph import FunctionalGraph, flat

aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default
ANSWERS = {"prim", "profiler"}  # namespaces that ask about a tensor or tell about a program
QUESTIONS = {
    aten.sym_size.default,
    aten.sym_stride.default,
    aten.sym_numel.default,
    aten.sym_storage_offset.default,
    aten.is_contiguous.default,
    aten.is_contiguous.memory_format,
    aten.is_strides_like_format.default,
    aten.is_non_overlapping_and_dense.default,
    aten.size.default,
    aten.stride.default,
    aten.storage_offset.default,
    aten.dim.default,
    aten.numel.default,
}
# Operators whose schemas do not say what they do: as_strided gives a view, and resize changes more than contents.
SAME_AS = {
    torch.ops.prims.as_strided.default: aten.as_strided.default,
    torch.ops.prims.resize.default: aten.resize_.default,
}
# Operators whose derivative, for complex results, looks at values to refuse a loss that is not well defined.
CHECKED = {aten.linalg_eig.default, aten._linalg_svd.default, aten._linalg_eigh.default}
FORWARD_FIELDS = ("stack_trace", "source_fn", "source_fn_stack", "nn_module_stack")


class Recorder(TorchDispatchMode):
    """Writes down what runs."""

    def __init__(self, decompositions: dict[Any, Any]) -> None:
        super().__init__()
        self.functional = FunctionalGraph(self.annotate)
        self.decompositions = decompositions
        self.region = "forward"
        self.stage: int | None = None
        self.about: dict[str, Any] = {}  # of the call being traced: the user's line
        self.original: Any = None
        self.by_number: dict[
            int, dict[str, Any]
        ] = {}  # what forward operations told, by the number of their autograd node
        self.switches = switches()
        self.bug: Exception | None = None  # an error of Kiln's own, not of the program
        self.drew_on: set[torch.device] = set()  # where random numbers were drawn
        self.random: list[torch.fx.Node] | None = None  # random operations of the checkpointed region being run
        self.replayed: Iterator[torch.fx.Node] | None = None  # the same, while that region runs again

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asked by torch at the first use of a mode: answering spares loading its compiler."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # asked for more often than anything else
        keywords = kwargs or {}
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a subclass made of tensors: it says what is done to those, and that comes here
        if not isinstance(function, torch._ops.OpOverload):
            raise Unsupported(f"the higher-order operator {function}")
        if function in QUESTIONS or function.namespace in ANSWERS:
            return function(*args, **keywords)
        if function._opname == "resize_storage_bytes_":
            raise Unsupported("resizing a storage")
        if switches() != self.switches:
            raise Unsupported("operations under a default type, or deterministic algorithms, that it switches itself")
        function = SAME_AS.get(function, function)
        rule = self.decompositions.get(function)
        if rule is not None:
            with self.inside(function), self:
                result = rule(*args, **keywords)
            if result is not NotImplemented:
                return result
        if operator_of(function).replaces_metadata:
            self.functional.before_metadata(args[0])
        result = shape_cache.run(function, args, keywords)
        if function in CHECKED and args[0].requires_grad and torch.is_grad_enabled() and is_complex(result):
            raise Unsupported(f"the derivative of {function}, which looks at values")
        with self.inside(function):
            try:
                self.functional.record(function, args, keywords, result)
            except Unsupported:
                raise
            except Exception as error:
                self.bug = error
                raise
        return result

    @contextlib.contextmanager
    def inside(self, function: Any) -> Iterator[None]:
        """Nodes made here come of this operation."""
        if self.original is not None:
            yield
            return
        self.original = function
        try:
            yield
        finally:
            self.original = None

    def annotate(self, node: torch.fx.Node) -> None:
        """Where a node comes from."""
        meta = node.meta
        meta["region"] = self.region
        meta["original_aten"] = self.original
        current = torch._C._current_autograd_node()
        if current is None:
            number = torch.autograd._get_sequence_nr() - 1
            meta["seq_nr"] = number
            meta.update(self.about)
            self.by_number.setdefault(number, dict(self.about, original_aten=self.original))
        else:
            meta["seq_nr"] = number = current._sequence_nr()
            told = self.by_number.get(number, {})
            meta.update(
                (f"fwd_{name}" if name.startswith("source") else name, told[name])
                for name in FORWARD_FIELDS
                if name in told
            )
            meta["partitioner_tag"] = "is_backward"
            meta["forward_aten"] = told.get("original_aten")
        if self.stage is not None:
            meta["stage"] = self.stage
        operator = find_operator(node.target)
        if operator is not None and operator.random:
            self.note_random(node)

    def note_random(self, node: torch.fx.Node) -> None:
        """A region that runs again draws again: the same numbers, which ``replays`` asks for."""
        value = node.meta["val"]
        self.drew_on |= {part.device for part in flat(value) if isinstance(part, torch.Tensor)}
        if self.replayed is not None:
            first = next(self.replayed, None)
            if first is None:
                raise Unsupported("a checkpointed region that draws more random numbers when it runs again")
            node.meta["replays"] = first.name
        elif self.random is not None:
            self.random.append(node)


def is_complex(results: Any) -> bool:
    return any(part.is_complex() for part in results)


def switches() -> tuple[torch.dtype, bool]:
    """What operations depend on besides their arguments, and programs may change in between."""
    return torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
