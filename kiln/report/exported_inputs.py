"""Exported graphs hold for the inputs they were made for: called with others they refuse, with the reason.

Sizes are constants in a graph, and decided branches of the program. When a graph is exported, the expected inputs are
noted: dtype, device and sizes of each, which sizes are dynamic, and what was assumed of those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from .. import exc
from ..platform.light_dataclass import dataclass
from ..platform.torch_pytree import tree_leaves
from ..platform.torch_symbols import environment_of, unsimplified_expression_of
from ..program.graph_meta import input_state_of
from ..program.shapes.expressions import compile_expression, expression_text, symbol_names

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Expression:
    """An expression of dynamic numbers."""

    text: str
    names: tuple[str, ...]

    def value(self, known: dict[str, Any]) -> Any:
        return compile_expression(self.text, self.names)(*[known[name] for name in self.names])


@dataclass(frozen=True)
class ExpectedInput:
    """What an input has to be: a tensor of this kind and these sizes, or a number."""

    name: str
    dtype: torch.dtype | None
    device: torch.device | None
    numbers: tuple[Any, ...]  # the sizes, or the number itself: ints and expressions


class InputChecks:
    """A hook in front of a graph: raises :class:`kiln.exc.UserError` for inputs that it was not made for."""

    def __init__(self, names: Sequence[str], examples: Sequence[Any]) -> None:
        self.inputs = [expected_input(name, example) for name, example in zip(names, examples, strict=True)]
        self.conditions = conditions_of(examples)

    def __call__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = tree_leaves(args)
        if kwargs or len(values) != len(self.inputs):  # the graph's own error says how it is called
            return
        known: dict[str, Any] = {}
        pairs = [(wanted, value) for wanted, value in zip(self.inputs, values, strict=True) if wanted is not None]
        for wanted, value in pairs:
            check_input(wanted, value)
            for number, seen in zip(wanted.numbers, numbers_of(value), strict=True):
                if isinstance(number, Expression) and number.text in number.names:
                    known.setdefault(number.text, seen)
        for wanted, value in pairs:
            self.check_numbers(wanted, value, known)
        for condition in self.conditions:
            if all(name in known for name in condition.names) and not condition.value(known):
                sizes = ", ".join(f"{name} = {known[name]}" for name in condition.names)
                raise refusal(f"{condition.text} was assumed of its sizes; here {sizes}")

    def check_numbers(self, wanted: ExpectedInput, value: Any, known: dict[str, Any]) -> None:
        for place, (number, seen) in enumerate(zip(wanted.numbers, numbers_of(value), strict=True)):
            if isinstance(number, Expression):
                if any(name not in known for name in number.names):
                    continue
                number = number.value(known)
            if seen != number or type(seen) is not type(number):
                what = f"size {place} of {wanted.name}" if wanted.dtype is not None else wanted.name
                raise refusal(f"{what} is {number} in it, and {seen} here")


def check_input(wanted: ExpectedInput, value: Any) -> None:
    if wanted.dtype is None:
        if isinstance(value, torch.Tensor):
            raise refusal(f"{wanted.name} is a number in it, and a tensor here")
        return
    if not isinstance(value, torch.Tensor):
        raise refusal(f"{wanted.name} is a tensor in it, and of type {type(value).__name__} here")
    for what, expected, seen in (
        ("dtype", wanted.dtype, value.dtype),
        ("device", wanted.device, value.device),
        ("number of dimensions", len(wanted.numbers), value.dim()),
    ):
        if expected != seen:
            raise refusal(f"the {what} of {wanted.name} is {expected} in it, and {seen} here")


def numbers_of(value: Any) -> tuple[Any, ...]:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)


def refusal(reason: str) -> exc.UserError:
    return exc.UserError(f"this graph was exported for other inputs: {reason}. Export it again for these")


def expected_input(name: str, example: Any) -> ExpectedInput | None:
    """What an example says of the input; None for objects that are neither tensors nor numbers."""
    if isinstance(example, torch.Tensor):
        sizes = tuple(expected_number(size) for size in example.shape)
        return ExpectedInput(name, example.dtype, example.device, sizes)
    if isinstance(example, (int, float, bool, *SYMBOLIC)):
        return ExpectedInput(name, None, None, (expected_number(example),))
    return None


def expected_number(number: Any) -> Any:
    if not isinstance(number, SYMBOLIC):
        return number
    expression = unsimplified_expression_of(number)
    return Expression(expression_text(expression), tuple(symbol_names(expression)))


def conditions_of(examples: Sequence[Any]) -> list[Expression]:
    """All that was assumed of the dynamic numbers among the examples."""
    numbers = [number for example in examples for number in (getattr(example, "shape", None) or (example,))]
    environments = {id(environment_of(each)): environment_of(each) for each in numbers if isinstance(each, SYMBOLIC)}
    found = []
    for shapes in environments.values():
        for guard in shapes.guards:
            found.append(Expression(expression_text(guard.expr), tuple(symbol_names(guard.expr))))
        for symbol, limits in shapes.var_to_range.items():
            if limits.lower.is_Integer:
                found.append(Expression(f"{symbol} >= {int(limits.lower)}", (str(symbol),)))
    return [condition for condition in found if condition.names]


def refuse_other_inputs(module: torch.fx.GraphModule, examples: Sequence[Any] | None = None) -> torch.fx.GraphModule:
    """Have a graph refuse inputs that are not like these examples (its placeholders', if there are none given)."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    if examples is None:
        examples = [example_of(node) for node in inputs]
    attach(module, InputChecks([str(node.target) for node in inputs], examples))
    return module


def attach(module: torch.fx.GraphModule, checks: InputChecks) -> None:
    module.register_forward_pre_hook(checks, with_kwargs=True)
    module.__dict__["_deepcopy_init"] = functools.partial(copied_with, checks)  # fx copies no hooks by itself


def copied_with(checks: InputChecks) -> Callable[..., None]:
    """How fx is to make a copy of a graph that refuses."""

    def init(module: torch.fx.GraphModule, root: Any, graph: torch.fx.Graph, *more: Any) -> None:
        torch.fx.GraphModule.__init__(module, root, graph, *more)
        attach(module, checks)

    return init


def example_of(node: torch.fx.Node) -> Any:
    value = node.meta.get("example_value", node.meta.get("val"))
    state = input_state_of(node)
    if state is None or not isinstance(value, torch.Tensor) or tuple(state.size) == tuple(value.shape):
        return value
    with torch.no_grad():  # the program has changed its shape in place since
        return torch.empty_strided(state.size, state.stride, dtype=state.dtype, device="meta")
