"""Graphs that torch's compiler has captured, brought into the form of Kiln's own captured graphs.

- Tensors that the graph holds, such as the state of an optimizer, become inputs: the graph may change them.
- Numbers that torch hands over in tensors, read by ``item``, become inputs. (Floats that vary are such numbers.)
- Checkpointed regions become calls of `checkpointed`. Where a graph runs as it is, torch's own operator does not draw
  the same random numbers again.
- A product and sum that torch makes of an operation of the program is these two: as an operator it belongs to torch's
  own code generator, and takes no numbers where other operators do.
- Operators that only call their graphs, such as that of ``torch.autograd.Function``, get these graphs as they are, and
  the operator of ``nested_compile_region`` becomes the call. Others, such as ``torch.cond``, cannot be traced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ..platform.torch_operators import HigherOrderOperator, OpOverload
from ..platform.torch_symbols import has_hint
from ..program.checkpoint_call import checkpointed
from ..program.graph_meta import set_traceable_backward
from ..program.graph_modules import placeholders

MULTIPLY_ADD = "prims.fma.default"
CHECKPOINT = "tag_activation_checkpoint"
REGION = "invoke_subgraph"
# Operators in Python that call their graphs.
CALLERS = "autograd_function_apply wrap wrap_with_autocast wrap_with_set_grad_enabled dynamo_bypassing_wrapper".split()
CONTEXTS = "_checkpoint_context_fn"  # in the meta of a region: what makes the contexts of a selective checkpoint
Reader = Callable[[Sequence[Any]], Any]  # of an input, from the arguments that torch gives


class TorchGraph:
    """A copy of a graph of torch's, in Kiln's form, with examples of its inputs. (torch goes on using the original.)"""

    def __init__(self, module: torch.fx.GraphModule, examples: Sequence[Any]) -> None:
        module = self.module = copy_of(module)
        self.inputs: list[Any] = []
        self.readers: list[Reader] = []
        self.changed = False
        nodes = placeholders(module)
        for index, (node, example) in enumerate(zip(nodes, examples, strict=True)):
            if not self.read_number(index, node):
                self.add_input(argument(index), example)
        self.take_out_tensors()
        translate_calls(module)
        module.recompile()

    def add_input(self, reader: Reader, example: Any) -> None:
        self.readers.append(reader)
        self.inputs.append(example)

    def read_number(self, index: int, node: torch.fx.Node) -> bool:
        """Make an input of the number in a tensor, if that is all that is read of the tensor."""
        reads = list(node.users)
        if not reads or not all(is_read_of_number(read) for read in reads):
            return False
        number = self.new_placeholder(node, f"{node.name}_item", reads[0])
        for read in reads:
            read.replace_all_uses_with(number)
            node.graph.erase_node(read)
        node.graph.erase_node(node)
        self.add_input(number_at(index), number.meta["example_value"])
        return True

    def take_out_tensors(self) -> None:
        """Make inputs of the tensors that the graph holds."""
        taken: dict[str, torch.fx.Node] = {}
        last = next(reversed(placeholders(self.module)), None)
        for node in self.module.graph.find_nodes(op="get_attr"):
            tensor = attribute(self.module, str(node.target))
            if not isinstance(tensor, torch.Tensor):
                continue
            if node.target not in taken:
                last = taken[str(node.target)] = self.new_placeholder(last, node.name, node)
                self.add_input(constant(tensor), tensor)
            node.replace_all_uses_with(taken[str(node.target)])
            node.graph.erase_node(node)

    def new_placeholder(self, after: torch.fx.Node | None, name: str, like: torch.fx.Node) -> torch.fx.Node:
        graph = self.module.graph
        position = graph.inserting_after(after) if after is not None else graph.inserting_before()
        with position:
            made = graph.placeholder(name)
        made.meta = {key: value for key, value in like.meta.items() if key in ("example_value", "stack_trace")}
        self.changed = True
        return made

    def called_as_torch_does(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What is compiled for the changed graph, with the arguments of the original."""
        if not self.changed:
            return compiled
        readers = self.readers
        return lambda *arguments: compiled(*[read(arguments) for read in readers])


