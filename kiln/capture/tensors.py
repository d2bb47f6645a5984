"""Tensors: graph inputs, recording an operation as a graph node, and what an operation's results mean.

An operation runs on fake tensors to learn shape, dtype and aliasing, and becomes one node: torch functions and
operators ``call_function``, methods ``call_method``, as in every fx graph. What comes out without a tensor in it
(sizes, dtypes, flags) is a plain value that the tensor guards already pin down.
"""

from __future__ import annotations

import contextlib
import operator
import re
import types
from collections.abc import Iterator

import torch
import torch.fx
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

from .guards import TensorGuard
from .source import Attribute, Source
from .symbols import concrete, dynamic_dimensions, fake_input, guard_strides, is_symbolic, symbol_node
from .trace import Trace
from .values import (
    CONSTANT_TYPES,
    GraphBreak,
    Lazy,
    Opaque,
    Raised,
    TensorInfo,
    Trampoline,
    new_tuple,
    plain_value,
    words,
)

TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


# -- graph inputs ---------------------------------------------------------------------------------------------------


def wrap_tensor(trace: Trace, real: torch.Tensor, source: Source) -> object:
    """A tensor from outside becomes a graph input."""
    from .overrides import is_overriding

    known = trace.by_real.get(id(real))
    if known is not None:
        if known.source != source:
            trace.guards.add(source, "same", known.source)
        return known.shadow
    if type(real) not in (torch.Tensor, torch.nn.Parameter) and not plain_subclass(type(real)):
        trace.name_source(real, source)
        raise trace.fail(
            f"a tensor of class {type(real).__qualname__}, which defines __torch_dispatch__ or is not a plain tensor",
            "keep such tensors out of compiled code",
        )
    if is_unusual(real):
        raise trace.fail("a sparse, quantized or nested tensor", "call the code that uses it outside kiln.compile")
    trace.overriding |= is_overriding(type(real))
    dynamic = dynamic_dimensions(trace, real, source)
    fake = fake_input(trace, real, source, dynamic)
    strides = dynamic is None or guard_strides(trace, fake, source)
    trace.guards.tensors.append(TensorGuard(source, real, dynamic, strides))
    node = add_placeholder(trace, source)
    node.meta["example_value"] = fake
    info = TensorInfo(fake, node, type(real), source, real)
    trace.inputs.append(info)
    trace.add_tensor(info)
    trace.guards.distinct.setdefault(source)
    trace.by_real[id(real)] = TensorRecord(fake, source, real)  # type: ignore[assignment]
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


def plain_subclass(kind: type) -> bool:
    """A subclass that only adds Python attributes or ``__torch_function__``."""
    return "__torch_dispatch__" not in {name for k in kind.__mro__ if k is not torch.Tensor for name in vars(k)} or (
        kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    )


def add_placeholder(trace: Trace, source: Source) -> torch.fx.Node:
    name = re.sub(r"\W+", "_", source.describe()).strip("_").lower() or "input"
    anchor = trace.inputs[-1].node if trace.inputs else None
    if anchor is None:
        first = next(iter(trace.graph.nodes), None)
        if first is None:
            return trace.graph.placeholder(name)
        with trace.graph.inserting_before(first):
            return trace.graph.placeholder(name)
    with trace.graph.inserting_after(anchor):
        return trace.graph.placeholder(name)


# -- recording ------------------------------------------------------------------------------------------------------


def record(trace: Trace, function: object, args: tuple, kwargs: dict, *, method: str | None = None) -> object:
    """Run an operation on fakes and add its node."""
    args, kwargs = prepare(trace, args), prepare(trace, kwargs)
    leaves = tensor_leaves((args, kwargs))
    versions = [version(leaf) for leaf in leaves]
    try:
        result = run_fake(trace, function, args, kwargs)
    except GraphBreak:
        if not has_symbolic_float((args, kwargs)):
            raise
        args, kwargs = plain_floats(trace, args), plain_floats(trace, kwargs)  # an operation that needs the number
        result = run_fake(trace, function, args, kwargs)
    if not needs_node(function, result, leaves):
        return result
    if any(is_unusual(leaf) for leaf in tensor_leaves(result)):
        raise trace.fail(f"{function_name(function)} makes a sparse, quantized or nested tensor")
    changed = [leaf for leaf, before in zip(leaves, versions, strict=True) if version(leaf) != before]
    note_effects(trace, function, leaves, changed)
    target = method if method is not None else function
    kind = "call_method" if method is not None else "call_function"
    node = trace.graph.create_node(kind, target, to_nodes(trace, args), to_nodes(trace, kwargs))
    node.meta["stack_trace"] = trace.stack_trace()
    node.meta["example_value"] = result
    return adopt(trace, result, node)


