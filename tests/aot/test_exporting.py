"""Exported graphs: functional, called with everything they need, and signed."""

import pytest
import torch

import kiln
from kiln import aot


def leaf(*shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).requires_grad_()


def targets(graph):
    return {node.target for node in graph.graph.nodes if node.op == "call_function"}


def program(x, y):
    return (x * y).sin(), y + 1


def test_forward_graph():
    x, y = leaf(3), torch.ones(3)
    graph = aot.aot_export_joint_simple(program, [x, y], trace_joint=False)
    torch.testing.assert_close(graph(x, y), program(x, y))
    assert [node.name for node in graph.graph.nodes if node.op == "placeholder"] == ["arg0_1", "arg1_1"]


def test_joint_graph():
    x, y = leaf(3), torch.ones(3)
    graph = aot.aot_export_joint_simple(program, [x, y], trace_joint=True)
    tangent = torch.arange(3.0)
    (first, second), (for_x, for_y) = graph([x, y], [tangent])
    torch.testing.assert_close((first, second), program(x, y))
    torch.testing.assert_close(for_x, torch.autograd.grad(program(x, y)[0], x, tangent)[0])
    assert for_y is None
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    assert names == ["primals_1", "primals_2", "tangents_1"]


@pytest.mark.parametrize("partition", [aot.default_partition, aot.min_cut_partition])
def test_joint_graph_partitioned(partition):
    x, y = leaf(3), torch.ones(3)
    graph = aot.aot_export_joint_simple(program, [x, y], trace_joint=True)
    forward, backward = partition(graph, [x, y, torch.ones(3)], num_fwd_outputs=2)
    first, second, *saved = forward(x, y)
    torch.testing.assert_close((first, second), program(x, y))
    tangent = torch.arange(3.0)
    gradient, nothing = backward(*saved, tangent)
    torch.testing.assert_close(gradient, torch.autograd.grad(program(x, y)[0], x, tangent)[0])
    assert nothing is None


def test_arguments_must_not_change():
    with pytest.raises(kiln.exc.UserError, match="changes its arguments"):
        aot.aot_export_joint_simple(lambda x: (x.add_(1),), [torch.ones(3)], trace_joint=False)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)
        self.unused = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, *, seen):
        seen.add_(1)
        result = self.norm(self.linear(x))
        return {"loss": result.square().sum(), "rest": [result.detach(), "text"]}


STATE = ["unused", "linear.weight", "linear.bias", "norm.weight", "norm.bias"]
BUFFERS = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


@pytest.mark.parametrize("joint", [False, True])
def test_module(joint):
    import copy

    module, x, seen = Normed(), leaf(4, 2).detach(), torch.zeros(())
    reference = copy.deepcopy(module)
    graph, signature = aot.aot_export_module(
        module, (x,), kwargs={"seen": seen}, trace_joint=joint, output_loss_index=0 if joint else None
    )
    assert signature.parameters == STATE and signature.buffers == BUFFERS
    assert list(signature.inputs_to_parameters.values()) == STATE
    assert list(signature.inputs_to_buffers.values()) == BUFFERS
    assert set(signature.buffers_to_mutate.values()) == set(BUFFERS)
    assert (
        list(signature.user_inputs_to_mutate.values()) == signature.user_inputs[1:]
        and not signature.parameters_to_mutate
    )

    state = [*module.parameters(), *module.buffers()]
    given = [*(tensor.detach().clone() for tensor in state), x, seen]
    outputs = [node.name if isinstance(node, torch.fx.Node) else node for node in list(graph.graph.nodes)[-1].args[0]]
    values = dict(zip(outputs, graph(*given), strict=True))
    assert seen == 0, "the graph changes nothing"
    expected = reference(x, seen=torch.zeros(()))
    loss, detached, text = signature.user_outputs
    torch.testing.assert_close([values[loss], values[detached]], [expected["loss"].detach(), expected["rest"][0]])
    assert text == "text"
    for name, owner in signature.buffers_to_mutate.items():
        torch.testing.assert_close(values[name], reference.get_buffer(owner))
    if not joint:
        assert signature.backward_signature is None
        return
    expected["loss"].backward()
    backward = signature.backward_signature
    assert backward.loss_output == loss and not backward.gradients_to_user_inputs
    assert set(backward.gradients_to_parameters.values()) == set(STATE)
    for name, owner in backward.gradients_to_parameters.items():
        gradient = reference.get_parameter(owner).grad
        torch.testing.assert_close(values[name], torch.zeros(1) if gradient is None else gradient)


