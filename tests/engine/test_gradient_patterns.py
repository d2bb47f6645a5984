"""What the bytecode of a Python backward tells about the gradients it gives."""

import pytest
import torch

from kiln.engine.walk import gradient_patterns


def made(backward):
    """The class of the nodes of a function with this backward."""
    kind = type(
        "Made", (torch.autograd.Function,), {"forward": staticmethod(lambda ctx, x: x * 1), "backward": backward}
    )
    return type(kind.apply(torch.ones(2, requires_grad=True)).grad_fn)


def all_gradients(ctx, gradient):
    return gradient, gradient * 2


def trailing_none(ctx, gradient):
    return gradient * 2, None


def none_first(ctx, gradient):
    return None, gradient


def single(ctx, gradient):
    return gradient


def nothing(ctx, gradient):
    return None


def constants(ctx, gradient):
    return None, None


def branches_agree(ctx, gradient):
    if gradient.sum() > 0:
        return gradient * 2, None
    return gradient, None


def branches_differ(ctx, gradient):
    if gradient.sum() > 0:
        return gradient, None
    return None, gradient


@torch.autograd.function.once_differentiable
def once(ctx, gradient):
    return gradient, None


@pytest.mark.parametrize(
    ("backward", "pattern"),
    [
        (all_gradients, (True, True)),
        (trailing_none, (True, False)),
        (none_first, (False, True)),
        (single, (True,)),
        (nothing, (False,)),
        (constants, (False, False)),
        (branches_agree, (True, False)),
        (branches_differ, (True, True)),  # nothing is known
        (once, (True, False)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_pattern_is_read_from_the_code(backward, pattern):
    gradient_patterns.reset()
    assert gradient_patterns.predict(made(staticmethod(backward)), len(pattern)) == pattern


def test_a_pattern_that_was_seen_counts_more():
    kind = made(staticmethod(branches_differ))
    gradient_patterns.learn(kind, (False, True))
    assert gradient_patterns.predict(kind, 2) == (False, True)
    gradient_patterns.reset()
    assert gradient_patterns.predict(kind, 2) == (True, True)
