"""Partitioners: both halves give eager's values, and what is saved, recomputed, kept in order is what it should be."""

import operator
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from kiln.aot.partition.backward_extraction import extract_backward, saved_keys, split_stages
from kiln.aot.partition.graph_cleanup import clean_up, eliminate_dead
from kiln.aot.partition.graph_writers import CannotExtract
from kiln.aot.partition.max_flow import SINK, SOURCE, FlowGraph
from kiln.aot.partition.partitioners import default_partition, min_cut_partition
from kiln.aot.partition.recompute_cost import CostClass, operator_cost
from kiln.aot.partition.saved_report import saved_bytes
from kiln.platform.torch_fake import FakeTensorMode
from kiln.program.graph_meta import set_mutated_primals
from tests.aot.joint_graphs import eager_results, joint_graph, run_both

aten = torch.ops.aten
PARTITIONERS = [default_partition, min_cut_partition]


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def names_of_ops(module):
    return [target._opname for target in targets(module) if isinstance(target, torch._ops.OpOverload)]


def saved_of(forward, output_count):
    return {row.name: row for row in saved_bytes(forward, output_count).tensors}


def check_equal(function, inputs, forward, backward, output_count):
    torch.manual_seed(7)
    outputs, gradients, tangents = eager_results(function, inputs)
    state = torch.get_rng_state()
    torch.manual_seed(7)
    got_outputs, got_gradients = run_both(forward, backward, inputs, tangents, output_count)
    assert torch.equal(torch.get_rng_state(), state)
    for wanted, got in zip([*outputs, *gradients], [*got_outputs, *got_gradients], strict=True):
        assert (wanted is None) == (got is None)
        if wanted is not None:
            assert torch.equal(wanted, got) and wanted.dtype == got.dtype


def partition(partitioner, function, inputs, symbolic=False, **options):
    """Both modules, checked against eager; how many outputs."""
    joint, count = joint_graph(function, *inputs, symbolic=symbolic)
    forward, backward = partitioner(joint, inputs, num_fwd_outputs=count, **options)
    check_equal(function, inputs, forward, backward, count)
    return forward, backward, count


# -- programs ---------------------------------------------------------------------------------------------------------


def attention(x, w, o):
    q, k, v = (F.layer_norm(x, (8,)) @ w).chunk(3, -1)
    weights = torch.softmax(q @ k.transpose(-1, -2) / 3, -1)
    return x + (weights @ v) @ o


def feed_forward(x, a, b):
    return torch.relu(F.gelu(x @ a) @ b).sum(), (x * 2).mean()


def dropout(x, w):
    hidden = x @ w
    noise = aten.bernoulli.p(hidden.detach(), 0.5) / 0.5
    return F.layer_norm(torch.sin(hidden * noise), (8,)) @ w


def convolution(x, w):
    return F.max_pool2d(F.batch_norm(F.conv2d(x, w), None, None, training=True).relu(), 2)


def loss(x, w, y):
    return F.cross_entropy(x @ w, y)


def lookup(table, index, w):
    return (table[index].tanh() @ w)[:, 0].exp()


def no_gradient_of_some(x, y):
    return x.detach() * 2, (x.sin() * y.detach()).sum()


def direct(x, w):
    """Gradients that are values of the forward, or incoming ones, as they are."""
    return x + w, x * 1.0


PROGRAMS = {
    "attention": (attention, lambda: (leaf(2, 4, 8), leaf(8, 24), leaf(8, 8))),
    "feed_forward": (feed_forward, lambda: (leaf(4, 8), leaf(8, 16), leaf(16, 8))),
    "dropout": (dropout, lambda: (leaf(4, 8), leaf(8, 8))),
    "convolution": (convolution, lambda: (torch.randn(2, 3, 8, 8), leaf(4, 3, 3, 3))),
    "loss": (loss, lambda: (torch.randn(6, 8), leaf(8, 5), torch.arange(6) % 5)),
    "lookup": (lookup, lambda: (leaf(10, 8), torch.arange(4), leaf(8, 3))),
    "no_gradient_of_some": (no_gradient_of_some, lambda: (leaf(4), leaf(4))),
    "direct": (direct, lambda: (leaf(4), leaf(4))),
}


