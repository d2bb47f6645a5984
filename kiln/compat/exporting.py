"""``torch._dynamo.export``: a graph that is called with the program's own arguments and gives its own results.

Kiln's graphs take everything as inputs and give tensors only. Here the inputs that are not the caller's tensors become
attributes of the graph module, and the program's result is rebuilt from the graph's outputs.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch

from .. import api, exc
from ..aot.pytree_calls import constant_key
from ..platform.python_objects import words
from ..platform.torch_pytree import keystr, tree_flatten, tree_flatten_with_path, tree_structure, tree_unflatten
from ..report import events
from ..report.exported_inputs import ExpectedInput, check_input, expected_input, refusal, refuse_other_inputs


class ExportResult(NamedTuple):
    """What ``torch._dynamo.export(f)(…)`` gives."""

    graph_module: torch.nn.Module
    guards: list[str]


class ExportedGraph(torch.nn.Module):
    """A captured graph with the signature of the function that it was captured from."""

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        attributes: dict[str, Any],
        places: list[Any],
        result: Any,
        arguments: Arguments,
    ):
        super().__init__()
        self.graph_module = graph_module
        self._arguments = arguments
        for name, value in attributes.items():
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)
        self._places = places  # of each input: its place among the caller's arguments, or the name of an attribute
        self._result = result  # the places of outputs in the result, and how it is built

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph, with an input for everything it uses."""
        return self.graph_module.graph

    @property
    def code(self) -> str:
        return self.graph_module.code

    def print_readable(self, print_output: bool = True, **options: Any) -> str:
        return self.graph_module.print_readable(print_output, **options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves = self._arguments.leaves(args, kwargs)
        self._arguments.check(leaves)
        inputs = [getattr(self, place) if isinstance(place, str) else leaves[place] for place in self._places]
        outputs = self.graph_module(*inputs)
        found, spec = self._result
        values = [
            outputs[place] if kind == "output" else leaves[place] if kind == "input" else place for kind, place in found
        ]
        return tree_unflatten(values, spec)


class Arguments:
    """How a call's arguments are taken apart: by the function's parameters, whether they are given by name or not.

    The graph's own forward does this, and may be compiled in turn: plain code, without ``inspect``.
    """

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.names: list[str] = []  # of what may be given by position
        self.more: str | None = None  # the name of the parameter that takes what is left of these
        self.defaults: dict[str, Any] = {}
        self.required: list[str] = []
        self.constants: dict[int, Any] = {}  # leaves that are no tensors, by place: they are written into the graph
        self.others: dict[int, ExpectedInput] = {}  # tensors that the graph does not take; it may hold their sizes
        for name, parameter in _parameters(function).items():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                self.names.append(name)
            if parameter.kind is parameter.VAR_POSITIONAL:
                self.more = name
            elif parameter.default is not parameter.empty:
                self.defaults[name] = parameter.default
            elif parameter.kind is not parameter.VAR_KEYWORD:
                self.required.append(name)
        self.spec = tree_structure(self.named(args, kwargs))

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, in an order that is always the same."""
        found = {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}
        rest = args[len(self.names) :]
        if self.more is not None:
            found[self.more] = rest
        elif rest:
            raise TypeError(f"the exported graph takes {len(self.names)} positional arguments, {len(args)} were given")
        for name in self.required:
            if name not in found:
                raise TypeError(f"the exported graph misses the argument {name!r}")
        return {name: found[name] for name in sorted(found)}

    def expected_inputs(self, leaves: list[Any]) -> dict[int, ExpectedInput]:
        """What is to hold of each tensor, by place."""
        named = tree_unflatten(range(len(leaves)), self.spec)
        names = {place: keystr(path) for path, place in tree_flatten_with_path(named)[0]}
        found = {place: expected_input(names[place], leaf) for place, leaf in enumerate(leaves)}
        return {place: each for place, each in found.items() if each is not None and each.dtype is not None}

    def check(self, leaves: list[Any]) -> None:
        """Refuse what the graph was not made for. (What it takes as inputs it checks itself.)"""
        for place, wanted in self.others.items():
            check_input(wanted, leaves[place])
            if tuple(leaves[place].shape) != wanted.numbers:
                sizes = f"{list(wanted.numbers)} in it, and {list(leaves[place].shape)} here"
                raise refusal(f"the sizes of the argument {wanted.name} are {sizes}")
        for place, value in self.constants.items():
            if leaves[place] is not value and constant_key(leaves[place]) != constant_key(value):
                raise refusal(f"{value!r} is written into it, and {leaves[place]!r} is given here")

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        named = self.named(args, kwargs)
        leaves, spec = tree_flatten(named)
        if spec == self.spec:
            return leaves
        try:  # dictionaries in another order
            found = self.spec.flatten_up_to(named)
        except ValueError:
            found = None
        if found is None or len(found) != len(leaves):
            raise exc.UserError("the exported graph was made for arguments of another structure")
        return found


def _parameters(function: Any) -> Any:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {"args": inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)}


class _Watching:
    """A backend that keeps the one graph it gets, and the values of its first call."""

    graph: torch.fx.GraphModule | None = None
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        if self.graph is not None:
            raise exc.UserError("torch._dynamo.export needs a program of one graph")
        self.graph = graph_module

        def run(*inputs: Any) -> Any:
            self.inputs, self.outputs = inputs, tuple(graph_module.forward(*inputs))
            return self.outputs

        return run


OPTIONS = words(
    "aten_graph pre_dispatch decomposition_table tracing_mode dynamic_shapes specialize_float assume_static_by_default "
    "same_signature disable_constraint_solver prefer_deferred_runtime_asserts_over_guards constraints _log_export_usage"
)


def export(f: Any, *extra_args: Any, **accepted: Any) -> Any:
    """``torch._dynamo.export(f)(*args)``: graph and guards; options of torch's have no effect."""
    extra = {name: value for name, value in accepted.items() if name not in OPTIONS}

    def inner(*args: Any, **kwargs: Any) -> ExportResult:
        watching = _Watching()
        # Before the call: it may change the lists and dictionaries that it is given.
        arguments = Arguments(f, args, kwargs)
        given = arguments.leaves(args, kwargs)
        leaves = {id(leaf): place for place, leaf in enumerate(given) if isinstance(leaf, torch.Tensor)}
        arguments.constants = {place: leaf for place, leaf in enumerate(given) if not isinstance(leaf, torch.Tensor)}
        expected = arguments.expected_inputs(given)
        with events.listen() as recording:
            result = api.compile(f, backend=watching, fullgraph=True)(*args, **kwargs)
        if watching.graph is None:
            raise exc.UserError("torch._dynamo.export needs a call that does tensor work; none was captured")
        attributes: dict[str, Any] = {}
        places = [
            _place(value, node, leaves, attributes)
            for value, node in zip(watching.inputs, _inputs(watching.graph), strict=True)
        ]
        arguments.others = {place: each for place, each in expected.items() if place not in places}
        values, spec = tree_flatten(result)
        outputs = {id(value): place for place, value in enumerate(watching.outputs)}
        found = [
            ("output", outputs[id(value)])
            if id(value) in outputs
            else ("input", leaves[id(value)])
            if isinstance(value, torch.Tensor) and id(value) in leaves
            else ("constant", value)
            for value in values
        ]
        refuse_other_inputs(watching.graph)
        graph = ExportedGraph(watching.graph, attributes, places, (found, spec), arguments)
        return ExportResult(graph, recording.guards[-1][1])

    return inner(*extra_args, **extra) if extra_args or extra else inner


def _inputs(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op == "placeholder"]


def _place(value: Any, node: torch.fx.Node, leaves: dict[int, int], attributes: dict[str, Any]) -> int | str:
    if id(value) in leaves:
        return leaves[id(value)]
    attributes[f"input_{node.name}"] = value
    return f"input_{node.name}"
