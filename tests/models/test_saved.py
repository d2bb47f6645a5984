"""What models keep for their backward: by default what eager keeps, with the smallest cut less."""

import pytest
import torch

import kiln
from kiln.aot import make_aot_backend
from kiln.aot.partition.partitioners import default_partition, min_cut_partition
from kiln.report import counters
from tests.models.plain_models import PLAIN

# How much of what eager keeps the smallest cut keeps, at most.
SHARES = {"plain-resnet": 0.7, "plain-unet": 0.5, "plain-gpt": 0.7, "plain-encoder": 0.8, "plain-checkpoint": 1.0}


def storage_bytes(values, apart_from):
    known = {tensor.untyped_storage().data_ptr() for tensor in apart_from if isinstance(tensor, torch.Tensor)}
    storages = [tensor.untyped_storage() for tensor in values if isinstance(tensor, torch.Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in known}.values())


def collecting(partitioner, kept):
    """A backend that runs both graphs op by op, and collects what forwards save."""
    counts = []

    def partition(joint, inputs, *, num_fwd_outputs, **more):
        counts.append(num_fwd_outputs)
        return partitioner(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)

    def forward(module, _):
        count = counts.pop()

        def run(*args):
            results = module(*args)
            kept.extend(results[count:])
            return results

        return run

    return make_aot_backend(forward, lambda module, _: module, partition_fn=partition)


def step(model, call, batch):
    model.zero_grad()
    torch.manual_seed(3)
    leaves = torch.utils._pytree.tree_leaves(call(**batch))
    sum([leaf.sum() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]).backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", SHARES)
def test_kept_for_backward(name):
    torch.manual_seed(0)
    model, inputs = PLAIN[name]()
    batch = inputs(2, 7)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    known = [*model.parameters(), *model.buffers(), *batch.values()]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.detach()) or t, lambda t: t):
        wanted = step(model, model, batch)
    in_eager = storage_bytes(kept, known)
    for partitioner, share in ((default_partition, 1.01), (min_cut_partition, SHARES[name])):
        model.load_state_dict(state)
        kept, before = [], counters["aot eager"]
        got = step(model, kiln.compile(model, backend=collecting(partitioner, kept)), batch)
        assert counters["aot eager"] == before and kept, "left to eager"
        torch.testing.assert_close(got, wanted)
        assert 0 < storage_bytes(kept, known) <= share * in_eager
