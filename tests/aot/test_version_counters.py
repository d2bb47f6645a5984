"""Version counters: ``x.data`` has one of its own, ``x.detach()`` shares that of ``x``, in results as in eager."""

import pytest
import torch

import kiln


def data_of_input(x):
    return x.data, x * 2


def changed_data_of_input(x):
    d = x.data
    d.add_(1)
    return d, x * 2


def views_of_data(x):
    d = x.data
    d.add_(1)
    part = d[0]
    part.mul_(3)
    return d, part, x * 2


def data_of_a_view(x):
    d = x[1].data
    d.add_(1)
    return d, x * 2


def data_and_detached(x):
    d, e = x.data, x.detach()
    d.add_(1)
    return d, e, x * 2


def data_of_data(x):
    d = x.data
    d.add_(1)
    e = d.data
    e.add_(1)
    return d, e, x * 2


def data_of_a_result(x):
    y = x * 2
    d = y.data
    d.add_(1)
    return y, d


def detached_result(x):
    y = x * 2
    d = y.detach()
    return y, d, d[0]


def versions(program, requires_grad):
    """Versions after the call, and after each result is changed in its turn by the caller."""
    x = torch.arange(6.0).reshape(2, 3).requires_grad_(requires_grad)
    tensors = [x, *program(x)]
    seen = [[each._version for each in tensors]]
    with torch.no_grad():
        for each in tensors:
            each.mul_(2)
            seen.append([other._version for other in tensors])
    return seen, [each.detach().clone() for each in tensors], [each._is_view() for each in tensors]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        data_of_input,
        changed_data_of_input,
        views_of_data,
        data_of_a_view,
        data_and_detached,
        data_of_data,
        data_of_a_result,
        detached_result,
    ],
    ids=lambda program: program.__name__,
)
def test_counters_are_shared_as_in_eager(program, requires_grad):
    expected = versions(program, requires_grad)
    seen = versions(kiln.compile(program, backend="kiln"), requires_grad)
    assert seen[0] == expected[0]
    assert seen[2] == expected[2]
    torch.testing.assert_close(seen[1], expected[1], rtol=0, atol=0)


def test_changing_returned_data_leaves_saved_tensors_valid():
    """Eager does not notice a change of ``weight.data``, so backward must not refuse."""

    def program(weight):
        return weight.data

    def story(program):
        weight = torch.ones(3, requires_grad=True)
        loss = (weight * weight).sum()
        program(weight).mul_(3)
        loss.backward()
        return weight.grad

    torch.testing.assert_close(story(kiln.compile(program, backend="kiln")), story(program))