def has_symbolic_float(value: object) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(has_symbolic_float(item) for item in value)
    return isinstance(value, torch.SymFloat)


def plain_floats(trace: Trace, value: object) -> object:
    """Arguments with the floats they have in this call, which are guarded by that."""
    if isinstance(value, dict):
        return {key: plain_floats(trace, item) for key, item in value.items()}
    if isinstance(value, tuple):
        return value if type(value) is torch.Size else new_tuple(type(value), [plain_floats(trace, v) for v in value])
    if isinstance(value, list):
        return [plain_floats(trace, item) for item in value]
    return concrete(trace, value) if isinstance(value, torch.SymFloat) else value


def prepare(trace: Trace, value: object) -> object:
    """Arguments with everything looked at, as plain containers that torch understands."""
    from .wrap import force

    value = force(trace, value)
    kind = type(value)
    if kind in CONSTANT_TYPES or isinstance(value, torch.Tensor) or isinstance(value, TORCH_CONSTANTS):
        return value
    if isinstance(value, tuple):
        return value if kind is torch.Size else new_tuple(kind, [prepare(trace, item) for item in value])
    if isinstance(value, list):
        return [prepare(trace, item) for item in value]
    if isinstance(value, dict):
        return {key: prepare(trace, item) for key, item in value.items()}
    if kind is slice:
        return slice(*(prepare(trace, part) for part in (value.start, value.stop, value.step)))
    if is_symbolic(value) or isinstance(value, Opaque):
        return value
    if isinstance(value, GRAPH_CONSTANTS):
        return value
    if isinstance(value, int | float | complex | str):
        return plain_value(value)
    if isinstance(value, Trampoline):
        return value.function
    if isinstance(value, set | frozenset):
        return kind(prepare(trace, item) for item in value)
    raise trace.fail(
        f"a torch function called with a {type(value).__module__}.{type(value).__qualname__} object",
        "pass it tensors, numbers, strings and containers of these, or call it outside the compiled function",
    )


GRAPH_CONSTANTS = (type, types.BuiltinFunctionType, torch._ops.OpOverload, types.MethodDescriptorType)


