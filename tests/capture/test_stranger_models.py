"""What a stranger to Kiln meets around models: programs as people write them, and what Kiln tells when it cannot."""

import pytest
import torch

import kiln


@kiln.disable
def kept_out(x):
    return x


def two(x):
    yield x
    yield x + 1


def gradient(x):
    return torch.autograd.grad(x.sin().sum(), x)


def backward(x):
    torch.autograd.backward(x.sin().sum())


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (lambda x: two(x), "capture a generator that outlives the graph; it is made by Python instead."),
        (lambda x: kept_out(x), "What to do: call it outside the compiled function, or take kiln.disable away."),
        (gradient, "capture a call to torch.autograd.grad: "),
        (backward, "capture a call to torch.autograd.backward: "),
    ],
    ids=["generator", "disabled", "grad", "backward"],
)
def test_what_is_told(program, told):
    """In sentences, and in the words of the program rather than of what lies below it."""
    with pytest.raises(kiln.exc.Unsupported) as found:
        kiln.compile(program, fullgraph=True)(torch.ones(2, requires_grad=True))
    assert told in str(found.value), found.value
