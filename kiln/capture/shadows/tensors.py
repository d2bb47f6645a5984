"""Tensors: graph inputs, recording an operation as a graph node, and what an operation's results mean.

An operation runs on fake tensors to learn shape, dtype and aliasing, and becomes one node: torch functions and
operators ``call_function``, methods ``call_method``, as in every fx graph. What comes out without a tensor in it
(sizes, dtypes, flags) is a plain value that the tensor guards already pin down.
"""

from __future__ import annotations

import contextlib
import enum
import keyword
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch import is_grad_enabled  # the program may put another function in its place
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE, mapping_items, plain_value
from ...platform.torch_autograd import is_any_autocast_enabled
from ...platform.torch_dispatch import current_function_mode, disabled_torch_dispatch, without_function_mode
from ...platform.torch_functions import assert_async
from ...platform.torch_operators import OpOverload, OpOverloadPacket
from ...program.graph import exact_constant
from ...program.graph_meta import set_input_state
from ...program.shapes.shape_rules import shape_rule
from ...program.shapes.symbolic_kernels import symbolic_kernels
from ..guards.descriptions import module_of
from ..guards.guards import TensorGuard
from ..guards.source import Attribute, Source, getattr_static_dict
from ..guards.tensor_class import original_method
from ..state.exceptions import needs_real
from ..state.graph_inputs import ObjectInput
from ..state.operations import Args, Kwargs, operation, operations
from ..state.trace import Trace
from ..state.values import (
    CONSTANT_TYPES,
    GraphBreak,
    HandleNumber,
    Opaque,
    Raised,
    TensorInfo,
    Trampoline,
    forget_frames,
    new_tuple,
)
from .input_state import input_state
from .saved_tensor_changes import note_change_by_hook
from .symbolic_numbers import (
    concrete,
    dynamic_dimensions,
    fake_input,
    guard_strides,
    is_symbolic,
    may_override,
    symbol_node,
)
from .tensor_effects import check_apart, note_effects, version
from .wrap import force

NOT_WORD = re.compile(r"\W+")

TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
TORCH_VALUES = (torch.Tensor, *TORCH_CONSTANTS)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


# -- graph inputs ---------------------------------------------------------------------------------------------------


@operation
def wrap_tensor(trace: Trace, real: torch.Tensor, source: Source) -> object:
    """A tensor from outside becomes a graph input."""

    known = trace.outside.by_real.get(id(real))
    if known is not None:
        if known.source != source:
            trace.guards.add(source, "same", known.source)
        return known.shadow
    if type(real) not in (torch.Tensor, Parameter) and not plain_subclass(type(real)):
        trace.outside.name_source(real, source)
        raise trace.fail(
            f"a tensor of class {type(real).__qualname__}, which defines __torch_dispatch__ or is not a plain tensor",
            "keep such tensors out of compiled code",
        )
    if type(real) not in (torch.Tensor, Parameter):
        operations.check_input(trace, type(real))
    if torch.nn.parameter.is_lazy(real):
        raise trace.fail("a parameter that is not initialised yet")
    if is_unusual(real):
        reason = trace.fail("a sparse, quantized or nested tensor", "call the code that uses it outside kiln.compile")
        raise needs_real(trace, reason)
    check_apart(trace, real)
    trace.overrides.has_overriding |= operations.is_overriding(type(real))
    dynamic = dynamic_dimensions(trace, real, source)
    inference = real.is_inference()
    same = inference == torch.is_inference_mode_enabled()
    with contextlib.nullcontext() if same else torch.inference_mode(inference):
        fake = fake_input(trace, real, source, dynamic)
    strides = dynamic is None or guard_strides(trace, fake, source, may_override(real))
    trace.guards.tensors.append(TensorGuard(source, real, dynamic, strides))
    node = add_placeholder(trace, source)
    node.meta["example_value"] = fake
    set_input_state(node, input_state(trace, real, fake))
    info = TensorInfo(fake, node, type(real), source, real)
    trace.inputs.items.append(info)
    trace.add_tensor(info)
    if fake.grad_fn is not None:
        trace.autograd.origins[fake.grad_fn] = info
    trace.guards.distinct.setdefault(source)
    trace.outside.by_real[id(real)] = TensorRecord(fake, source, real)
    return fake


