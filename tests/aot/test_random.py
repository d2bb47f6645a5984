"""Random numbers drawn again in the backward: masks agree with eager's, and the stream goes on as in eager."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from kiln.aot.partition.backward_extraction import extract_backward, saved_keys
from kiln.aot.partition.partitioners import default_partition, min_cut_partition
from kiln.aot.partition.random_replay import current_state, generator_for, replay, tie_random_pairs
from kiln.aot.partition.saved_report import saved_bytes
from kiln.testing import check
from tests.aot.joint_graphs import eager_results, joint_graph, run_both

aten = torch.ops.aten
CPU = torch.device("cpu")
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (aten.bernoulli.p, (0.5,)),
        (aten.native_dropout.default, (0.5, True)),
        (aten.rand_like.default, ()),
        (aten.normal_functional.default, (0.0, 2.0)),
    ],
)
def test_replay_gives_the_same_numbers_and_leaves_the_generator(function, args, device):
    x = torch.ones(100, device=device)
    generator = generator_for(x.device)
    state = current_state(x.device)
    first = function(x, *args)
    torch.rand(3, device=device)
    before = generator.get_state()
    again = replay(state, function, x, *args)
    assert torch.equal(generator.get_state(), before)
    for one, other in zip(as_tuple(first), as_tuple(again), strict=True):
        assert torch.equal(one, other)


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def test_replay_of_a_generator_of_ones_own_and_without_tensors():
    own = torch.Generator().manual_seed(3)
    before, state = torch.get_rng_state(), current_state(CPU, own)
    first = aten.rand.generator([4], generator=own)
    after = own.get_state()
    assert torch.equal(replay(state, aten.rand.generator, [4], generator=own), first)
    assert torch.equal(own.get_state(), after) and torch.equal(torch.get_rng_state(), before)
    state = current_state(CPU)
    assert torch.equal(torch.rand(4), replay(state, aten.rand.default, [4]))


def test_replay_that_raises_leaves_the_generator():
    state = current_state(CPU)
    torch.rand(1)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        replay(state, aten.bernoulli.p, torch.ones(3), 7.0)
    assert torch.equal(torch.get_rng_state(), before)


def drop(x):
    return x * torch.bernoulli(torch.full_like(x, 0.5)) * 2


def region(x, w):
    return drop(torch.relu(drop(x @ w)) @ w)


def program(x, w, preserve=True):
    hidden = checkpoint(region, x, w, use_reentrant=False, preserve_rng_state=preserve)
    return drop(hidden).sum(), hidden


def tied_joint(*inputs):
    """The joint graph in which the region is recorded twice; which random node repeats which is told."""
    joint, count = joint_graph(lambda *args: program(*args, preserve=False), *inputs)
    drawn = [node for node in joint.graph.nodes if node.target is aten.bernoulli.default]
    first = [node for node in drawn if node.meta["region"] == "forward"]
    again = [node for node in drawn if node.meta["region"] == "backward"]
    assert (len(first), len(again)) == (3, 2)
    tie_random_pairs(joint, dict(zip(again, first, strict=False)))
    return joint, count


def check_stream(function, inputs, forward, backward, count):
    torch.manual_seed(5)
    outputs, gradients, tangents = eager_results(function, inputs)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    got = run_both(forward, backward, inputs, tangents, count)
    assert torch.equal(torch.get_rng_state(), state)
    for wanted, value in zip([*outputs, *gradients], [*got[0], *got[1]], strict=True):
        assert torch.equal(wanted, value)


@pytest.mark.parametrize("partitioner", [default_partition, min_cut_partition])
def test_checkpointed_dropout_is_eagers(partitioner):
    inputs = torch.randn(6, 8).requires_grad_(), torch.randn(8, 8).requires_grad_()
    joint, count = tied_joint(*inputs)
    forward, backward = partitioner(joint, inputs, num_fwd_outputs=count)
    check_stream(program, inputs, forward, backward, count)
    assert [node.target for node in backward.graph.nodes].count(replay) == 2
    other = extract_backward(tied_joint(*inputs)[0], saved_keys(forward, count), count)
    check_stream(program, inputs, forward, other, count)


def plain(x, w):
    return region(x, w).sum()


def test_random_numbers_drawn_again_on_request():
    inputs = torch.randn(200, 80).requires_grad_(), torch.randn(80, 80).requires_grad_()
    sizes = []
    for again in (False, True):
        joint, count = joint_graph(plain, *inputs)
        forward, backward = min_cut_partition(joint, inputs, num_fwd_outputs=count, recompute_random=again)
        check_stream(plain, inputs, forward, backward, count)
        targets = [node.target for node in backward.graph.nodes]
        assert targets.count(replay) == (2 if again else 0) and aten.bernoulli.default not in targets
        sizes.append(saved_bytes(forward, count).activation_bytes)
        other = extract_backward(joint_graph(plain, *inputs)[0], saved_keys(forward, count), count)
        check_stream(plain, inputs, forward, other, count)
    states = 2 * current_state(CPU).nbytes
    assert sizes[0] - sizes[1] == 2 * 200 * 80 - states  # masks, a byte an element


def test_state_is_taken_only_where_it_saves_something():
    inputs = torch.randn(4, 8).requires_grad_(), torch.randn(8, 8).requires_grad_()
    joint, count = joint_graph(plain, *inputs)
    forward, _ = min_cut_partition(joint, inputs, num_fwd_outputs=count, recompute_random=True)
    assert current_state not in [node.target for node in forward.graph.nodes]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "permuted", "part", "expanded"])
@pytest.mark.parametrize("name", ["bernoulli_", "uniform_", "normal_", "exponential_", "random_", "geometric_"])
def test_numbers_drawn_in_place_are_those_of_the_layout(name, layout, dynamic):
    """Memory without holes is filled in its own order, whatever the order of the dimensions."""
    arguments = (0.5,) if name in ("bernoulli_", "geometric_") else ()

    def program(x):
        made = {"permuted": x.permute(2, 0, 1), "part": x[:, ::2], "expanded": x.sum(2, True).expand(3, 4, 5)}.get(
            layout, x
        )
        drawn = getattr(torch.empty_like(made * 2), name)(*arguments)
        if layout == "part":
            getattr(made := x.clone()[:, ::2], name)(*arguments)
        return drawn * made, torch.nn.functional.dropout(made, 0.5)

    check(
        program, torch.randn(3, 4, 5, requires_grad=True), backend="aot_eager", fullgraph=True, dynamic=dynamic or None
    )