def argument(index: int) -> Reader:
    return lambda arguments: arguments[index]


def number_at(index: int) -> Reader:
    return lambda arguments: arguments[index].item()


def constant(value: Any) -> Reader:
    return lambda arguments: value


def is_read_of_number(node: torch.fx.Node) -> bool:
    """Whether this is a number of the call that torch's guards know, and not one that the program computes."""
    number = node.meta.get("example_value")
    is_read = node.op == "call_method" and node.target == "item"
    return is_read and isinstance(number, (torch.SymInt, torch.SymFloat)) and has_hint(number)


def copy_of(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A module with a graph of its own and the same tensors and modules."""
    made = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    made.meta = dict(module.meta)
    return made


def attribute(module: torch.fx.GraphModule, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


# -- operators ---------------------------------------------------------------------------------------------------------


def translate_calls(module: torch.fx.GraphModule) -> None:
    """Translate what Kiln's own graphs do not have, also in copies of the graphs that a graph calls."""
    for node in list(module.graph.nodes):
        if isinstance(node.target, OpOverload) and str(node.target) == MULTIPLY_ADD:
            node.target = multiply_add
        if node.op != "call_function" or not isinstance(node.target, HigherOrderOperator):
            continue
        regions: dict[torch.fx.Node, torch.fx.GraphModule] = {}
        for each in node.all_input_nodes:
            found = attribute(module, str(each.target)) if each.op == "get_attr" else None
            if isinstance(found, torch.fx.GraphModule):
                regions[each] = region = copy_of(found)
                translate_calls(region)
                region.recompile()
                setattr(module, str(each.target), region)
        name = operator_name(node.target)
        if name == CHECKPOINT:
            translate_checkpoint(module, node, next(iter(regions.values())))
        elif name == REGION:
            translate_region(node, next(iter(regions.values())))
        elif name in CALLERS:
            bind(node, regions)
        else:
            set_traceable_backward(node, f"torch's operator {name}, which calls graphs")


def multiply_add(first: Any, second: Any, third: Any) -> Any:
    return first * second + third


def translate_checkpoint(module: torch.fx.GraphModule, node: torch.fx.Node, region: torch.fx.GraphModule) -> None:
    """torch takes all kinds of checkpoints for such that are not reentrant."""
    first, *passed = node.args
    options: dict[str, Any] = {**node.kwargs, "use_reentrant": False, "preserve_rng_state": True}
    contexts = region.meta.get(CONTEXTS) or options.pop("context_fn", None)
    if contexts is not None:
        name = f"contexts_of_{node.name}"
        setattr(module, name, contexts)
        with module.graph.inserting_before(node):
            options["context_fn"] = module.graph.create_node("get_attr", name, (), {})
    node.target = checkpointed
    node.args, node.kwargs = (first, tuple(passed), ()), options


def translate_region(node: torch.fx.Node, region: torch.fx.GraphModule) -> None:
    """A call of a graph and no more: the graph, a name, the arguments."""
    _, _, *passed = node.args

    def call_region(*given: Any) -> Any:
        return region.forward(*given)

    node.target, node.args, node.kwargs = call_region, tuple(passed), {}


def operator_name(operator: Any) -> str:
    return str(operator.name())


def bind(node: torch.fx.Node, regions: dict[torch.fx.Node, torch.fx.GraphModule]) -> None:
    """Make a call that gets its graphs as they are. They come first among the arguments, or are in their place."""
    operator: Any = node.target
    arguments: list[Any] = list(node.args)
    places = {place: regions[each] for place, each in enumerate(arguments) if each in regions}
    rest = [each for place, each in enumerate(arguments) if place not in places]

    def call(*given: Any, **keywords: Any) -> Any:
        remaining = iter(given)
        count = len(given) + len(places)
        return operator(*[places[at] if at in places else next(remaining) for at in range(count)], **keywords)

    call.__name__ = operator_name(operator)
    node.target = call
    node.args = tuple(rest)
