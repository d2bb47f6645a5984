"""Values that the forward saves for the backward, in which form, and the keys that name them in other joint graphs."""

from __future__ import annotations

import enum
import hashlib
from typing import Any

import torch
import torch.fx

from ...platform.light_dataclass import dataclass
from ...program.shapes import shape_cache
from .joint_nodes import JointNodes
from .node_values import Node

aten = torch.ops.aten


class Form(enum.Enum):
    """How a value is kept."""

    PLAIN = "plain"  # as it is
    COPY = "copy"  # a copy, which is not changed
    BITS = "bool"  # zeros and ones as truth values


STATE = "state"  # in keys: the state of a generator before a random node


@dataclass(frozen=True)
class Saved:
    """A value kept for the backward."""

    node: Node
    form: Form = Form.PLAIN

    def encode(self, graph: torch.fx.Graph, value: Node) -> Node:
        """The nodes that the forward ends in."""
        if self.form is Form.PLAIN:
            return value
        name = f"saved_{value.name}"
        if self.form is Form.COPY:
            return call(graph, aten.clone.default, value, name)
        return call(graph, aten._to_copy.default, value, name, dtype=torch.bool)

    def decode(self, graph: torch.fx.Graph, value: Node) -> Node:
        """The nodes that the backward begins with."""
        if self.form is not Form.BITS:
            return value
        return call(graph, aten._to_copy.default, value, self.node.name, dtype=self.node.meta["val"].dtype)

    def value(self) -> Any:
        """What is kept, as a fake."""
        value: Any = self.node.meta.get("val")
        if self.form is Form.PLAIN:
            return value
        with torch.no_grad(), shape_cache.mode_of(value):
            return value.clone() if self.form is Form.COPY else value.to(torch.bool)


def call(graph: torch.fx.Graph, target: Any, like: Node, name: str, **keywords: Any) -> Node:
    """A new node that calls an operator on one node, with a fake result."""
    made = graph.create_node("call_function", target, (like,), keywords, name)
    made.meta = {key: value for key, value in like.meta.items() if key in ("stack_trace", "region", "seq_nr")}
    value = like.meta.get("val")
    if isinstance(value, torch.Tensor):
        with torch.no_grad(), shape_cache.mode_of(value):
            made.meta["val"] = target(value, **keywords)
    return made


def key_of(saved: Saved, joint: JointNodes) -> str:
    """A name for a saved value that holds in other joint graphs with the same forward."""
    if saved.node in joint.states:
        return f"{STATE}({joint.states[saved.node].name})"
    name = expression_text(saved.node, joint, {})
    return name if saved.form is Form.PLAIN else f"{saved.form.value}({name})"


def parse_key(key: str) -> tuple[Form, bool, str]:
    """The form of a saved value, whether it is the state of a generator, and the text of its node."""
    for form in (Form.COPY, Form.BITS):
        if key.startswith(f"{form.value}("):
            return form, False, key[len(form.value) + 1 : -1]
    if key.startswith(f"{STATE}("):
        return Form.PLAIN, True, key[len(STATE) + 1 : -1]
    return Form.PLAIN, False, key


def expression_text(node: Node, joint: JointNodes, known: dict[Node, str]) -> str:
    """A node recorded in the backward by what it computes: its name there depends on what was recorded before it."""
    if node not in joint.in_backward or node.op == "placeholder":
        return node.name
    if node not in known:
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: expression_text(arg, joint, known))
        text = f"{node.target}{arguments}"
        known[node] = text if len(text) < 200 else f"{node.target}({hashlib.sha256(text.encode()).hexdigest()})"
    return known[node]
