"""Joint graphs for tests of the partitioners, made without Kiln's recorder: by torch's tracer."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx


def joint_graph(function, *inputs, symbolic=False, wrt=None):
    """The joint graph of a function of tensors that returns tensors, and how many outputs it has.

    As the contract wants it: placeholders `primals_…`, `tangents_…`, regions on nodes, gradients after outputs.
    """
    outputs = as_list(function(*inputs))
    tangents = [torch.ones_like(output) for output in outputs if output.requires_grad]
    of_forward = set()

    def joint(*values):
        primals, incoming = values[: len(inputs)], values[len(inputs) :]
        primals = [p.requires_grad_() if i.requires_grad else p for p, i in zip(primals, inputs, strict=True)]
        results = as_list(function(*primals))
        of_forward.update(node.name for node in get_proxy_mode().tracer.graph.nodes)
        wanted = [p for p in primals if p.requires_grad]
        gradients = torch.autograd.grad([r for r in results if r.requires_grad], wanted, incoming, allow_unused=True)
        given = iter(gradients)
        return [*results, *[next(given) if p.requires_grad else None for p in primals]]

    flat = [i.detach() for i in inputs] + tangents
    module = make_fx(joint, tracing_mode="symbolic" if symbolic else "fake")(*flat)
    graph = module.graph
    for index, node in enumerate(graph.nodes):
        if node.op == "placeholder":
            is_primal = index < len(inputs)
            name = f"primals_{index + 1}" if is_primal else f"tangents_{index + 1 - len(inputs)}"
            node._rename(name)
            node.target = node.name
        elif node.op != "output":
            node.meta["region"] = "forward" if node.name in of_forward else "backward"
    read_sizes_from_primals(graph)
    for node in graph.nodes:
        if node.op == "output":
            node.args = (list(node.args[0]),)
    graph._codegen = torch.fx.graph.CodeGen()
    module.recompile()
    return module, len(outputs)


def read_sizes_from_primals(graph):
    """The tracer reads a size that inputs and incoming gradients share from any of them, also in the forward."""
    size = torch.ops.aten.sym_size.int
    primals = [node for node in graph.nodes if node.name.startswith("primals")]
    places = {str(s): (node, dim) for node in primals for dim, s in enumerate(node.meta["val"].shape)}
    for node in graph.nodes:
        if node.target is size and node.args[0].name.startswith("tangents"):
            node.args = places.get(str(node.meta["val"]), node.args)


def as_list(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def run_both(forward, backward, inputs, tangents, output_count):
    """Outputs and gradients of a partitioned pair, called by the convention."""
    with torch.no_grad():
        results = forward(*[i.detach() for i in inputs])
        outputs, saved = results[:output_count], results[output_count:]
        tensors = [value for value in saved if isinstance(value, torch.Tensor)]
        numbers = [value for value in saved if not isinstance(value, torch.Tensor)]
        return outputs, backward(*numbers, *tensors, *tangents)


def eager_results(function, inputs):
    fresh = [i.detach().requires_grad_(i.requires_grad) for i in inputs]
    outputs = as_list(function(*fresh))
    sources = [o for o in outputs if o.requires_grad]
    tangents = [torch.ones_like(o) for o in sources]
    wanted = [f for f in fresh if f.requires_grad]
    given = iter(torch.autograd.grad(sources, wanted, tangents, allow_unused=True))
    return outputs, [next(given) if f.requires_grad else None for f in fresh], tangents