def run_fake(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """Run on fakes. What goes wrong here is left to the real operation: it raises eager's own error, or works."""
    try:
        with trace.environment.mode:
            return function(*args, **kwargs)  # type: ignore[operator]
    except (GraphBreak, Raised):
        raise
    except Exception as error:
        raise fake_failure(trace, function_name(function), error) from error


NEEDS_VALUES = frozenset({"DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"})


def fake_failure(trace: Trace, name: str, error: Exception) -> GraphBreak:
    """The break for an operation that fails on fakes; torch's classes are told by name, their modules load slowly."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & NEEDS_VALUES:
        return trace.fail(
            f"{name} needs a tensor's values, not only its shape",
            "keep it outside the compiled function, or use an operation whose output shape does not depend on data",
        )
    if "UnsupportedOperatorException" in kinds:
        return trace.fail(f"{name} has no shape rule (no fake or meta implementation)")
    text = str(error).strip().split("\n", 1)[0]  # the rest is torch's list of backends, or advice about its compiler
    return trace.fail(f"{name} fails on these arguments: {type(error).__name__}: {text}", error=error)


def function_name(function: object) -> str:
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or str(function)
    name = name.replace("_VariableFunctionsClass.", "").replace("TensorBase.", "Tensor.")
    module = getattr(function, "__module__", None) or ""
    return f"{module}.{name}" if module.startswith("torch") and not name.startswith("torch") else name


def tensor_leaves(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple | set | frozenset):
        return [leaf for item in value for leaf in tensor_leaves(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in tensor_leaves(item)]
    if isinstance(value, slice):
        return tensor_leaves((value.start, value.stop, value.step))
    return []


def needs_node(function: object, result: object, leaves: list[torch.Tensor]) -> bool:
    """Whether the call does or makes something at run time: it returns a tensor, or nothing at all."""
    if isinstance(result, Opaque) or function in EFFECTS:
        return True
    return bool(tensor_leaves(result)) or (result is None and bool(leaves)) or (result == [] and bool(leaves))


EFFECTS: set[object] = set()  # operations kept for what they do (set by calls.py)

RANDOM = re.compile(
    r"rand|dropout|bernoulli|multinomial|normal|uniform|exponential|geometric|cauchy|poisson|rrelu|binomial|gumbel"
    r"|standard_gamma|dirichlet|lowrank|lstm|gru|rnn|attention|fractional_max_pool|seed"
)

# They change their running statistics without a mark on the tensor.
CHANGES_UNMARKED = re.compile(r"batch_norm|instance_norm|_fq_helper|fake_quant")


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; inference tensors do not count."""
    return -1 if tensor.is_inference() else tensor._version


def note_effects(trace: Trace, function: object, leaves: list[torch.Tensor], changed: list[torch.Tensor]) -> None:
    """Remember what makes running the frame again in eager different: random numbers, inputs that were changed."""
    name = getattr(function, "__name__", None) or str(function)
    if CHANGES_UNMARKED.search(name):
        changed = leaves
    elif is_named_in_place(name):  # where nothing is counted, the name must do
        changed = changed + [leaf for leaf in leaves[:1] if leaf.is_inference()]
    touched = changed_inputs(trace, changed) if changed else {}
    reasons = [f"{name} changes a tensor from outside"] if touched else []
    if RANDOM.search(name):
        reasons.append(f"{name} draws random numbers")
    may_raise = name.rstrip("_") not in NEVER_RAISE
    protected = may_raise and any(frame.protected() for frame in trace.frames)
    if (protected and (reasons or trace.effects)) or (reasons and trace.protected):
        # Should the graph raise inside the try block, eager takes over from the start: nothing may have happened yet.
        raise trace.fail(
            f"{(reasons or trace.effects)[0]} in a graph whose operations may raise inside a try block",
            "keep in-place operations on arguments and random numbers away from the try block",
        )
    trace.raises_late |= may_raise and bool(trace.effects or reasons)
    trace.effects += reasons
    trace.changed |= touched
    trace.protected |= protected


def changed_inputs(trace: Trace, changed: list[torch.Tensor]) -> dict[int, TensorInfo]:
    """The graph's inputs that share memory with tensors that were changed."""
    keys = {storage_key(tensor) for tensor in changed}
    inputs = [item for item in trace.inputs if isinstance(item, TensorInfo)]
    return {id(item.fake): item for item in inputs if storage_key(item.fake) in keys}


# Operations that do not look at values, so that what raises in eager has raised on fakes already.
NEVER_RAISE = words(
    "add sub mul truediv neg pow exp log sin cos tan tanh sigmoid relu gelu silu sqrt rsqrt abs clamp where sum mean "
    "var std max min amax amin argmax argmin matmul mm bmm linear conv1d conv2d conv3d softmax log_softmax view "
    "reshape permute transpose t squeeze unsqueeze expand flatten cat stack chunk split unbind clone detach "
    "contiguous to float double half int long bool zeros ones full empty zeros_like ones_like full_like empty_like "
    "rand randn rand_like randn_like arange eye tensor getattr eq ne lt le gt ge dropout layer_norm batch_norm iadd "
    "isub imul itruediv ipow fill zero copy uniform normal requires_grad div maximum minimum square cumsum"
)


def is_named_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name in IN_PLACE_OPERATORS


IN_PLACE_OPERATORS = words("setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor __setitem__")


def storage_key(tensor: torch.Tensor) -> int:
    """What tells whether two tensors share memory."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata


def to_nodes(trace: Trace, value: object) -> object:
    """Arguments as fx wants them: nodes for tensors and symbolic numbers."""
    if isinstance(value, torch.Tensor):
        return trace.tensor_info(value).node
    if isinstance(value, Opaque):
        return value.node
    if is_symbolic(value):
        return symbol_node(trace, value)
    kind = type(value)
    if kind is tuple or kind is torch.Size:
        return tuple([to_nodes(trace, item) for item in value])
    if isinstance(value, tuple):  # named tuples, torch.return_types
        return kind(*(to_nodes(trace, item) for item in value)) if hasattr(kind, "_fields") else tuple(value)
    if kind is list:
        return [to_nodes(trace, item) for item in value]
    if kind is dict:
        return {key: to_nodes(trace, item) for key, item in value.items()}
    if kind is slice:
        return slice(*(to_nodes(trace, part) for part in (value.start, value.stop, value.step)))
    if isinstance(value, UNPRINTABLE):
        return constant_node(trace, value)
    return value


# What has no text that makes it again: the graph module has it as an attribute.
UNPRINTABLE = (type, types.BuiltinFunctionType, types.MethodDescriptorType)


def constant_node(trace: Trace, value: object) -> torch.fx.Node:
    """A graph value that is always this object."""
    name = next((name for name, known in trace.constants.items() if known is value), None)
    if name is None:
        name = f"constant_{len(trace.constants)}"
        trace.constants[name] = value
    return trace.graph.get_attr(name)


def adopt(trace: Trace, result: object, node: torch.fx.Node) -> object:
    """Connect the tensors in a result with the node that makes them."""
    if isinstance(result, torch.Tensor):
        if id(result) in trace.tensors:  # an in-place operation or out=: still the same tensor
            return result
        kind = torch.nn.Parameter if isinstance(result, torch.nn.Parameter) else torch.Tensor
        return trace.add_tensor(TensorInfo(result, node, kind))
    if isinstance(result, Opaque):
        result.node = node
        trace.keep.append(result)
        return result
    if isinstance(result, list | tuple):
        for index, item in enumerate(result):
            if tensor_leaves(item) and not (isinstance(item, torch.Tensor) and id(item) in trace.tensors):
                part = trace.graph.call_function(operator.getitem, (node, index))
                part.meta["example_value"] = item
                adopt(trace, item, part)
    elif isinstance(result, dict):
        for key, item in result.items():
            if tensor_leaves(item):
                adopt(trace, item, trace.graph.call_function(operator.getitem, (node, key)))
    return result


class RecordMode(TorchFunctionMode):
    """Active while native code runs on shadows: an operation reached from inside it is recorded like any other."""

    def __init__(self, trace: Trace):
        super().__init__()
        self.trace = trace

    def __torch_function__(self, function, types, args=(), kwargs=None):
        from .raising import as_native
        from .torch_calls import call_torch

        with as_native(self.trace):
            return call_torch(self.trace, function, tuple(args), kwargs or {})


@contextlib.contextmanager
def back_from_native() -> Iterator[None]:
    """While native code calls back into the interpreter, operations are again the interpreter's own."""
    mode = _get_current_function_mode()
    if isinstance(mode, RecordMode):
        with _pop_mode_temporarily():
            yield
    else:
        yield


# -- attributes -----------------------------------------------------------------------------------------------------

NODE_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})