def is_unusual(tensor: torch.Tensor) -> bool:
    """Tensors that fakes do not tell the truth about."""
    return tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.dtype in QUANTIZED


QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})


class TensorRecord:
    """Just enough of a record for ``wrap`` to see that a real tensor is known."""

    __slots__ = ("real", "shadow", "source")

    def __init__(self, shadow: object, source: Source, real: object):
        self.shadow, self.source, self.real = shadow, source, real


def plain_subclass(kind: Any) -> bool:
    """A subclass that only adds Python attributes or ``__torch_function__``."""
    return "__torch_dispatch__" not in {name for k in kind.__mro__ if k is not torch.Tensor for name in vars(k)} or (
        kind.__torch_dispatch__ is disabled_torch_dispatch
    )


@operation
def add_placeholder(trace: Trace, source: Source) -> torch.fx.Node:
    """A new graph input, after those there are."""
    name = NOT_WORD.sub("_", source.describe()).strip("_").lower() or "input"
    anchor = trace.inputs.items[-1].node if trace.inputs.items else None
    with trace.graph.inserting_before() if anchor is None else trace.graph.inserting_after(anchor):
        node = trace.graph.placeholder(name)
    node.target = node.name  # unique, which descriptions need not be
    return node


# -- recording ------------------------------------------------------------------------------------------------------


def record(
    trace: Trace, function: object, args: Args, kwargs: Kwargs, *, method: str | None = None, exact: bool = False
) -> Any:
    """Run an operation on fakes and add its node. ``exact``: it is the program's code, and may look at classes."""
    args, kwargs = prepare(trace, args, exact), prepare(trace, kwargs, exact)
    kwargs = {key: as_tensor(trace, function, key, value) for key, value in kwargs.items()}
    leaves = tensor_leaves((args, kwargs))
    versions = [version(leaf) for leaf in leaves]
    try:
        result = run_fake(trace, function, args, kwargs)
    except GraphBreak:
        if not has_symbolic_float((args, kwargs)):
            raise
        args, kwargs = plain_floats(trace, args), plain_floats(trace, kwargs)  # an operation that needs the number
        result = run_fake(trace, function, args, kwargs)
    if not needs_node(trace, function, result, leaves):
        return result
    if any(is_unusual(leaf) for leaf in tensor_leaves(result)):
        raise needs_real(trace, trace.fail(f"{function_name(function)} makes a sparse, quantized or nested tensor"))
    changed = [leaf for leaf, before in zip(leaves, versions, strict=True) if version(leaf) != before]
    note_effects(trace, function, args, kwargs, leaves, changed)
    if trace.inputs.examples is not None:
        note_change_by_hook(trace, leaves, changed)
    target = method if method is not None else graph_target(function)
    kind = "call_method" if method is not None else "call_function"
    given = to_nodes(trace, args, exact), to_nodes(trace, kwargs, exact)
    if kwargs and not all(map(is_parameter_name, kwargs)):
        kind, target, given = "call_function", call_with_names, ((constant_node(trace, function), *given), {})
    node = trace.graph.create_node(kind, target, *given)
    node.meta["stack_trace"] = trace.stack_trace()
    node.meta["example_value"] = result
    return add_results(trace, result, node)


def is_parameter_name(name: str) -> bool:
    """Whether the text of a graph can give an argument by this name: ``random_(from=0)`` is none."""
    return name.isidentifier() and not keyword.iskeyword(name)


def call_with_names(function: Callable[..., object], args: Args, names: dict[str, object]) -> object:
    """A call in a graph with names that have no place in a Python text."""
    return function(*args, **names)


