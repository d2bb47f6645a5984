"""Operators whose results torch lays out otherwise than its rules for tensors without data say."""

import pytest
import torch
import torch.nn.functional as F

from kiln.platform.torch_fake import without_torch_compiler
from kiln.program.shapes.cpu_layouts import LAYOUTS
from kiln.program.shapes.fake_tensors import make_mode
from kiln.testing import check

aten = torch.ops.aten


def permuted(*size):
    return torch.randn(size[::-1]).permute(*reversed(range(len(size)))) + 2


def channels_last(*size):
    kind = torch.channels_last if len(size) == 4 else torch.channels_last_3d
    return torch.randn(size).contiguous(memory_format=kind)


STATISTICS = [torch.ones(3), torch.ones(3), torch.ones(3), torch.ones(3)]
SAMPLES = {
    aten._log_softmax_backward_data.default: [(permuted(2, 3), torch.randn(2, 3), 1, torch.float32)],
    aten.huber_loss_backward.default: [(permuted(2, 3), permuted(2, 3), permuted(2, 3), 0, 1.0)],
    aten.log_sigmoid_forward.default: [(permuted(2, 3),)],
    aten.mse_loss_backward.default: [(torch.ones(()), permuted(2, 3), permuted(2, 3), 1)],
    aten.normal.Tensor_Tensor: [(permuted(2, 3), permuted(2, 3).abs())],
    aten.pow.Scalar: [(2, permuted(2, 3))],
    aten.smooth_l1_loss_backward.default: [(torch.ones(()), permuted(2, 3), permuted(2, 3), 1, 1.0)],
    aten.channel_shuffle.default: [(channels_last(2, 4, 3, 3), 2)],
    aten.max_unpool2d.default: [(channels_last(1, 2, 2, 2), torch.zeros(1, 2, 2, 2, dtype=torch.int64), [4, 4])],
    aten.native_batch_norm.default: [(permuted(4, 3, 5), *STATISTICS, True, 0.1, 1e-5)],
    aten._native_batch_norm_legit.default: [(permuted(4, 3, 5), *STATISTICS, True, 0.1, 1e-5)],
    aten._native_batch_norm_legit.no_stats: [(permuted(4, 3, 5), *STATISTICS[:2], True, 0.1, 1e-5)],
    aten._native_batch_norm_legit_functional.default: [
        (permuted(4, 3, 5), *STATISTICS, True, 0.1, 1e-5),
        (channels_last(4, 3, 5, 5), *STATISTICS, True, 0.1, 1e-5),
    ],
    aten._batch_norm_with_update.default: [
        (permuted(4, 3, 5), *STATISTICS, 0.1, 1e-5),
        (channels_last(4, 3, 5, 5), *STATISTICS, 0.1, 1e-5),
    ],
    aten._batch_norm_with_update_functional.default: [
        (permuted(4, 3, 5), *STATISTICS, 0.1, 1e-5),
        (channels_last(4, 3, 5, 5), *STATISTICS, 0.1, 1e-5),
    ],
    aten.reflection_pad2d.default: [
        (channels_last(2, 3, 4, 5), [0, 1, 0, 2]),
        (permuted(2, 3, 4, 5), [0, 1, 0, 2]),
    ],
    aten.reflection_pad3d.default: [
        (channels_last(2, 3, 4, 5, 6), [0, 1, 0, 2, 1, 1]),
        (permuted(2, 3, 4, 5, 6), [0, 1, 0, 2, 1, 1]),
    ],
    aten.replication_pad2d.default: [
        (channels_last(2, 3, 4, 5), [0, 1, -1, 2]),
        (permuted(2, 3, 4, 5), [0, 1, 0, 2]),
    ],
    aten.replication_pad3d.default: [
        (channels_last(2, 3, 4, 5, 6), [0, 1, 0, 2, 1, 1]),
        (permuted(2, 3, 4, 5, 6), [0, 1, 0, 2, 1, 1]),
    ],
    aten.replication_pad2d_backward.default: [
        (channels_last(2, 3, 4, 5), channels_last(2, 3, 4, 4), [0, 1, 0, 0]),
        (torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 4), [0, 1, 0, 0]),
    ],
    aten.copysign.Tensor: [(permuted(4, 3), torch.tensor(1.0))],
    aten.div.Tensor_mode: [(permuted(4, 3), torch.tensor(2.0))],
    aten.floor_divide.default: [(permuted(4, 3), torch.tensor(2.0))],
    aten.native_dropout_backward.default: [(permuted(4, 3, 2), permuted(4, 3, 2) > 2, 2.0)],
}


@pytest.mark.parametrize("function", LAYOUTS, ids=str)
def test_layout(function):
    """Each row of the table is needed or harmless: what it says is what the kernel gives."""
    from kiln.program.shapes import shape_cache

    for args in SAMPLES[function]:
        keywords = {"rounding_mode": "floor"} if function is aten.div.Tensor_mode else {}
        real = function(*args, **keywords)
        mode = make_mode()
        fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        with without_torch_compiler(), mode:
            fake = shape_cache.compute(function, tuple(fakes), keywords)
        for one, other in zip(listed(real), listed(fake), strict=True):
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def listed(result):
    return list(result) if isinstance(result, tuple) else [result]


def test_shape_after_normalisation():
    """What follows a batch norm of permuted data looks at its layout."""

    def program(x, weight, mean, variance):
        y = F.batch_norm(x.transpose(1, 2), mean, variance, weight, None, True)
        return y.transpose(1, 2).flatten(0, 1) @ torch.ones(3, 2), y

    def setup():
        return program, [(torch.randn(2, 5, 3, requires_grad=True), torch.ones(3), torch.zeros(3), torch.ones(3))]

    check(setup=setup, backend="aot_eager", fullgraph=True)
