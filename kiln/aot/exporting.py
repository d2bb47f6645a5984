"""Exported graphs: no runtime around them, all effects among the outputs.

An exported graph is functional: the new values of inputs that the program changes are outputs, before its own outputs.
Gradients are computed in the traced program itself, by torch's own engine on the fake tape, and come after the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any

import torch
import torch.fx
from torch.nn import Module

from .. import exc
from ..platform.fx_graphs import PyTreeCodeGen, PyTreeInfo, rename
from ..platform.light_dataclass import dataclass
from ..platform.torch_fake import detect_fake_mode
from ..platform.torch_pytree import TreeSpec, tree_flatten
from ..program.shapes.fake_tensors import make_mode
from ..program.unsupported import Unsupported
from ..report.exported_inputs import refuse_other_inputs
from .module_state import ModuleState
from .partition.graph_cleanup import eliminate_dead
from .pytree_calls import Call, Result, flatten_call
from .trace.input_specs import InputSpec, specs_of
from .trace.joint_tracer import Tracer


@dataclass
class BackwardSignature:
    """Which outputs of a joint graph are gradients, and of what; by the names of nodes."""

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str


@dataclass
class GraphSignature:
    """What the inputs and outputs of an exported graph are; by the names of nodes."""

    parameters: list[str]
    buffers: list[str]
    user_inputs: list[str]
    user_outputs: list[Any]
    inputs_to_parameters: dict[str, str]
    inputs_to_buffers: dict[str, str]
    buffers_to_mutate: dict[str, str]
    parameters_to_mutate: dict[str, str]
    user_inputs_to_mutate: dict[str, str]
    in_spec: TreeSpec
    out_spec: TreeSpec
    backward_signature: BackwardSignature | None = None
    input_tokens: list[str] = field(default_factory=list)
    output_tokens: list[str] = field(default_factory=list)


@dataclass
class Traced:
    """A program as a graph without an output node, and its results as nodes."""

    graph: torch.fx.Graph
    attributes: dict[str, Any]
    inputs: list[torch.fx.Node]
    results: list[Any]  # nodes and constants
    changed: dict[int, torch.fx.Node]  # inputs, by number: their new values
    examples: list[Any]  # of the inputs, as they were before the program ran

    def module(self, outputs: Sequence[Any]) -> torch.fx.GraphModule:
        self.graph.output(tuple(outputs))
        eliminate_dead(self.graph)
        self.graph.lint()
        return refuse_other_inputs(torch.fx.GraphModule(self.attributes, self.graph), self.examples)

    def name_inputs(self, names: Iterable[str]) -> None:
        for node, name in zip(self.inputs, names, strict=True):
            node.target = name
            rename(node, name)


def trace_program(
    program: Callable[..., Sequence[Any]], inputs: Sequence[torch.Tensor], decompositions: dict[Any, Any] | None
) -> Traced:
    """Trace a program whose results are not differentiated."""

    def detached(*tensors: Any) -> list[Any]:
        return [each.detach() if isinstance(each, torch.Tensor) else each for each in program(*tensors)]

    specs = specs_of(inputs, None)
    try:
        joint = ForwardTracer(detached, specs, mode_for(inputs), decompositions or {}).run(None)
    except Unsupported as error:
        raise exc.UserError(f"this program cannot be exported: {error}") from error
    functional, nodes = joint.functional, [node for node in joint.input_nodes if node is not None]
    functional.graph.erase_node(functional.graph.output_node())
    results = [functional.convert(output.value if output.fake is None else output.fake) for output in joint.outputs]
    changed = {
        memory.input: functional.node_of(joint.inputs[memory.input])
        for memory in joint.memories
        if memory.input is not None
    }
    if joint.reshaped:
        raise exc.UserError("this program cannot be exported: it changes the shape of an input in place")
    check_sharing(specs, changed)
    for node in functional.graph.nodes:
        node.meta["region"] = "backward" if node.meta.get("partitioner_tag") == "is_backward" else "forward"
    return Traced(functional.graph, functional.attributes, nodes, results, dict(sorted(changed.items())), list(inputs))


class ForwardTracer(Tracer):
    """A trace without stages: the program itself computes the gradients that are wanted."""

    def make_stages(self, outputs: list[Any]) -> None:
        """There are none."""


def mode_for(inputs: Sequence[Any]) -> Any:
    """The fake mode that the inputs belong to, else a new one."""
    return detect_fake_mode(inputs) or make_mode()


def check_sharing(specs: Sequence[InputSpec], changed: Iterable[int]) -> None:
    """A functional graph cannot express that changing one input changes another."""
    for index in changed:
        if sum(spec.storage_key == specs[index].storage_key for spec in specs) > 1:
            raise exc.UserError("this program cannot be exported: it changes an input that shares memory with another")


# -- a joint graph --------------------------------------------------------------------------------------------------


def aot_export_joint_simple(
    func: Callable[..., Any],
    args: Sequence[Any],
    *,
    trace_joint: bool,
    num_params_buffers: int = 0,
    decompositions: dict[Any, Any] | None = None,
) -> torch.fx.GraphModule:
    """A function of tensors that returns tensors, as a graph: of its forward, or of forward and backward.

    The forward's graph is called as the function is. A joint graph is called ``graph(primals, tangents)`` with two
    lists, the tangents those of the outputs that require grad; it gives two lists, the outputs and the gradients of the
    primals, None where there is none. The function must not change its arguments.
    """
    call = flatten_call(tuple(args), {})
    result = Result()
    program = flat_program(func, call, result)
    if not trace_joint:
        traced = trace_program(program, call.tensors, decompositions)
        refuse_changes(traced)
        traced.name_inputs(f"arg{index}_1" for index in range(len(traced.inputs)))
        return traced.module(result.fill(traced.results))
    tangents = tangents_for(program, call.tensors)
    primal_count = len(call.tensors)

    def joint(*tensors: Any) -> list[Any]:
        primals, given = tensors[:primal_count], tensors[primal_count:]
        outputs = program(*primals)
        return [*outputs, *gradients_of([each for each in outputs if takes_gradient(each)], primals, given)]

    traced = trace_program(joint, [*call.tensors, *tangents], decompositions)
    refuse_changes(traced)
    traced.name_inputs(
        [f"primals_{index + 1}" for index in range(primal_count)] + [f"tangents_{i + 1}" for i in range(len(tangents))]
    )
    outputs = result.fill(traced.results[: len(result.places)])
    gradients = traced.results[len(result.places) :]
    in_form = tree_flatten(([*range(primal_count)], [*range(len(tangents))]))[1]
    out_form = tree_flatten(([*range(len(outputs))], [*range(len(gradients))]))[1]
    traced.graph.set_codegen(PyTreeCodeGen(PyTreeInfo(["primals", "tangents"], in_form, out_form)))
    return traced.module([*outputs, *gradients])


def flat_program(function: Callable[..., Any], call: Call, result: Result) -> Callable[..., list[Any]]:
    """A function of tensors alone."""

    def program(*tensors: Any) -> list[Any]:
        args, kwargs = call.arguments(tensors)
        return result.flatten(function(*args, **kwargs))

    return program


def refuse_changes(traced: Traced) -> None:
    if traced.changed:
        raise exc.UserError("aot_export_joint_simple: the function changes its arguments; use aot_export_module")


def takes_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def tangents_for(program: Callable[..., list[Any]], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Fakes like the gradients that come in: one for each output that requires grad."""
    mode = mode_for(inputs)
    with mode:
        fakes = [spec.make(mode) for spec in specs_of(inputs, None)]
        outputs = [each for each in program(*fakes) if takes_gradient(each)]
        return [torch.empty_like(output).detach() for output in outputs]


