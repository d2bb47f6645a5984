"""What becomes one kernel, and that fusion keeps the meaning."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.codegen_programs import calls, check_meaning, launches, scheduled_of


def test_a_chain_of_elementwise_operators_is_one_loop():
    a, b = torch.randn(6, 8), torch.randn(8)
    found = check_meaning(lambda a, b: torch.tanh(a * b + 1).relu() - a, (a, b))
    (launch,) = launches(found)
    assert not calls(found)
    assert len(launch.kernel.loops) == 2  # b keeps the axes apart


def test_contiguous_axes_are_one_loop():
    (launch,) = launches(check_meaning(lambda a: a.exp() + 1, (torch.randn(2, 3, 4),)))
    assert len(launch.kernel.loops) == 1


def test_softmax_is_one_kernel_of_three_phases():
    (launch,) = launches(check_meaning(lambda a: torch.softmax(a, -1), (torch.randn(5, 7, 9),)))
    kernel = launch.kernel
    assert [reduction.kind for reduction in kernel.reductions] == ["max", "sum"]
    assert [kernel.phase(reduction.value) for reduction in kernel.reductions] == [0, 1]
    assert kernel.phase(kernel.outputs[0].value) == 2


def test_softmax_over_another_axis_goes_along_the_contiguous_one():
    (launch,) = launches(check_meaning(lambda a: torch.softmax(a, 0), (torch.randn(5, 16),)))
    assert launch.kernel.vector == 0 and not launch.kernel.loops[0].is_reduced


def test_layer_norm_and_what_follows_is_one_kernel():
    x, w, b = torch.randn(4, 8, 16), torch.randn(16), torch.randn(16)
    found = check_meaning(lambda x, w, b: F.gelu(F.layer_norm(x, (16,), w, b) + x), (x, w, b))
    assert len(launches(found)) == 1 and not calls(found)


def test_a_value_that_only_the_kernel_reads_is_not_stored():
    def function(x):
        y = x.exp()
        return (y * 2).sum(-1), (y + 1).sum(-1)

    (launch,) = launches(check_meaning(function, (torch.randn(8, 16),)))
    assert all(buffer.shape != (8, 16) or buffer.kind == "input" for buffer in launch.buffers)


def test_a_shape_seen_in_finer_axes_goes_into_the_same_kernel():
    def function(x, y):
        z = (x.view(24, 16) + y).tanh()
        return z.sum(-1), z.view(4, 6, 16) * 2

    assert len(launches(check_meaning(function, (torch.randn(4, 6, 16), torch.randn(24, 16))))) == 1


def test_what_is_read_at_another_place_is_another_kernel():
    def function(x):
        y = x.sin()
        return y + y.t()

    assert len(launches(check_meaning(function, (torch.randn(16, 16),)))) == 2


def test_no_cycle_through_a_call():
    def function(x, w):
        y = x.sin()
        return torch.mm(y, w).exp() + y, y.sum(1)

    found = check_meaning(function, (torch.randn(8, 8), torch.randn(8, 8)))
    assert calls(found) == ["aten.mm.default"]


def test_reductions_along_different_axes_are_different_kernels():
    found = check_meaning(lambda x: (x.exp().sum(0), x.exp().sum(1)), (torch.randn(16, 32),))
    assert len(launches(found)) == 2


def test_a_sum_of_everything_is_made_of_parts():
    found = check_meaning(lambda x: x.double().sum(), (torch.randn(256, 256),))
    first, second = launches(found)
    assert not first.kernel.loops[0].is_reduced and first.kernel.loops[0].size > 1
    assert all(loop.is_reduced for loop in second.kernel.loops)


def test_kernels_that_differ_in_buffers_only_are_one():
    def function(a, b, w):
        return torch.mm((torch.mm(a, w) * 2).tanh(), w).mul(2).tanh()

    found = check_meaning(function, (torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8)))
    assert len(launches(found)) == 2 and len(found.kernels) == 1


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (1,), ()], ids=str)
def test_empty_and_single_elements(shape):
    check_meaning(lambda x: (x.exp() + 1, x.sum()), (torch.randn(shape),))


def test_sizes_that_vary():
    x = torch.randn(6, 16)
    found = scheduled_of(lambda x: torch.softmax(x, -1) + 1, (x,), "symbolic")
    (launch,) = launches(found)
    assert launch.kernel.sizes


def test_channels_last_goes_along_the_channels():
    x = torch.randn(2, 16, 5, 5).to(memory_format=torch.channels_last)
    (launch,) = launches(check_meaning(lambda x, s: F.relu(x * s), (x, torch.randn(1, 16, 1, 1))))
    assert launch.kernel.loops[launch.kernel.vector].size == 16


def test_results_laid_out_as_in_eager():
    x = torch.randn(4, 6)
    check_meaning(lambda x: (x.t() * 2, (x + 1).t(), x.expand(3, 4, 6).clone(), x.exp().expand(2, 4, 6)), (x,))


def test_a_reduction_of_single_elements_beside_a_real_one():
    def function(x):
        y = x.exp()
        z = y.unsqueeze(1).sum(1)
        return z * 2, z.sum(-1), y.unsqueeze(-1).argmax(-1), y.amax(-1)

    check_meaning(function, (torch.randn(4, 16),))