def graph_target(function: object) -> object:
    """What a node calls. A method that tensors no longer have (something was put in its place) has no name in text."""
    if type(function) is not types.MethodDescriptorType or getattr(torch.Tensor, function.__name__, None) is function:
        return function

    def replaced_method(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return replaced_method


def has_symbolic_float(value: object) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(has_symbolic_float(item) for item in value)
    return isinstance(value, torch.SymFloat)


def as_tensor(trace: Trace, function: object, name: str, value: object) -> object:
    """A float that varies, for an operator that only takes a known one, or else a tensor: an optimizer's rate."""
    if not isinstance(value, torch.SymFloat):
        return value
    packet = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
    if getattr(packet, f"tensor_{name}", None) is None:
        return value
    return record(trace, torch.scalar_tensor, (value,), {"dtype": torch.float64})


def plain_floats(trace: Trace, value: object) -> Any:
    """Arguments with the floats they have in this call, which are guarded by that."""
    if isinstance(value, dict):
        return {key: plain_floats(trace, item) for key, item in value.items()}
    if isinstance(value, tuple):
        return (
            value
            if type(value) is torch.Size
            else new_tuple(type(value), [plain_floats(trace, v) for v in tuple.__iter__(value)])
        )
    if isinstance(value, list):
        return [plain_floats(trace, item) for item in value]
    return concrete(trace, value) if isinstance(value, torch.SymFloat) else value


def prepare(trace: Trace, value: Any, exact: bool = False) -> Any:
    """Arguments with everything looked at, as plain containers and numbers that torch understands.

    The program's own functions see more than torch does: for them (``exact``) values keep their classes.
    """
    value = force(trace, value)
    kind: Any = type(value)
    if kind in CONSTANT_TYPES or isinstance(value, TORCH_VALUES):
        return value
    if exact and kind not in PLAIN_CLASSES and isinstance(value, SUBCLASSED):
        check_exact(trace, value)
    if isinstance(value, (list, tuple, set, frozenset)) and kind.__flags__ & HEAP_TYPE:
        check_sequence(trace, kind)
    if isinstance(value, tuple):
        if kind is torch.Size:
            return value
        return new_tuple(kind, [prepare(trace, item, exact) for item in tuple.__iter__(value)])
    if isinstance(value, list):
        return [prepare(trace, item, exact) for item in list.__iter__(value)]
    if isinstance(value, dict):
        items = value.items() if kind is dict else mapping_items(value)
        return {key: prepare(trace, item, exact) for key, item in items}
    if kind is slice:
        return slice(*(prepare(trace, part, exact) for part in (value.start, value.stop, value.step)))
    if kind is torch.SymBool:  # a flag of an operation
        return concrete(trace, value)
    if is_symbolic(value) or isinstance(value, Opaque):
        return value
    if isinstance(value, GRAPH_CONSTANTS):
        return value
    if isinstance(value, torch.Generator) and trace.outside.source_of(value) is not None:
        return value
    if kind is HandleNumber:
        raise trace.fail("a torch function called with the number of a hook that is not registered yet")
    if isinstance(value, (int, float, complex, str)):
        return value if exact else plain_value(value)
    if isinstance(value, Trampoline):
        return value.function
    if isinstance(value, (set, frozenset)):
        return kind(prepare(trace, item, exact) for item in value)
    raise trace.fail(
        f"a torch function called with a {type(value).__module__}.{type(value).__qualname__} object",
        "pass it tensors, numbers, strings and containers of these, or call it outside the compiled function",
    )


def check_sequence(trace: Trace, kind: type) -> None:
    """torch reads a sequence through the methods of its class, some of them past ``__iter__``."""
    from .native_arguments import python_methods

    override = next((name for name in python_methods(kind) if name in ("__getitem__", "__len__", "__iter__")), None)
    if override is not None:
        raise trace.fail(f"a torch function called with a {kind.__qualname__}, whose {override} is Python code")


# Classes with subclasses that the program may tell apart, and those of them that a graph holds as they are.
SUBCLASSED = (int, float, complex, str, tuple, list, dict)
PLAIN_CLASSES = frozenset({*SUBCLASSED, bool, torch.Size})


def check_exact(trace: Trace, value: object) -> None:
    """Break unless a graph can make this instance of a subclass again, with its class and all that it holds."""
    attributes = getattr_static_dict(value)
    if isinstance(value, enum.Enum) or (isinstance(value, (int, float, complex, str, tuple)) and not attributes):
        return
    name = type(value).__qualname__
    raise trace.fail(f"a function in the graph called with a {name}, which the graph cannot make again")


GRAPH_CONSTANTS = (type, types.BuiltinFunctionType, OpOverload, types.MethodDescriptorType)


READ_LISTS: frozenset[object] = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor, torch.Tensor.new}
    | {torch.Tensor.__setitem__, torch.Tensor.__getitem__, operator.setitem, operator.getitem}
)
"""Functions that read the numbers of tensors in lists. Of fakes they cannot; of conjugated ones they try, and crash."""