def gradients_of(
    outputs: Sequence[torch.Tensor], primals: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor] | None
) -> list[torch.Tensor | None]:
    """The gradient of each primal; None for those without."""
    wanted = [primal for primal in primals if primal.requires_grad]
    if not outputs or not wanted:
        return [None] * len(primals)
    found = iter(torch.autograd.grad(outputs, wanted, tangents, allow_unused=True))
    return [next(found) if primal.requires_grad else None for primal in primals]


# -- modules --------------------------------------------------------------------------------------------------------


def aot_export_module(
    mod: Module,
    args: Sequence[Any],
    *,
    trace_joint: bool,
    output_loss_index: int | None = None,
    decompositions: dict[Any, Any] | None = None,
    pre_dispatch: bool = False,
    dynamic_shapes: Any = None,
    kwargs: dict[str, Any] | None = None,
) -> tuple[torch.fx.GraphModule, GraphSignature]:
    """A module's call as one graph over parameters, buffers and arguments, and its signature.

    The graph gives the new values of changed buffers, of changed parameters and arguments, then the outputs, then, with
    ``trace_joint``, the gradients of the loss (output number ``output_loss_index``) for parameters and arguments that
    require grad.
    """
    if pre_dispatch:
        raise exc.NotAvailable(
            "pre_dispatch=True", "Kiln traces below autograd", "use kiln.export for torch-level graphs"
        )
    if trace_joint != (output_loss_index is not None):
        raise exc.UserError("aot_export_module: trace_joint=True goes with output_loss_index, and only then")
    state = ModuleState(mod)
    call, result = flatten_call(tuple(args), kwargs or {}), Result()
    inputs = [*state.tensors, *call.tensors]

    def program(*tensors: Any) -> list[Any]:
        given, keywords = call.arguments(tensors[len(state.tensors) :])
        with state.replaced(tensors[: len(state.tensors)]) as replaced:
            outputs = result.flatten(mod(*given, **keywords))
        if replaced:
            names = ", ".join(place.path for place, _ in replaced)
            raise exc.UserError(f"this module cannot be exported: its forward puts new tensors in place of {names}")
        if output_loss_index is None:
            return outputs
        return [*outputs, *loss_gradients(outputs, result.places.index(output_loss_index), tensors)]

    traced = trace_program(program, inputs, decompositions)
    traced.name_inputs(f"arg{index}_1" for index in range(len(inputs)))
    return export_signed(traced, state, result, output_loss_index, (call.spec, len(inputs)))


