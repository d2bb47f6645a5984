"""Runs a captured graph during a trace: node by node, each with the user's line. Hooks are noted, not called."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ...platform.light_dataclass import dataclass
from ...platform.torch_dispatch import active_fake_mode
from ...platform.torch_pytree import tree_leaves
from ...program import checkpoint_call, hook_slots, inference_mode
from ...program.call_markers import marker_of
from ...program.graph_meta import untraceable_reason
from ...program.unsupported import Unsupported
from . import recurrent
from .autograd_edges import Edge, edge_of
from .backward_stages import Place
from .hook_calls import run_hook, run_node_hook, run_node_prehook
from .recording import Recorder

PLACED = ("register_hook", "register_shared_hook", "register_post_accumulate_grad_hook", "retain_grad")


@dataclass(eq=False)
class Registration:
    """A hook that the graph registers. ``place``: on what; None where the compiled backward calls it."""

    kind: str
    slot: int | None  # which input of the graph is the hook's slot
    edge: Edge
    number: int  # among the registrations
    place: Place | None = None
    tensor: torch.Tensor | None = None  # whose retained gradient it is: that follows the tensor in autograd's graph

    @property
    def is_inner(self) -> bool:
        """Whether the compiled backward calls it."""
        return self.slot is not None and self.place is None

    def find_place(self, visible: dict[Edge, Place]) -> None:
        if self.tensor is not None:
            found = edge_of(self.tensor)
            if found is None:
                raise Unsupported("a retained gradient of a tensor that was detached in place")
            self.edge = found
        if self.kind in PLACED:
            self.place = visible.get(self.edge)


class SlotInput:
    """Stands for a slot of hooks among the inputs of a trace."""

    def __init__(self, index: int) -> None:
        self.index = index


class GraphRunner:
    """Runs a program over fakes."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.registrations: list[Registration] = []

    def run(self, program: Any, inputs: Sequence[Any]) -> list[Any]:
        if isinstance(program, torch.fx.GraphModule):
            given = [SlotInput(i) if isinstance(v, hook_slots.HookSlot) else v for i, v in enumerate(inputs)]
            results = self.run_graph(program, given)
        else:
            with recurrent.replaced():
                results = program(*inputs)
        return list(results) if isinstance(results, (list, tuple)) else [results]

    def run_graph(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        values: dict[torch.fx.Node, Any] = {}
        given = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                return torch.fx.node.map_arg(node.args[0], values.__getitem__)
            else:
                values[node] = self.run_node(module, node, values)
        return ()

    def run_node(self, module: torch.fx.GraphModule, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return self.attribute(module, str(node.target))
        self.recorder.provenance = provenance_of(node)
        args: Any
        keywords: Any
        args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.target == "detach_" or node.target is torch.detach_:
            self.check_detach(args[0])
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **keywords)
        target: Any = node.target if node.op == "call_function" else module.get_submodule(str(node.target))
        untraceable = untraceable_reason(node)
        if untraceable is not None:
            raise Unsupported(untraceable)
        if marker_of(target).fake is not None:
            raise Unsupported(f"{target.__name__}, which runs code that is not captured")
        rule = RULES.get(target)
        if rule is not None:
            return rule(self, *args, **keywords)
        if (
            type(target) is types.FunctionType
            and "example_value" in node.meta
            and has_only_effects(node, args, keywords)
        ):
            raise Unsupported(f"{target.__name__}, which is called for what it does")
        return (recurrent.rule_for(target, args, keywords) or target)(*args, **keywords)

    def check_detach(self, tensor: torch.Tensor) -> None:
        """Recorders do not see detach_, and torch refuses it for views, which an input may be."""
        view = self.recorder.functional.view_of(tensor)
        if view.storage.placeholder is not None and view.parent is None:
            raise Unsupported("detach_ of an input, which torch refuses where it is a view")

    def attribute(self, module: torch.fx.GraphModule, name: str) -> Any:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            return self.constant(value)
        return Region(self, value) if isinstance(value, torch.fx.GraphModule) else value

    def constant(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor that the graph holds, as a fake."""
        functional = self.recorder.functional
        fake: torch.Tensor = active_fake_mode().from_tensor(value, static_shapes=True)
        if not functional.knows(fake):
            functional.add_constant(value, fake)
        return fake

    # -- hooks ------------------------------------------------------------------------------------------------------

    def register(self, kind: str, tensor: torch.Tensor, slot: SlotInput | None) -> Registration:
        index, edge = slot.index if slot is not None else None, edge_of(tensor)
        assert edge is not None  # capture registers nothing on what needs no gradient
        made = Registration(kind, index, edge, len(self.registrations))
        self.registrations.append(made)
        return made

    def register_hook(self, tensor: torch.Tensor, slot: SlotInput, kind: str = "register_hook") -> None:
        made = self.register(kind, tensor, slot)
        register: Callable[..., Any] = tensor.register_hook
        register(lambda gradient: self.call_hook(made, gradient))

    def register_shared_hook(self, tensor: torch.Tensor, slot: SlotInput) -> None:
        self.register_hook(tensor, slot, "register_shared_hook")

    def register_accumulated(self, tensor: torch.Tensor, slot: SlotInput) -> None:
        self.register("register_post_accumulate_grad_hook", tensor, slot)

    def retain_grad(self, tensor: torch.Tensor) -> None:
        self.register("retain_grad", tensor, None).tensor = tensor

    def register_node_hook(self, tensor: torch.Tensor, slot: SlotInput) -> None:
        made = self.register("register_node_hook", tensor, slot)
        assert tensor.grad_fn is not None
        tensor.grad_fn.register_hook(lambda inputs, outputs: self.call_node(run_node_hook, made, inputs, outputs))

    def register_node_prehook(self, tensor: torch.Tensor, slot: SlotInput) -> None:
        made = self.register("register_node_prehook", tensor, slot)
        assert tensor.grad_fn is not None
        tensor.grad_fn.register_prehook(lambda outputs: self.call_node(run_node_prehook, made, outputs))

    def call_hook(self, made: Registration, gradient: torch.Tensor) -> torch.Tensor | None:
        """In the backward trace: the hook's call as a node."""
        if made.place is not None:
            return None  # autograd calls it
        functional = self.recorder.functional
        node = functional.emit(run_hook, (made.number, functional.node_of(gradient)), {}, gradient)
        return self.hook_result(gradient, node)

    def call_node(self, function: Callable[..., Any], made: Registration, *gradients: Any) -> Any:
        functional = self.recorder.functional
        converted = [tuple([functional.convert(part) for part in given]) for given in gradients]
        node = functional.emit(function, (made.number, *converted), {}, gradients[0])
        parts = [
            None if part is None else self.hook_result(part, functional.item(node, index, part))
            for index, part in enumerate(gradients[0])
        ]
        return tuple(parts)

    def hook_result(self, gradient: torch.Tensor, node: torch.fx.Node) -> torch.Tensor:
        """The result of a hook: a tensor like the one it was given."""
        result = torch.empty_like(gradient)
        node.meta["val"] = result
        self.recorder.functional.add_storage(result, node)
        return result

    def set_data(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """No operation records it."""
        raise Unsupported("assigning to .data of a tensor")

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def checkpointed(self, region: Region, passed: tuple[Any, ...], closed: tuple[Any, ...], **options: Any) -> Any:
        options["preserve_rng_state"] = False  # replayed random nodes draw the first ones' numbers
        return checkpoint_call.checkpointed(region, passed, closed, **options)


def has_only_effects(node: torch.fx.Node, args: Any, keywords: Any) -> bool:
    """Whether a function of the program has neither a result nor a tensor to act on: no operator would record it."""
    return node.meta["example_value"] is None and not any(
        isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, keywords))
    )


class Region:
    """A checkpointed part of the graph: run in the forward, and again in the backward."""

    def __init__(self, runner: GraphRunner, module: torch.fx.GraphModule) -> None:
        self.runner, self.module = runner, module
        self.drawn: list[torch.fx.Node] | None = None

    def __call__(self, *inputs: Any) -> Any:
        recorder = self.runner.recorder
        if self.drawn is None:
            self.drawn, outer = [], recorder.drawn_in_region
            recorder.drawn_in_region = self.drawn
            try:
                return self.runner.run_graph(self.module, inputs)
            finally:
                recorder.drawn_in_region = outer
        outer_replay, recorder.to_replay = recorder.to_replay, iter(self.drawn)
        try:
            return self.runner.run_graph(self.module, inputs)
        finally:
            recorder.to_replay = outer_replay


def refuse_inference(runner: GraphRunner, flag: bool) -> None:
    """Tensors made in inference mode have no version counters."""
    raise Unsupported("an inference mode that begins inside")


RULES: dict[Any, Callable[..., Any]] = {
    inference_mode.enter_inference_mode: refuse_inference,
    hook_slots.register_hook: GraphRunner.register_hook,
    hook_slots.register_shared_hook: GraphRunner.register_shared_hook,
    hook_slots.register_post_accumulate_grad_hook: GraphRunner.register_accumulated,
    hook_slots.register_node_hook: GraphRunner.register_node_hook,
    hook_slots.register_node_prehook: GraphRunner.register_node_prehook,
    hook_slots.retain_grad: GraphRunner.retain_grad,
    checkpoint_call.checkpointed: GraphRunner.checkpointed,
    torch.ops.aten.set_data.default: GraphRunner.set_data,
}


def provenance_of(node: torch.fx.Node) -> dict[str, Any]:
    """What nodes that originate from a captured node take over from its ``meta``."""
    found: dict[str, Any] = {"source_fn": (node.name, node.target), "source_fn_stack": [(node.name, node.target)]}
    for name in ("stack_trace", "nn_module_stack", "source_fn_stack"):
        if node.meta.get(name) is not None:
            found[name] = node.meta[name]
    return found