def test_module_errors():
    module = torch.nn.Linear(2, 2)
    with pytest.raises(kiln.exc.UserError, match="output_loss_index"):
        aot.aot_export_module(module, (torch.ones(1, 2),), trace_joint=True)
    with pytest.raises(kiln.exc.UserError, match="one number"):
        aot.aot_export_module(module, (torch.ones(1, 2),), trace_joint=True, output_loss_index=0)


def test_decompositions():
    table = {torch.ops.aten.silu.default: lambda x: x * torch.sigmoid(x)}
    graph = aot.aot_export_joint_simple(
        lambda x: (torch.nn.functional.silu(x),), [torch.ones(3)], trace_joint=False, decompositions=table
    )
    assert torch.ops.aten.sigmoid.default in targets(graph) and torch.ops.aten.silu.default not in targets(graph)


def test_function_over_state():
    """What a document of the ecosystem uses to number operations: flattened state first, a loss, no tangents."""
    from torch.utils._pytree import tree_flatten

    from kiln.aot.exporting import export_function
    from kiln.compat.aot import create_functional_call

    module = torch.nn.Linear(2, 2)
    flat, spec = tree_flatten({**dict(module.named_parameters()), **dict(module.named_buffers())})

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return (self.inner(x).sum(),)

    flat, spec = tree_flatten(dict(Loss().named_parameters()))
    call = create_functional_call(Loss(), spec, len(flat))
    graph, _, _, out_spec = export_function(
        call, [*flat, torch.ones(1, 2)], num_params_buffers=len(flat), no_tangents=True
    )
    assert out_spec.num_leaves == 1
    numbers = [node.meta["seq_nr"] for node in graph.graph.nodes if node.op == "call_function"]
    backward = [node.meta["seq_nr"] for node in graph.graph.nodes if node.meta.get("region") == "backward"]
    assert backward and set(backward) <= set(numbers) and all(number >= 0 for number in backward)
    loss, for_weight, for_bias, for_x = graph(*flat, torch.ones(1, 2))
    torch.testing.assert_close(for_bias, torch.ones(2))
    assert for_x is None


# -- what a graph holds for -------------------------------------------------------------------------------------------


def sized(x):
    return (x * x.shape[0] + x.numel(),)


class Sized(torch.nn.Module):
    def forward(self, x):
        return sized(x)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (torch.ones(4, 3), "size 0 of arg0_1 is 2 in it, and 4 here"),
        (torch.ones(2), "number of dimensions of arg0_1 is 2 in it, and 1 here"),
        (torch.ones(2, 3, dtype=torch.float64), "dtype of arg0_1 is torch.float32 in it, and torch.float64 here"),
        (3, "arg0_1 is a tensor in it, and of type int here"),
    ],
)
def test_other_inputs_are_refused(other, reason):
    x = torch.arange(6.0).reshape(2, 3)
    for graph in (
        aot.aot_export_joint_simple(sized, [x], trace_joint=False),
        aot.aot_export_module(Sized(), [x], trace_joint=False)[0],
    ):
        torch.testing.assert_close(graph(x), sized(x))
        with pytest.raises(kiln.exc.UserError, match=reason):
            graph(other)


def test_joint_graph_refuses_other_inputs():
    graph = aot.aot_export_joint_simple(program, [leaf(3), torch.ones(3)], trace_joint=True)
    with pytest.raises(kiln.exc.UserError, match="size 0 of primals_1 is 3 in it, and 4 here"):
        graph([leaf(4), torch.ones(4)], [torch.ones(4)])


def test_refusing_graphs_can_be_copied_and_stored():
    import copy
    import pickle

    x = torch.ones(2, 3)
    graph = aot.aot_export_joint_simple(sized, [x], trace_joint=False)
    for twin in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        torch.testing.assert_close(twin(x), sized(x))
    with pytest.raises(kiln.exc.UserError, match="exported for other inputs"):
        copy.deepcopy(graph)(torch.ones(4, 3))
