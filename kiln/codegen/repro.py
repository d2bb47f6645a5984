"""Files that reproduce a compilation, for bug reports: the compiled graphs, and inputs like those of the program.

`text_of` writes such a file (``kiln.explain(f)(*args).save_repro(path)``). The file calls `run`, which compiles each
graph again and compares it with eager, on random numbers of the same shapes, strides and types.
"""

from __future__ import annotations

import builtins
import re
import textwrap
import types
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx

from ..platform.torch_symbols import hint_of
from ..version import VERSION
from .graph_compiler import compile_graph

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
HEAD = '''\
"""What Kiln compiled, to run on its own: ``python {name}``. Numbers are random, shapes, strides and types are not."""

# Kiln {kiln}, torch {torch}
{imports}
from kiln.codegen.repro import run, tensor
'''
CLASS = """

class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
{constants}{forward}

{upper}_INPUTS = [
{inputs}
]
"""
TAIL = """

if __name__ == "__main__":
    torch.manual_seed(0)
{calls}
"""


def text_of(modules: Sequence[torch.fx.GraphModule], name: str, notes: Sequence[str] = ()) -> str:
    """The file: a class and a list of inputs for each graph. ``notes`` are for people, one for each graph."""
    imports: dict[str, None] = {"import torch": None}
    classes, calls = [], []
    for number, module in enumerate(modules, 1):
        found = module.graph.python_code("self")
        used = {name: value for name, value in found.globals.items() if re.search(rf"\b{name}\b", found.src)}
        imports.update(dict.fromkeys(imports_of(used)))
        label = f"Graph{number}"
        classes.append(
            CLASS.format(
                name=label,
                upper=label.upper(),
                constants="".join(f"        {line}\n" for line in constants_of(module)),
                forward="\n" + textwrap.indent(found.src.strip(), "    "),
                inputs="\n".join(f"    {spelled(node.meta.get('val'))},  # {node.name}" for node in inputs_of(module)),
            )
        )
        if number <= len(notes):
            classes.append(commented(f"The kernels that it became:\n{notes[number - 1]}"))
        calls.append(f"    run({label}(), {label.upper()}_INPUTS)")
    head = HEAD.format(name=name, kiln=VERSION, torch=torch.__version__, imports="\n".join(sorted(imports)))
    return head + "".join(classes) + TAIL.format(calls="\n".join(calls))


def commented(text: str) -> str:
    return "\n" + "".join(f"# {line}".rstrip() + "\n" for line in text.rstrip().splitlines())


def inputs_of(module: torch.fx.GraphModule) -> Iterable[torch.fx.Node]:
    return (node for node in module.graph.nodes if node.op == "placeholder")


def constants_of(module: torch.fx.GraphModule) -> list[str]:
    """Statements that make the graph's own tensors."""
    names = dict.fromkeys(str(node.target) for node in module.graph.nodes if node.op == "get_attr")
    lines = []
    for name in names:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part)
        lines.append(f"self.{name} = {spelled(value)}" if "." not in name else f"# {name} lies in another module")
    return lines


def spelled(value: Any) -> str:
    """An expression that makes something like a value of a graph."""
    if isinstance(value, torch.Tensor):
        shape, strides = [number(size) for size in value.shape], [number(size) for size in value.stride()]
        return f"tensor({shape}, {strides}, {value.dtype})"
    if isinstance(value, SYMBOLIC):
        return repr(number(value))
    return repr(value) if isinstance(value, (int, float, bool, str, type(None))) else "None"


def number(value: Any) -> Any:
    """A number, or what one that varies was when the graph was made."""
    return hint_of(value) if isinstance(value, SYMBOLIC) else value


def imports_of(names: dict[str, Any]) -> Iterable[str]:
    """Statements that define the names that a graph's text uses."""
    for name, value in names.items():
        if isinstance(value, types.ModuleType):
            yield f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
        elif isinstance(value, float):
            yield f"{name} = float({str(value)!r})"
        elif value is type(None):
            yield f"{name} = type(None)"
        elif getattr(builtins, name, None) is not value and hasattr(value, "__qualname__"):
            whole = value.__qualname__
            yield f"from {value.__module__} import {whole}" + ("" if whole == name else f" as {name}")


# ---- what the file calls ---------------------------------------------------------------------------------------------


def tensor(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Random numbers; of integers 0 and 1, which are indices of anything."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(count, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    else:
        values = torch.randint(0, 2, (count,)).to(dtype)
    return values.as_strided(shape, strides)


def traced(module: torch.nn.Module, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The graph of a module of the file, with the form of each value."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    from ..platform.torch_fake import FakeTensorMode

    graph = torch.fx.symbolic_trace(module)
    with torch.no_grad():
        FakeTensorProp(graph, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*inputs)
    for node, given in zip(inputs_of(graph), inputs, strict=True):
        if not isinstance(given, torch.Tensor):
            node.meta["val"] = given
    for node in graph.graph.nodes:
        if node.op == "output" and not isinstance(node.args[0], (list, tuple)):
            node.args = ([node.args[0]],)
    return graph


def run(module: torch.nn.Module, inputs: Sequence[Any]) -> float:
    """Compile a graph, compare it with eager, say how far they are apart; gives the greatest difference."""
    graph = traced(module, inputs)
    program = compile_graph(graph, inputs)
    with torch.no_grad():
        torch.manual_seed(0)
        expected = torch.fx.Interpreter(graph).run(*inputs)
        torch.manual_seed(0)
        found = program(list(inputs))
    pairs = [(one, other) for one, other in zip(found, expected, strict=True) if isinstance(one, torch.Tensor)]
    worst = max((distance(one, other) for one, other in pairs if one.numel()), default=0.0)
    print(f"{type(module).__name__}: {len(pairs)} results, at most {worst:.3g} from eager's")
    return worst


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The greatest difference of two tensors; infinite where one is NaN and the other is not."""
    one, other = one.to(torch.complex128), other.to(torch.complex128)
    is_same = (one == other) | (one.isnan() & other.isnan())
    return float((one - other).abs().nan_to_num(torch.inf, torch.inf).masked_fill(is_same, 0.0).max())