SIZES = [(name, name in ("feed_forward", "loss", "lookup")) for name in PROGRAMS]  # and whether with symbolic sizes
SIZES += [("dropout", True)]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize(("name", "symbolic"), SIZES)
def test_halves_give_values_of_eager(name, partitioner, symbolic):
    function, make = PROGRAMS[name]
    torch.manual_seed(0)
    partition(partitioner, function, make(), symbolic)


@pytest.mark.parametrize("name", PROGRAMS)
def test_min_cut_saves_no_more_than_default(name):
    function, make = PROGRAMS[name]
    inputs = make()
    totals = []
    for partitioner in PARTITIONERS:
        forward, _, count = partition(partitioner, function, inputs)
        totals.append(saved_bytes(forward, count).activation_bytes)
    assert totals[1] <= totals[0]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_symbolic_halves_run_at_other_sizes(partitioner):
    inputs = leaf(2, 4, 8), leaf(8, 24), leaf(8, 8)
    joint, count = joint_graph(attention, *inputs, symbolic=True)
    forward, backward = partitioner(joint, inputs, num_fwd_outputs=count)
    check_equal(attention, (leaf(3, 5, 8), *inputs[1:]), forward, backward, count)


# -- what is saved ----------------------------------------------------------------------------------------------------


def test_pointwise_chains_are_computed_again():
    def chain(x, w):
        h = x @ w
        return (h.sin() * h.cos()).exp().tanh() @ w

    forward, backward, count = partition(min_cut_partition, chain, (leaf(160, 8), leaf(8, 8)))
    activations = [row for row in saved_of(forward, count).values() if not row.is_input]
    assert [row.bytes for row in activations] == [160 * 8 * 4]
    assert names_of_ops(backward).count("exp") == 1 and names_of_ops(forward).count("mm") == 2