PLAIN_ATTRIBUTES = words(
    "shape dtype device ndim requires_grad is_leaf layout itemsize nbytes is_cuda is_cpu is_sparse is_mkldnn is_meta "
    "is_mps is_xpu is_quantized is_nested is_sparse_csr is_vulkan is_ipu is_xla is_maia is_mtia names retains_grad "
    "_is_param _backward_hooks output_nr __torch_function__ __torch_dispatch__ __array_priority__ __doc__ __module__ "
    "__class__ __hash__"
)


def tensor_attribute(trace: Trace, tensor: torch.Tensor, name: str) -> object:
    """``tensor.name`` for what is not a method."""
    info = trace.tensor_info(tensor)
    if name in info.attributes:
        return info.attributes[name]
    if name == "grad":
        return tensor_grad(trace, info)
    if name in NODE_ATTRIBUTES:
        return record(trace, getattr, (tensor, name), {})
    if name == "__class__":
        return info.kind
    if name == "grad_fn" and tensor.grad_fn is None and (info.source is None or info.real.grad_fn is None):
        return None
    if name == "retains_grad" and info.source is not None:
        raise trace.fail("reading retains_grad of an input")
    if name in PLAIN_ATTRIBUTES:
        return plain_attribute(tensor, name)
    if name in ("__dict__", "grad_fn", "_version", "_grad", "_base", "_backward_hooks", "_post_accumulate_grad_hooks"):
        raise trace.fail(f"reading {name} of a tensor", "read it outside the compiled function")
    return python_attribute(trace, info, name)


def plain_attribute(tensor: torch.Tensor, name: str) -> object:
    try:
        return getattr(tensor, name)
    except AttributeError:
        raise Raised(AttributeError(f"'Tensor' object has no attribute '{name}'")) from None


def tensor_grad(trace: Trace, info: TensorInfo) -> object:
    from .wrap import wrap

    if info.source is None:
        if info.fake.is_leaf and info.fake.grad is None:
            return None
        raise trace.fail("reading .grad of a tensor made inside the compiled function")
    return wrap(trace, info.real.grad, Attribute(info.source, "grad"))


def python_attribute(trace: Trace, info: TensorInfo, name: str) -> object:
    """An attribute that the program (or its owner) put on the tensor, or a Python method of its class."""
    from .attributes import bind_class_attribute
    from .source import InstanceAttribute
    from .wrap import class_attribute

    namespace = getattr(info.real, "__dict__", None) or {}
    raw = class_attribute(trace, info.kind, name)
    if name in namespace and not hasattr(type(raw), "__set__"):
        return Lazy(namespace[name], InstanceAttribute(info.source, name))
    if info.source is not None:
        trace.guards.add(info.source, "no_attribute", name)
    if raw is None:
        raise Raised(AttributeError(f"'{info.kind.__name__}' object has no attribute '{name}'"))
    return bind_class_attribute(trace, info.fake, info.kind, name, raw)


def set_tensor_attribute(trace: Trace, tensor: torch.Tensor, name: str, value: object) -> None:
    info = trace.tensor_info(tensor)
    if name == "requires_grad":
        record(trace, torch.Tensor.requires_grad_, (tensor, concrete(trace, value)), {}, method="requires_grad_")
    elif name == "grad" or not hasattr(torch.Tensor, name):
        info.attributes[name] = value
        info.grad_set = True
    else:
        raise trace.fail(f"assigning to .{name} of a tensor", "do it outside the compiled function")