def loss_gradients(outputs: Sequence[Any], loss: int, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The gradients of a loss, for everything that requires one; zeros where the loss does not depend on it."""
    value = outputs[loss]
    if not takes_gradient(value) or value.numel() != 1:
        raise exc.UserError("aot_export_module: the loss has to be one number that requires grad")
    found = gradients_of([value], tensors, None)
    return [
        torch.zeros_like(tensor) if gradient is None and tensor.requires_grad else gradient
        for tensor, gradient in zip(tensors, found, strict=True)
        if tensor.requires_grad
    ]


def export_signed(
    traced: Traced, state: ModuleState, result: Result, loss: int | None, form: tuple[TreeSpec, int]
) -> tuple[torch.fx.GraphModule, GraphSignature]:
    names = [node.name for node in traced.inputs]
    count, parameters = len(state.names), state.parameter_count
    outputs = result.fill(traced.results[: len(result.places)])
    gradients = traced.results[len(result.places) :]
    order = sorted(traced.changed, key=lambda index: (not parameters <= index < count, index))  # buffers first
    module = traced.module([*(traced.changed[index] for index in order), *outputs, *gradients])
    owners = [*state.names, *names[count:]]
    changes = {index: (traced.changed[index].name, owners[index]) for index in order}
    assert result.spec is not None
    signature = GraphSignature(
        parameters=state.names[:parameters],
        buffers=state.names[parameters:],
        user_inputs=names[count:],
        user_outputs=[getattr(output, "name", output) for output in outputs],
        inputs_to_parameters=dict(zip(names[:parameters], state.names, strict=False)),
        inputs_to_buffers=dict(zip(names[parameters:count], state.names[parameters:], strict=True)),
        buffers_to_mutate=dict(changes[index] for index in order if parameters <= index < count),
        parameters_to_mutate=dict(changes[index] for index in order if index < parameters),
        user_inputs_to_mutate=dict(changes[index] for index in order if index >= count),
        in_spec=tree_flatten((tuple(range(form[1])), {}))[1],
        out_spec=result.spec,
    )
    if loss is not None:
        wanted = [index for index, node in enumerate(traced.inputs) if node.meta["val"].requires_grad]
        pairs = [(gradient.name, owners[index], index) for index, gradient in zip(wanted, gradients, strict=True)]
        signature.backward_signature = BackwardSignature(
            gradients_to_parameters={name: owner for name, owner, index in pairs if index < count},
            gradients_to_user_inputs={name: owner for name, owner, index in pairs if index >= count},
            loss_output=outputs[loss].name,
        )
    return module, signature


# -- functions over state and arguments -----------------------------------------------------------------------------


def export_function(
    func: Callable[..., Any],
    args: Sequence[Any],
    *,
    num_params_buffers: int = 0,
    decompositions: dict[Any, Any] | None = None,
    no_tangents: bool = False,
    kwargs: dict[str, Any] | None = None,
    **accepted: Any,
) -> tuple[torch.fx.GraphModule, Result, TreeSpec, TreeSpec]:
    """A function's graph with its effects as outputs, how its result is put together, and the forms of both sides.

    Where an input requires grad the graph is a joint one: for ``no_tangents`` that of a loss, the first output that
    requires grad, else with one tangent for each output that requires grad, given after the arguments.
    """
    call, result = flatten_call(tuple(args), kwargs or {}), Result()
    program = flat_program(func, call, result)
    needs = any(tensor.requires_grad for tensor in call.tensors) and torch.is_grad_enabled()
    tangents = tangents_for(program, call.tensors) if needs and not no_tangents else []
    count = len(call.tensors)

    def joint(*tensors: Any) -> list[Any]:
        outputs = program(*tensors[:count])
        differentiable = [each for each in outputs if takes_gradient(each)]
        if not needs or not differentiable:
            return outputs
        if no_tangents:
            return [*outputs, *gradients_of(differentiable[:1], tensors, None)]
        return [*outputs, *gradients_of(differentiable, tensors[:count], tensors[count:])]

    traced = trace_program(joint, [*call.tensors, *tangents], decompositions)
    module = traced.module([*traced.changed.values(), *traced.results])
    assert result.spec is not None
    return module, result, call.spec, result.spec