EXPENSIVE = {
    "mm": lambda x, w: (x @ w).sin(),
    "convolution": lambda x, w: F.conv1d(x[None], w[:, :, None]).sin(),
    "cumsum": lambda x, w: (x * w).cumsum(0).sin(),
    "sum": lambda x, w: (x * w).sum(0).sin() * w,
    "sort": lambda x, w: (x * w).sort(0).values.sin(),
    "bernoulli": lambda x, w: torch.bernoulli(x.detach().sigmoid()) * w.sin(),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_operators_run_once(name):
    forward, backward, count = partition(min_cut_partition, EXPENSIVE[name], (leaf(8, 8), leaf(8, 8)))
    assert name in names_of_ops(forward)
    again = [node for node in backward.graph.nodes if node.op == "call_function" and node.meta["region"] == "forward"]
    assert name not in [node.target._opname for node in again if isinstance(node.target, torch._ops.OpOverload)]


def test_users_operators_run_once_and_are_kept_when_unused():
    with torch.library._scoped_library("kiln_partition_test", "FRAGMENT") as library:
        library.define("square(Tensor x) -> Tensor")
        library.impl("square", lambda x: x * x, "CompositeExplicitAutograd")
        square = torch.ops.kiln_partition_test.square.default

        def program(x):
            square(x.detach())
            return (square(x.detach()).exp() * x).sin()

        for partitioner in PARTITIONERS:
            forward, backward, _ = partition(partitioner, program, (leaf(8),))
            assert targets(forward).count(square) == 2 and square not in targets(backward)


def test_normalisations_are_computed_again_rather_than_saved():
    def program(x, w):
        h = F.layer_norm(x @ w, (8,))
        return (h @ w).sum()

    forward, backward, count = partition(min_cut_partition, program, (leaf(32, 8), leaf(8, 8)))
    assert saved_bytes(forward, count).activation_bytes <= 32 * 8 * 4 + 2 * 32 * 4
    assert "native_layer_norm" in names_of_ops(backward)


def test_zeros_and_ones_are_saved_as_truth_values():
    forward, backward, count = partition(min_cut_partition, dropout, (leaf(64, 8), leaf(8, 8)))
    rows = [row for row in saved_of(forward, count).values() if not row.is_input]
    assert sorted((row.dtype, row.bytes) for row in rows if row.dtype == torch.bool) == [(torch.bool, 64 * 8)]
    assert "bernoulli" not in names_of_ops(backward)


def test_result_of_dropout_is_made_from_its_mask():
    def program(x, w):
        hidden, _ = torch.native_dropout(x @ w, 0.5, True)
        return hidden.sin() @ w

    forward, backward, count = partition(min_cut_partition, program, (leaf(64, 8), leaf(8, 8)))
    assert saved_bytes(forward, count).activation_bytes <= 64 * 8 * (4 + 1)
    assert "native_dropout" not in names_of_ops(backward)


def test_masks_recorded_in_the_backward_move_to_the_forward():
    def program(x, w):
        h = x @ w
        return torch.where(h > 0, h, h * 0.1).sum()

    forward, _, count = partition(min_cut_partition, program, (leaf(64, 8), leaf(8, 8)))
    assert saved_bytes(forward, count).activation_bytes == 64 * 8

    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (ctx.saved_tensors[0] > 0)

    forward, _, count = partition(min_cut_partition, lambda x, w: Clipped.apply(x @ w).sum(), (leaf(64, 8), leaf(8, 8)))
    assert saved_bytes(forward, count).activation_bytes == 64 * 8


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_views_of_one_memory_are_saved_as_that(partitioner):
    def program(x, w):
        h = x @ w
        return h[:2].sin().sum() + h[2:].sin().sum() + h.t().sin().sum()

    forward, _, count = partition(partitioner, program, (leaf(4, 4), leaf(4, 4)))
    assert [row.shape for row in saved_of(forward, count).values() if not row.is_input] == [(4, 4)]


def test_small_part_of_large_memory_is_saved_as_a_copy():
    def program(x, w):
        return (x @ w)[:, 0].sin()

    forward, _, count = partition(min_cut_partition, program, (leaf(16, 8), leaf(8, 8)))
    assert saved_bytes(forward, count).activation_bytes == 16 * 4


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("program", [lambda x, w: x.sin() * w, lambda x, w: x[1:].sin() * w], ids=["whole", "view"])
def test_inputs_that_get_new_values_are_saved_as_copies(partitioner, program):
    inputs = leaf(4, 4), leaf(4)
    joint, count = joint_graph(program, *inputs)
    set_mutated_primals(joint, frozenset({"primals_1"}))
    forward, backward = partitioner(joint, inputs, num_fwd_outputs=count)
    x, w = [i.detach().clone() for i in inputs]
    *outputs, tangent = eager_results(program, inputs)
    result, *saved = forward(x, w)
    x.zero_()
    assert all(torch.equal(got, wanted) for got, wanted in zip(backward(*saved, *tangent), outputs[1], strict=True))


def test_parameters_are_kept_rather_than_what_is_made_from_them():
    def program(x, w):
        return x @ w.half().float()

    x, w = leaf(4, 32), torch.nn.Parameter(torch.randn(32, 32))
    forward, _, count = partition(min_cut_partition, program, (x, w))
    assert saved_bytes(forward, count).activation_bytes == 0


def test_small_tensors_are_not_worth_the_work():
    forward, backward, _ = partition(min_cut_partition, lambda x, w: (x * w).sin().sum(), (leaf(8), leaf(8)))
    assert names_of_ops(backward).count("mul") == 3  # those of the gradients


def test_inputs_that_eager_does_not_keep_are_not_kept_for_nothing():
    forward, _, count = partition(min_cut_partition, lambda x: (x + 1).sin(), (leaf(8),))
    assert not [row for row in saved_of(forward, count).values() if row.is_input]


def test_sums_through_all_layers_are_not_made_again_from_the_start():
    """Each part is half the size of the sum, so a cut by bytes alone would keep all parts."""

    def program(x, w):
        for _ in range(40):
            x = x + (x.sin().half() @ w).float()
        return x

    x, w = leaf(16, 8), leaf(8, 8, dtype=torch.float16)
    joint, count = joint_graph(program, x, w)
    forward, backward = min_cut_partition(joint, (x, w), num_fwd_outputs=count)
    assert any(row.dtype == torch.float32 and not row.is_input for row in saved_of(forward, count).values())


def test_numbers_are_read_from_what_is_saved():
    def program(x, y):
        return x.sin() * y.shape[0], (y * 2).expand(3, -1).sum() * x.numel()

    inputs = leaf(4), leaf(6)
    forward, backward, count = partition(default_partition, program, inputs, symbolic=True)
    results = forward(*inputs)
    assert [value for value in results[count:] if not isinstance(value, torch.Tensor)] == [6]  # x, not y, is saved
    placeholders = [node.name for node in backward.graph.nodes if node.op == "placeholder"]
    assert [name.startswith("primals") for name in placeholders[:2]] == [False, True]  # numbers first


def test_report_counts_memory_once_and_says_where():
    def program(x, w):
        h = x @ w
        return h.t().sin(), h.sin()

    joint, count = joint_graph(program, leaf(4, 4), leaf(4, 4))
    for node in joint.graph.nodes:
        node.meta["stack_trace"] = (
            '  File "a.py", line 3, in f\n    return x\n  File "b.py", line 5, in g\n    h = x @ w\n'
        )
    forward, _ = default_partition(joint, (), num_fwd_outputs=count)
    report = saved_bytes(forward, count)
    assert report.activation_bytes == 64 and report.total_bytes == 64 * 3
    assert {row.where for row in report.tensors if not row.is_input} == {'File "b.py", line 5, in g'}


# -- order and effects ------------------------------------------------------------------------------------------------


def test_recomputation_comes_right_before_its_first_reader():
    def program(x, w):
        for _ in range(4):
            x = (x @ w).sin().exp()
        return x

    _, backward, _ = partition(min_cut_partition, program, (leaf(80, 8), leaf(8, 8)))
    order = {node: index for index, node in enumerate(backward.graph.nodes)}
    again = [node for node in order if node.op == "call_function" and node.meta["region"] == "forward"]
    assert len(again) >= 4
    for node in again:
        between = [other for other in list(order)[order[node] + 1 : min(order[user] for user in node.users)]]
        assert all(other.meta["region"] == "forward" or other.target is aten.t.default for other in between)


hook_log = []


@torch.fx.node.has_side_effect
def note(what, value):
    hook_log.append(what)
    return value


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_effects_stay_in_order_and_in_their_half(partitioner):
    joint, count = joint_graph(lambda x: x.sin().exp(), leaf(4))
    graph = joint.graph
    by_name = {node.name: node for node in graph.nodes}
    noted = [("forward", "sin"), ("forward", "exp"), ("backward", "mul"), ("backward", "mul_1")]
    for region, name in noted:
        with graph.inserting_after(by_name[name]):
            node = graph.call_function(note, (name, by_name[name]))
        node.meta.update(region=region, val=by_name[name].meta["val"])
    forward, backward = partitioner(joint, (), num_fwd_outputs=count)
    hook_log.clear()
    result, *saved = forward(torch.ones(4))
    assert hook_log == ["sin", "exp"]
    backward(*saved, torch.ones(4))
    assert hook_log == ["sin", "exp", "mul", "mul_1"]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_unused_random_nodes_and_assertions_stay(partitioner):
    def program(x):
        torch.rand(3)
        torch._assert_async((x.detach() < 100).all(), "large")
        return x.sin()

    forward, backward, _ = partition(partitioner, program, (leaf(4),))
    assert {"rand", "_assert_async"} <= set(names_of_ops(forward)) and "rand" not in names_of_ops(backward)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_checkpointed_regions_stay_in_the_backward(partitioner):
    """What is recorded again in the backward is neither saved nor computed once for both."""

    def program(x, w):
        return torch.utils.checkpoint.checkpoint(lambda x: (x @ w).sin() @ w, x.exp(), use_reentrant=False).sum()

    forward, backward, count = partition(partitioner, program, (leaf(8, 4), leaf(4, 4)))
    assert sum([row.bytes for row in saved_of(forward, count).values() if not row.is_input]) == 8 * 4 * 4
    assert names_of_ops(forward).count("mm") == 2 and names_of_ops(backward).count("mm") >= 5


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_graphs_that_do_not_say_what_was_recorded_when(partitioner):
    inputs = leaf(4, 8), leaf(8, 16), leaf(16, 8)
    joint, count = joint_graph(feed_forward, *inputs)
    for node in joint.graph.nodes:
        node.meta.pop("region", None)
    forward, backward = partitioner(joint, inputs, num_fwd_outputs=count)
    check_equal(feed_forward, inputs, forward, backward, count)


# -- other backwards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize(("name", "symbolic"), SIZES)
def test_backward_of_fewer_gradients_from_the_same_saved_values(name, partitioner, symbolic):
    function, make = PROGRAMS[name]
    inputs = make()
    joint, count = joint_graph(function, *inputs, symbolic=symbolic)
    forward, _ = partitioner(joint, inputs, num_fwd_outputs=count)
    fewer, _ = joint_graph(function, *inputs, symbolic=symbolic)
    output = next(node for node in fewer.graph.nodes if node.op == "output")
    wanted = next(i for i, value in enumerate(output.args[0][count:]) if value is not None)
    output.args = ([value if i in (*range(count), count + wanted) else None for i, value in enumerate(output.args[0])],)
    backward = extract_backward(clean_up(fewer), saved_keys(forward, count), count)
    torch.manual_seed(7)
    _, gradients, tangents = eager_results(function, inputs)
    torch.manual_seed(7)
    _, got = run_both(forward, backward, inputs, tangents, count)
    assert torch.equal(got[wanted], gradients[wanted]) and sum(value is not None for value in got) == 1


def test_values_moved_to_the_forward_are_found_by_what_they_compute():
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (ctx.saved_tensors[0] > 0)

    def program(x, w):
        return Clipped.apply(x @ w).sum()

    inputs = leaf(8, 8), leaf(8, 8)
    joint, count = joint_graph(program, *inputs)
    forward, _ = min_cut_partition(joint, inputs, num_fwd_outputs=count)
    other, _ = joint_graph(program, *inputs)
    for node in other.graph.nodes:
        if node.target is aten.gt.Scalar:
            node._rename("another_name")
    backward = extract_backward(other, saved_keys(forward, count), count)
    check_equal(program, inputs, forward, backward, count)


def test_backward_that_needs_what_is_not_saved():
    inputs = leaf(4, 4), leaf(4, 4)
    joint, count = joint_graph(lambda x, w: (x @ w).sin(), *inputs)
    with pytest.raises(CannotExtract, match="mm"):
        extract_backward(joint, ("primals_1", "primals_2"), count)


def test_stages_take_what_they_need():
    def program(x, y):
        return (x.sin() * 2).exp(), y.cos()

    inputs = leaf(4), leaf(5)
    joint, count = joint_graph(program, *inputs)
    forward, backward = default_partition(joint, inputs, num_fwd_outputs=count)
    stages = split_stages(backward, [(["tangents_1"], [0]), (["tangents_2"], [1])])
    outputs, gradients, tangents = eager_results(program, inputs)
    saved = forward(*inputs)[count:]
    for index, stage in enumerate(stages):
        (got,) = stage.module(*[saved[i] for i in stage.saved], tangents[index])
        assert torch.equal(got, gradients[index])
    assert not set(stages[0].saved) & set(stages[1].saved)
    with pytest.raises(CannotExtract):
        split_stages(backward, [(["tangents_1"], [1]), (["tangents_2"], [0])])


def test_effects_go_with_the_stage_whose_gradient_they_see():
    joint, count = joint_graph(lambda x, y: (x.sin(), y.exp()), leaf(4), leaf(4))
    graph = joint.graph
    for name in ("tangents_1", "tangents_2"):
        tangent = next(node for node in graph.nodes if node.name == name)
        first = next(node for node in graph.nodes if node.meta.get("region") == "backward")
        with graph.inserting_before(first):
            node = graph.call_function(note, (name, tangent))
        node.meta.update(region="backward", val=tangent.meta["val"])
    _, backward = default_partition(joint, (), num_fwd_outputs=count)
    stages = split_stages(backward, [(["tangents_2"], [1]), (["tangents_1"], [0])])
    seen = []
    for stage in stages:
        hook_log.clear()
        stage.module(*[torch.ones(4)] * (len(stage.saved) + 1))
        seen.append(list(hook_log))
    assert seen == [["tangents_2"], ["tangents_1"]]


# -- parts ------------------------------------------------------------------------------------------------------------


def test_dead_code_goes_and_effects_stay():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(aten.sin.default, (graph.call_function(aten.cos.default, (x,)),))
    graph.call_function(aten.rand_like.default, (x,))
    graph.call_function(note, ("x", x))
    graph.output((graph.call_function(aten.exp.default, (x,)),))
    eliminate_dead(graph)
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [
        aten.rand_like.default,
        note,
        aten.exp.default,
    ]


def test_clean_up_reads_through_aliases_and_double_transposes():
    def program(x):
        y = x.detach().t().t() + x.transpose(0, 1).transpose(-1, -2) + x.transpose(0, 1).t()
        return y, x.detach()

    joint, _ = joint_graph(program, leaf(3, 3))
    wanted = joint(torch.ones(3, 3), torch.ones(3, 3))
    clean_up(joint).recompile()
    forward = [node.target for node in joint.graph.nodes if node.meta.get("region") == "forward"]
    assert forward.count(aten.t.default) == 1
    detached = (aten.detach.default, aten.alias.default)  # the first up to torch 2.13, the second from 2.14 on
    assert sum(forward.count(each) for each in detached) == 1
    assert all(torch.equal(a, b) for a, b in zip(joint(torch.ones(3, 3), torch.ones(3, 3)), wanted, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_cut_is_the_smallest(seed):
    """Against trying all cuts of a small graph."""
    rng = random.Random(seed)
    flow, inner = FlowGraph(), 6
    vertices = [SOURCE, SINK, *[flow.add_vertex() for _ in range(inner)]]
    edges = [(rng.choice(vertices), rng.choice(vertices), rng.randrange(1, 20)) for _ in range(18)]
    for edge in edges:
        flow.add_edge(*edge)

    def weight(on_sink_side):
        return sum([capacity for tail, head, capacity in edges if on_sink_side[head] and not on_sink_side[tail]])

    sides = [[False, True, *[bool(mask >> i & 1) for i in range(inner)]] for mask in range(1 << inner)]
    best = min(map(weight, sides))
    found = flow.sink_side()
    assert weight(found) == best
    assert sum(found) == min(sum(side) for side in sides if weight(side) == best)


def test_kinds_of_operators():
    wanted = {
        aten.add.Tensor: CostClass.CHEAP,
        aten.view.default: CostClass.VIEW,
        aten._unsafe_view.default: CostClass.VIEW,
        aten.split.Tensor: CostClass.VIEW,
        aten._softmax.default: CostClass.PASS,
        aten.mm.default: CostClass.EXPENSIVE,
        aten.empty_like.default: CostClass.CHEAP,
        aten.native_dropout.default: CostClass.RANDOM,
        aten.max_pool2d_with_indices.default: CostClass.EXPENSIVE,
        operator.add: CostClass.EXPENSIVE,
    }
    assert {target: operator_cost(target) for target in wanted} == wanted


def test_what_is_filled_does_not_keep_what_it_is_like():
    def program(x, w):
        h = x @ w
        return (torch.full_like(h, 2.0) * x).sum() + h.new_ones(h.shape[0]).sum() * w.sum()

    for symbolic in (False, True):
        forward, _, count = partition(default_partition, program, (leaf(4, 4), leaf(4, 4)), symbolic=symbolic)
        assert saved_bytes(forward, count).activation_bytes <= 4 * 4 * 4 + 4
        assert symbolic or "mm" not in names_of_ops(forward)
    transposed = lambda x: torch.zeros_like(x.t() * 2) + x.t()
    joint, _ = joint_graph(transposed, leaf(3, 4))
    assert aten.zeros_like.default in targets(clean_up(joint))  # its strides are those of the tensor


def test_values_that_the_backward_records_twice_are_saved_once():
    def program(x, w):
        return torch.maximum(x @ w, x @ w.t()).sum()  # its backward compares the two for each of them

    inputs = leaf(64, 8), leaf(8, 8)
    forward, _, count = partition(min_cut_partition, program, inputs)
    names = saved_keys(forward, count)
    assert len(set(names)) == len(names) and any("aten.eq" in name for name in names)
    backward = extract_backward(joint_graph(program, *inputs)[0], names, count)
    check_equal(program, inputs, forward, backward, count)


# -- programs made at random ------------------------------------------------------------------------------------------

SIDE = 24
UNARY = [
    torch.sin,
    F.gelu,
    lambda x: x * 2 + 1,
    lambda x: x.t(),
    lambda x: torch.softmax(x, -1),
    lambda x: F.layer_norm(x, (SIDE,)),
    lambda x: x.sum(0, keepdim=True).expand(SIDE, SIDE),
    lambda x: x[: SIDE // 2].repeat(2, 1),
    lambda x: torch.cat(x.chunk(3, 1)[::-1], 1),
    lambda x: torch.where(x > 0, x, x * 0.1),
    lambda x: x * torch.bernoulli(torch.full_like(x.detach(), 0.6)),
    lambda x: torch.native_dropout(x, 0.5, True)[0],
    lambda x: x.half().float(),
    lambda x: x.select(0, 1).unsqueeze(0) * x,
    lambda x: x.sort(0).values,
    lambda x: x.max(0, keepdim=True).values + x,
]
BINARY = [torch.add, torch.mul, lambda a, b: a @ b / SIDE, torch.maximum]


def random_program(seed):
    def program(*inputs):
        rng, values = random.Random(seed), list(inputs)
        for _ in range(rng.randrange(8, 20)):
            if rng.random() < 0.7:
                values.append(rng.choice(UNARY)(rng.choice(values[-5:])))
            else:
                values.append(rng.choice(BINARY)(rng.choice(values[-6:]), rng.choice(values)))
        return values[-1], rng.choice(values[len(inputs) :]).mean()

    return program


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed):
    """Both halves and a backward extracted later, with an input that gets a new value in between for some of them."""
    torch.manual_seed(seed)
    program = random_program(seed)
    inputs = leaf(SIDE, SIDE), leaf(SIDE, SIDE), torch.nn.Parameter(torch.randn(SIDE, SIDE))
    torch.manual_seed(7)
    outputs, gradients, tangents = eager_results(program, inputs)
    for partitioner, options in ((default_partition, {}), (min_cut_partition, {"recompute_random": seed % 2 == 0})):
        joint, count = joint_graph(program, *inputs)
        set_mutated_primals(joint, frozenset({"primals_1"}))
        forward, backward = partitioner(joint, inputs, num_fwd_outputs=count, **options)
        other = extract_backward(joint_graph(program, *inputs)[0], saved_keys(forward, count), count)
        for half in (backward, other):
            given = [value.detach().clone() for value in inputs]
            torch.manual_seed(7)
            results = [value.clone() if i < count else value for i, value in enumerate(forward(*given))]
            given[0].fill_(float("nan"))
            with torch.no_grad():
                got = [*results[:count], *half(*results[count:], *tangents)]
            torch.testing.assert_close(got, [*outputs, *gradients])


# -- GPUs -------------------------------------------------------------------------------------------------------------


def on_gpu(module):
    """The graph as if all its values were on a GPU."""
    with FakeTensorMode():
        for node in module.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                shape, strides = tuple(value.shape), value.stride()
                node.meta["val"] = torch.empty_strided(shape, strides, dtype=value.dtype, device="cuda")
    return module


def partitioned_on_gpu(function, inputs):
    joint, count = joint_graph(function, *inputs)
    forward, backward = min_cut_partition(on_gpu(joint), inputs, num_fwd_outputs=count)
    return set(saved_of(forward, count)), backward


def test_operands_of_products_are_saved_on_gpus():
    """The forward has written them for its own products; computed again they would be written again."""

    def function(x, w, v):
        return torch.nn.functional.gelu(x @ w) @ v

    saved, backward = partitioned_on_gpu(function, [leaf(512, 512), leaf(512, 512), leaf(512, 512)])
    assert "gelu" in saved and "mm" in saved
    assert not backward.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default)


def test_what_only_kernels_read_is_computed_again_on_gpus():
    def function(x, w):
        y = x @ w
        return y.exp().sin().mul(y).cos()

    saved, _ = partitioned_on_gpu(function, [leaf(512, 512), leaf(512, 512)])
    assert saved <= {"mm", "primals_1", "primals_2"}


def test_sums_of_many_layers_are_saved_on_gpus():
    """From its parts, all of which would be read, such a sum would be computed again and put into memory."""

    def function(x, w):
        for _ in range(6):
            x = x + (torch.nn.functional.layer_norm(x, (512,)) @ w).sin() @ w
        return x.sum()

    saved, _ = partitioned_on_gpu(function, [leaf(512, 512), leaf(512, 512)])
    assert any(name.startswith("add") for name in saved)


def test_long_chains_are_computed_again_on_gpus():
    """Arithmetic is cheaper there beside memory."""

    def function(x, w):
        y = x @ w
        z = y
        for _ in range(20):
            z = z * 1.01 + 0.1
        return y.sin(), z.sin()

    inputs = [leaf(512, 512), leaf(512, 512)]
    saved = {}
    for place in ("cpu", "cuda"):
        joint, count = joint_graph(function, *inputs)
        joint = on_gpu(joint) if place == "cuda" else joint
        forward, _ = min_cut_partition(joint, inputs, num_fwd_outputs=count)
        saved[place] = set(saved_of(forward, count))
    assert {"mm"} < saved["cpu"] and any(name.startswith("add") for name in saved["cpu"])
    assert "mm" in saved["cuda"] and not any(name.startswith("add") for name in saved["cuda"])


def test_running_statistics_are_not_copied():
    """They are held for second derivatives, which do not depend on them in training."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.BatchNorm1d(4))
    compiled = kiln.compile(model)
    x = torch.randn(8, 4)
    compiled(x).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        compiled(x)
    assert "aten::clone" not in [event.key for event in profiled.key_averages()]
