"""What Kiln takes for granted about torch and CPython without their promise, and a small program that tries each.

The results of these programs are known: what Kiln reads by layout, by mangled names or through private names is
compared with what torch shows publicly. Nothing of this runs at import where Kiln knows the release; `startup` has it
run for a newer torch, ``python -m kiln doctor`` and the tests always. A check changes nothing but the numbers of
autograd's nodes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import _native
from ... import platform as package
from ..light_dataclass import dataclass
from . import switches


@dataclass(eq=False)
class Assumption:
    """``check`` gives what is wrong, or None; ``part`` is what is switched off then (switches.py)."""

    name: str
    serves: str
    check: Callable[[], str | None]
    part: str


@dataclass(eq=False)
class Finding:
    """An assumption that was tried; ``problem`` is None where it holds."""

    assumption: Assumption
    problem: str | None

    def __str__(self) -> str:
        return f"{self.assumption.name}: {self.problem or 'as expected'}"


class Wrong(Exception):
    """What a check found to be otherwise than expected."""


def expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Wrong(f"{what} is {shortened(found)}, and should be {shortened(expected)}")


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def leaf(*size: int) -> Tensor:
    count = torch.Size(size).numel()
    values = [0.5 + 0.25 * place for place in range(count)]
    return torch.tensor(values, dtype=torch.float64, device="cpu").reshape(size).requires_grad_()


# ---- private names ---------------------------------------------------------------------------------------------------


def platform_modules() -> list[str]:
    """The modules of kiln/platform that bind private names."""
    found = pkgutil.iter_modules(package.__path__)
    return [f"{package.__name__}.{module.name}" for module in found if not module.ispkg]


def check_names() -> str | None:
    missing = []
    for name in platform_modules():
        try:
            importlib.import_module(name)
        except Exception as error:
            missing.append(f"{name}: {error}")
    return "; ".join(missing) or None


def check_attributes() -> str | None:
    from .. import fx_graphs, torch_autograd, torch_dispatch, torch_modules, torch_operators, torch_tensors

    tensor = leaf(2, 3).detach()
    view = tensor.view(3, 2)
    before = torch_tensors.version_of(tensor)
    tensor.add_(1)
    expect("the version of a tensor that was changed", torch_tensors.version_of(view), before + 1)
    expect("the base of a view", torch_tensors.base_of(view) is tensor and torch_tensors.is_view(view), True)
    expect("what is said of a plain view", torch_tensors.is_plain_view(view), True)
    expect("the storage of a view", torch_tensors.storage_address(view), torch_tensors.storage_address(tensor))
    operator = torch.ops.aten.add.Tensor
    names = (torch_operators.schema_of(operator).name, torch_operators.operator_name(operator))
    expect("the name of an operator", names, ("aten::add", "add"))
    qualified = (torch_operators.overload_name(operator), torch_operators.qualified_name(operator))
    expect("the name of an overload", qualified, ("Tensor", "aten::add.Tensor"))
    node = leaf(2).sin().grad_fn
    expect("the number of a node", type(torch_autograd.sequence_number_of(node)), int)
    expect("what a node expects", tuple(torch_autograd.input_metadata_of(node)[0].shape), (2,))
    expect("torch's engine", hasattr(torch_autograd.execution_engine(), "run_backward"), True)
    keys = torch_dispatch.dispatch_keys_of(tensor)
    expect("the keys of a tensor", keys.has(torch_dispatch.DispatchKey.CPU), True)
    module = torch.nn.Linear(1, 1, device="meta")
    expect("the parameters of a module", sorted(torch_modules.parameters_of(module)), ["bias", "weight"])
    expect("the hooks of a module", len(torch_modules.forward_hooks_of(module)), 0)
    graph = torch.fx.Graph()
    placeholder = graph.placeholder("x")
    expect("the last node of a graph", fx_graphs.root_of(graph).prev is placeholder, True)
    return None


def check_fake_tensors() -> str | None:
    from ..torch_fake import light_fake_mode

    mode = light_fake_mode()(allow_non_fake_inputs=False)
    fake = mode.from_tensor(leaf(2, 3).detach())
    with mode:
        made = fake @ fake.t()
    expect("the shape of a product of fake tensors", tuple(made.shape), (2, 2))
    expect("the class of its result", type(made).__name__, "FakeTensor")
    return None


# ---- guards ----------------------------------------------------------------------------------------------------------


def check_tensor_guards() -> str | None:
    tensor = leaf(2, 3).detach()
    check = _native.TensorCheck([(tensor, None, True)])
    alike = {
        "an equal tensor": (tensor.clone(), True),
        "another dtype": (tensor.float(), False),
        "another size": (tensor[:, :2], False),
        "other strides": (tensor.t().contiguous().t(), False),
        "a tensor with gradients": (tensor.clone().requires_grad_(), False),
        "a conjugate": (tensor.to(torch.complex128).conj(), False),
        "a parameter": (torch.nn.Parameter(tensor, requires_grad=False), False),
        "a tensor elsewhere": (torch.empty((2, 3), dtype=torch.float64, device="meta"), False),
    }
    for what, (given, expected) in alike.items():
        expect(f"whether {what} is taken for the same", check(given), expected)
    return None


def check_global_state() -> str | None:
    state = _native.GlobalState()
    expect("whether torch's state is as it was", state.check(), True)
    with torch.no_grad():
        expect("whether it is without grad mode", state.check(), False)
    with torch.autocast("cpu"):
        expect("whether it is under autocast", state.check(), False)
    return None


def check_string_keys() -> str | None:
    return None if _native.knows_dictionary_keys() else "the kind of a dictionary's keys is not found"


# ---- autograd's graph ------------------------------------------------------------------------------------------------


def check_graph() -> str | None:
    x = leaf(3)
    y = x.sin()
    z = y.cos()
    expect("the place of a tensor in autograd's graph", _native.gradient_edge(y), (y.grad_fn, 0))
    place = _native.gradient_edge(x)
    expect("the place of a leaf", place is not None and place[0].variable is x, True)
    cuts, undo = _native.cut_edges([z], [(z.grad_fn, 0, y.grad_fn, 0)])
    assert z.grad_fn is not None
    expect("an edge that was cut", z.grad_fn.next_functions, ((cuts[0], 0),))
    _native.mend_edges(undo, [])
    expect("an edge that was mended", z.grad_fn.next_functions, ((y.grad_fn, 0),))
    return None


def check_programs() -> str | None:
    if _native.any_modes():
        return None  # a program leaves its calls to Python then, so nothing can be tried
    steps = [
        (("aten::add", "Tensor"), (0, (1.5,), (2,)), (1,)),
        (("aten::sum", "dim_IntList"), (1, ([0],), (True,), None), (2,)),
    ]

    def otherwise(inputs: list[Any]) -> Any:
        raise Wrong("a program takes a plain tensor for something else")

    tensor = leaf(2, 3).detach()
    (found,) = _native.OperatorProgram(1, 3, steps, [2], otherwise)([tensor])
    expect("the result of a program", found.tolist(), (tensor + 3).sum(0, keepdim=True).tolist())
    return None


# What nodes save by the names under which torch shows it, in the order of torch's header.
SAVED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[str, ...]]] = {
    "SinBackward0": (lambda x: x.sin(), ("_saved_self",)),
    "ExpBackward0": (lambda x: x.exp(), ("_saved_result",)),
    "MulBackward0": (lambda x: x * x.detach(), ("_saved_other", "_saved_self")),
    "DivBackward0": (lambda x: x / (x.detach() + 1), ("_saved_other", "_saved_self")),
    "PowBackward0": (lambda x: x**3, ("_saved_self",)),
    "SoftmaxBackward0": (lambda x: x.softmax(0), ("_saved_result",)),
    "MmBackward0": (lambda x: x @ x.detach().t(), ("_saved_mat2", "_saved_self")),
    "WhereBackward0": (lambda x: torch.where(x > 1, x, 0.0), ("_saved_condition",)),
}


def identity(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else (value.data_ptr(), value.dtype, tuple(value.shape), tuple(value.stride()))


def check_saved_values() -> str | None:
    for name, (program, attributes) in SAVED.items():
        node: Any = program(leaf(2, 3)).grad_fn
        expect("the name of a node", node.name(), name)
        saved = _native.saved_values(node)
        if saved is None:
            raise Wrong(f"what {name} keeps is not known")
        found = [identity(value) for kind, value in saved if kind == "variable"]
        shown = [identity(getattr(node, attribute)) for attribute in attributes]
        expect(f"what {name} keeps", sorted(map(repr, found)), sorted(map(repr, shown)))
    summed: Any = leaf(2, 3).sum()
    sizes = [value for kind, value in _native.saved_values(summed.grad_fn) or () if kind == "size"]
    expect("the sizes that SumBackward0 keeps", sizes, [2, 3])
    return None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 2, None


def check_contexts() -> str | None:
    result: Any = Doubled.apply(leaf(3), 2.0)  # type: ignore[no-untyped-call]
    context: Any = result.grad_fn  # torch 2.11 frees what it saved when the result dies
    expect("the context of a function", _native.function_facts(context)[:2], ((True,), (True, False)))
    expect("its flags", _native.function_facts(context)[2:], (False, False, False))
    zeros = (((3,), torch.float64, torch.device("cpu")),)
    expect("the zeros of a function", _native.function_zeros(context), zeros)
    return None


def check_kinds_of_nodes() -> str | None:
    """Kinds of nodes and hooks are told apart by mangled names."""
    x = leaf(2, 3)
    y: Any = x.mul(2)
    tensor_hook, retained = hook_on("tensor"), y.sin()
    y.register_hook(tensor_hook)
    retained.retain_grad()
    changed = retained.clone()
    changed[0].mul_(3)
    z: Any = Doubled.apply(changed, 2.0)  # type: ignore[no-untyped-call]
    before, after, accumulated = hook_on("before"), hook_on("after"), hook_on("accumulated")
    z.grad_fn.register_prehook(before)
    y.grad_fn.register_hook(after)
    register: Any = x.register_post_accumulate_grad_hook
    register(accumulated)
    walk = _native.walk((z.sum(),), (torch.ones((), dtype=torch.float64, device="cpu"),), (), True, True)
    expect("the refusal of a walk", walk.refusal, None)
    kinds = [(call.kind, call.name.partition("Backward")[0].rpartition("::")[2]) for call in walk.calls]
    wanted = [("root", kinds[0][1]), ("builtin", "Sum"), ("python", "Doubled"), ("builtin", "CopySlices")]
    wanted += [("builtin", name) for name in ("Clone", "Sin", "Mul")]
    expect("the nodes of a walk", kinds, [*wanted, ("accumulate", "AccumulateGrad")])
    hooks = walk.hooks()
    for hook in (tensor_hook, before, after, accumulated):
        expect(f"whether a walk finds a hook ({hook.__name__})", hook in hooks, True)
    expect("the count of gradients that are retained", sum(len(call.retains) for call in walk.calls), 1)
    return None


def hook_on(name: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        return None

    hook.__name__ = name
    return hook


def check_calls_of_nodes() -> str | None:
    """Nodes can be called with other values in the place of what they keep."""
    x = leaf(3)
    walk = _native.walk((x.sin(),), (torch.ones(3, dtype=torch.float64, device="cpu"),), (), True, True)
    expect("the refusal of a walk", walk.refusal, None)
    index = next(call.index for call in walk.calls if call.name == "SinBackward0")
    gradient, other = torch.full((3,), 2.0, dtype=torch.float64, device="cpu"), x.detach() + 1
    for saved, at in ((None, x.detach()), ([other], other)):
        (found,) = walk.apply(index, [gradient], saved)
        expect("the gradient of a sine", None if found is None else found.tolist(), (gradient * at.cos()).tolist())
    return None


ASSUMPTIONS: tuple[Assumption, ...] = (
    Assumption("private names", "everything", check_names, switches.CAPTURE),
    Assumption("private attributes", "everything", check_attributes, switches.CAPTURE),
    Assumption("fake tensors", "shapes of what is captured", check_fake_tensors, switches.CAPTURE),
    Assumption("properties of tensors", "guards on tensors", check_tensor_guards, switches.CAPTURE),
    Assumption("global state of torch", "guards on torch's settings", check_global_state, switches.CAPTURE),
    Assumption("keys of dictionaries", "guards on modules", check_string_keys, switches.STRING_KEYS),
    Assumption("edges of autograd's graph", "forward and backward graphs", check_graph, switches.AHEAD_OF_TIME),
    Assumption("calls of operators", "programs of graphs", check_programs, switches.AHEAD_OF_TIME),
    Assumption("saved values of nodes", "compiled backward passes", check_saved_values, switches.ENGINE),
    Assumption("contexts of functions", "compiled backward passes", check_contexts, switches.ENGINE),
    Assumption("kinds of nodes and hooks", "compiled backward passes", check_kinds_of_nodes, switches.ENGINE),
    Assumption("calls of nodes", "compiled backward passes", check_calls_of_nodes, switches.ENGINE),
)


def examine() -> list[Finding]:
    """Try all assumptions, whatever modes are on; changes nothing."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
        return [Finding(assumption, problem_of(assumption)) for assumption in ASSUMPTIONS]


def problem_of(assumption: Assumption) -> str | None:
    try:
        return assumption.check()
    except Wrong as wrong:
        return str(wrong)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def switch_off_what_fails() -> list[Finding]:
    """Try all assumptions, and switch off what relies on those that do not hold."""
    findings = examine()
    for finding in findings:
        if finding.problem is not None:
            switches.switch_off(finding.assumption.part, str(finding))
    return findings
