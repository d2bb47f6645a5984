"""What it costs to save a value, and to compute it again, for the minimum cut.

On a CPU the unit is memory: a saved value costs its bytes, work is a small fraction of that. On a GPU the unit is
traffic between the processor and its memory, which is what time is spent on there:

- a saved value is read by the backward, and written by the forward, unless the forward writes it anyway because a
  library call (a product, a convolution, attention) reads it or makes it;
- a value that is computed again inside the loops of its readers costs next to nothing, but one that a library call of
  the backward reads has to be written there;
- the memory that a saved value holds has a price, lower than that of moving it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ...program.graph_device import device_of_graph
from ...program.operators.operator_table import find_operator
from .joint_nodes import JointNodes
from .node_values import Node, bytes_of, is_tensor, nodes_in
from .recompute_cost import CostClass, is_view

SCALE = 64  # capacities are bytes times this, so that prices can be fractions of them


class Prices:
    """The prices on a CPU."""

    again: ClassVar[dict[CostClass, int]] = {
        CostClass.CHEAP: SCALE // 16,
        CostClass.PASS: SCALE // 4,
        CostClass.RANDOM: SCALE // 16,
    }  # of computing a byte again
    calling: ClassVar[int] = 512 * SCALE  # an operator again: small tensors are not worth it
    moving: ClassVar[int] = SCALE // 8  # a byte, from the backward, where it was recorded, to the forward
    span: ClassVar[int] = 16  # how many expensive operators in sequence a value may lie before its recomputation

    def __init__(self, joint: JointNodes) -> None:
        self.joint = joint

    def of_saving(self, node: Node) -> int:
        return bytes_of(node) * SCALE

    def of_computing_again(self, node: Node, cost: CostClass) -> int | None:
        """None: nothing beside what it reads."""
        price = self.again.get(cost)
        return None if price is None else result_bytes(node) * price + self.calling


class PricesOnGpu(Prices):
    """The prices on a GPU. A launch takes as long as some megabytes, and what is computed again mostly shares the loops
    of its readers; where it does not, small tensors are not worth it. What comes from far back in the forward does not
    share loops: all that lies between would be put into memory."""

    again: ClassVar[dict[CostClass, int]] = Prices.again | {CostClass.CHEAP: SCALE // 64, CostClass.PASS: SCALE // 8}
    calling: ClassVar[int] = 4096 * SCALE
    span: ClassVar[int] = 4
    reading: ClassVar[int] = SCALE
    writing: ClassVar[int] = SCALE
    holding: ClassVar[int] = SCALE // 2

    def __init__(self, joint: JointNodes) -> None:
        super().__init__(joint)
        bound = joint.bound
        self.stored = in_memory_of(node for node in joint.nodes if node not in bound)
        self.stored.update(nodes_in(joint.outputs))
        self.called_with = in_memory_of(node for node in joint.nodes if node in bound)

    def of_saving(self, node: Node) -> int:
        is_stored = node in self.stored or self.joint.costs[node] is CostClass.EXPENSIVE
        return bytes_of(node) * (self.reading + self.holding + (0 if is_stored else self.writing))

    def of_computing_again(self, node: Node, cost: CostClass) -> int | None:
        price = super().of_computing_again(node, cost)
        if price is None or node not in self.called_with:
            return price
        return price + bytes_of(node) * (self.writing + self.reading)


def prices_of(joint: JointNodes) -> Prices:
    return PricesOnGpu(joint) if device_of_graph(joint.module).type == "cuda" else Prices(joint)


def in_memory_of(nodes: Iterable[Node]) -> set[Node]:
    """The values that library calls among these nodes read, and what those values are views of."""
    found: set[Node] = set()
    for node in nodes:
        called = find_operator(node.target)
        if called is None or not called.is_library_call:
            continue
        for read in node.all_input_nodes:
            found.add(read)
            while is_view(read) and isinstance(read.args[0], Node):
                read = read.args[0]
                found.add(read)
    return found


def result_bytes(node: Node) -> int:
    """Of all results of a node."""
    if is_tensor(node):
        return bytes_of(node)
    return sum([bytes_of(user) for user in node.users])