def refuse_unresolved(trace: Trace, args: Args) -> None:
    pending = [arg for arg in args if isinstance(arg, (list, tuple))]
    while pending:
        for item in pending.pop():
            if isinstance(item, (list, tuple)):
                pending.append(item)
            elif isinstance(item, torch.Tensor) and (item.is_neg() or item.is_conj()):
                raise trace.fail("the value of a conjugated or negated tensor in a list")


def run_fake(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run on fakes. What goes wrong here is left to the real operation: it raises eager's own error, or works."""
    if function in READ_LISTS:
        refuse_unresolved(trace, (*args, *kwargs.values()))
    rule = shape_rule(function, args, kwargs)
    trace.autograd.approximate_history |= rule is not None
    try:
        with trace.fakes.mode, symbolic_kernels(bool(trace.inputs.symbols)):
            if rule is None and type(function) is OpOverload and is_below_autograd((args, kwargs)):
                from ...program.shapes import shape_cache  # which loads torch's fake tensors

                return shape_cache.run(function, args, kwargs)
            return (rule or function)(*args, **kwargs)
    except (GraphBreak, Raised):
        raise
    except Exception as error:
        raise fake_failure(trace, function_name(function), error) from error


def is_below_autograd(arguments: tuple[Any, ...]) -> bool:
    """Whether an operator does no more than its kernel: no history, no casts."""
    recorded = is_grad_enabled() and any(leaf.requires_grad for leaf in tensor_leaves(arguments))
    return not recorded and not is_any_autocast_enabled()


NEEDS_VALUES = frozenset({"DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"})


def fake_failure(trace: Trace, name: str, error: Exception) -> GraphBreak:
    """The break for an operation that fails on fakes; torch's classes are told by name, their modules load slowly."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & NEEDS_VALUES:
        return trace.fail(
            f"{name}: it needs a tensor's values, not only its shape",
            "keep it outside the compiled function, or use an operation whose output shape does not depend on data",
        )
    if "UnsupportedOperatorException" in kinds:
        return trace.fail(
            f"{name}: it has no shape rule (no fake or meta implementation)",
            "give it one (torch.library.register_fake)",
        )
    if not trace.options.fullgraph:  # where it is the cause of an error that users see
        forget_frames(error)
    text = str(error).strip().split("\n", 1)[0]  # the rest is torch's list of backends, or advice about its compiler
    return trace.fail(f"{name}: it fails on these arguments: {type(error).__name__}: {text}", error=error)


def function_name(function: object) -> str:
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or str(function)
    name = name.replace("_VariableFunctionsClass.", "").replace("TensorBase.", "Tensor.")
    module = getattr(function, "__module__", None) or ""
    return f"{module}.{name}" if module.startswith("torch") and not name.startswith("torch") else name


def tensor_leaves(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [leaf for item in value if type(item) not in CONSTANT_TYPES for leaf in tensor_leaves(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in tensor_leaves(item)]
    if isinstance(value, slice):
        return tensor_leaves((value.start, value.stop, value.step))
    return []


def needs_node(trace: Trace, function: object, result: object, leaves: list[torch.Tensor]) -> bool:
    """Whether the call does or makes something at run time: it returns a tensor, or nothing at all."""
    if isinstance(result, Opaque) or function in EFFECTS or tensor_leaves(result):
        return True
    empty = result is None or result == []
    if is_of_user(function):
        if empty:
            return True
        raise trace.fail(
            f"{function_name(function)}, which gives neither a tensor nor None",
            "call it outside the compiled function, or have it give a tensor",
        )
    return empty and bool(leaves)


def is_of_user(function: object) -> bool:
    """Whether a leaf of the graph is code that torch does not have: it may do anything."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return not str(function).startswith(("aten", "prim"))
    return isinstance(function, types.FunctionType) and not module_of(function).startswith("torch")


EFFECTS: set[object] = {assert_async}
"""Operations kept for what they do."""


def to_nodes(trace: Trace, value: Any, exact: bool = False) -> Any:
    """Arguments as fx wants them: nodes for tensors, symbolic numbers, and (``exact``) instances of subclasses."""
    if isinstance(value, torch.Tensor):
        return trace.tensor_info(value).node
    if isinstance(value, Opaque):
        return value.node
    if is_symbolic(value):
        return symbol_node(trace, value)
    kind = type(value)
    if isinstance(value, tuple):
        if kind is tuple:
            return tuple([to_nodes(trace, item, exact) for item in value])
        return tuple_node(trace, value, exact)
    if kind is list:
        return [to_nodes(trace, item, exact) for item in value]
    if kind is dict:
        return {key: to_nodes(trace, item, exact) for key, item in value.items()}
    if kind is slice:
        return slice(*(to_nodes(trace, part, exact) for part in (value.start, value.stop, value.step)))
    if isinstance(value, UNPRINTABLE) or (exact and kind not in PLAIN_CLASSES and isinstance(value, SUBCLASSED)):
        return constant_node(trace, value)
    if isinstance(value, torch.Generator):
        return generator_node(trace, value)
    return exact_constant(trace.graph, value) if kind is complex else value


def tuple_node(trace: Trace, value: tuple[Any, ...], exact: bool) -> object:
    """A tuple for fx, which knows tuples and named tuples: to torch's operations other subclasses are the same."""
    kind = type(value)
    items = [to_nodes(trace, item, exact) for item in tuple.__iter__(value)]
    if kind is tuple:
        return tuple(items)
    if hasattr(kind, "_fields") and kind.__base__ is tuple:
        return kind(*items)
    if not exact:
        return tuple(items)
    if kind is torch.Size:
        return trace.graph.call_function(torch.Size, (items,))
    return trace.graph.call_function(new_tuple, (constant_node(trace, kind), items))


# What has no text that makes it again: the graph module has it as an attribute.
UNPRINTABLE = (type, types.BuiltinFunctionType, types.MethodDescriptorType)


def generator_node(trace: Trace, generator: torch.Generator) -> torch.fx.Node:
    """A random generator from outside is a graph input, like a tensor."""
    known = next((item for item in trace.inputs.items if getattr(item, "value", None) is generator), None)
    if known is not None:
        return known.node
    source = trace.outside.pinned(generator)
    trace.guards.add(source, "type", torch.Generator)
    trace.guards.add(Attribute(source, "device"), "constant", generator.device)
    made = ObjectInput(source, add_placeholder(trace, source), generator)
    made.node.meta["example_value"] = generator
    trace.inputs.items.append(made)
    return made.node


def constant_node(trace: Trace, value: object) -> torch.fx.Node:
    """A graph value that is always this object."""
    name = next((name for name, known in trace.inputs.constants.items() if known is value), None)
    if name is None:
        name = f"constant_{len(trace.inputs.constants)}"
        trace.inputs.constants[name] = value
    return trace.graph.get_attr(name)


def add_results(trace: Trace, result: object, node: torch.fx.Node) -> object:
    """Connect the tensors in a result with the node that makes them."""
    if isinstance(result, torch.Tensor):
        if id(result) in trace.fakes.infos:  # an in-place operation or out=: still the same tensor
            return result
        kind = Parameter if isinstance(result, Parameter) else torch.Tensor
        return trace.add_tensor(TensorInfo(result, node, kind))
    if isinstance(result, Opaque):
        result.node = node
        trace.outside.keep.append(result)
        return result
    if isinstance(result, (list, tuple)):
        for index, item in enumerate(result):
            if tensor_leaves(item) and not (isinstance(item, torch.Tensor) and id(item) in trace.fakes.infos):
                part = trace.graph.call_function(operator.getitem, (node, index))
                part.meta["example_value"] = item
                add_results(trace, item, part)
    elif isinstance(result, dict):
        for key, item in result.items():
            if tensor_leaves(item):
                add_results(trace, item, trace.graph.call_function(operator.getitem, (node, key)))
    return result


class RecordMode(TorchFunctionMode):
    """Active while native code runs on shadows: an operation reached from inside it is recorded like any other."""

    def __init__(self, trace: Trace):
        super().__init__()
        self.trace = trace

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from ..state.exceptions import as_native

        with as_native(self.trace):
            return operations.call_torch(self.trace, original_method(function), tuple(args), kwargs or {})


@operation
@contextlib.contextmanager
def back_from_native() -> Iterator[None]:
    """While native code calls back into the interpreter, operations are again the interpreter's own."""
    mode = current_function_mode()
    if isinstance(mode, RecordMode):
        with without_function_mode():
            yield
    else:
        yield
