"""`associative_scan` is captured; expected values come from plain loops, as torch's own compiles itself."""

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import kiln


def gated(left, right):
    a, b = left
    c, d = right
    return a * c, c * b + d


def loop(xs, dim, reverse):
    a, b = (x.movedim(dim, 0).flip(0) if reverse else x.movedim(dim, 0) for x in xs)
    states = [(a[0], b[0])]
    for one in zip(a[1:], b[1:], strict=True):
        states.append(gated(states[-1], one))
    made = (torch.stack(part) for part in zip(*states, strict=True))
    return tuple((part.flip(0) if reverse else part).movedim(0, dim) for part in made)


@pytest.mark.parametrize(("dim", "reverse"), [(1, False), (0, True)])
def test_a_scan_serves_lengths_between_two_powers(dim, reverse):
    def program(*xs):
        return associative_scan(gated, xs, dim=dim, reverse=reverse, combine_mode="generic")

    compiled = kiln.compile(program, fullgraph=True)
    reasons = []
    with kiln.on_recompile(lambda function, reason: reasons.append(reason)):
        for length in (11, 13, 9, 16):
            xs = [torch.rand(length, length).requires_grad_() for _ in range(2)]
            seen, expected = compiled(*xs), loop(xs, dim, reverse)
            torch.testing.assert_close(seen, expected)
            torch.testing.assert_close(
                torch.autograd.grad(seen[1].sum(), xs), torch.autograd.grad(expected[1].sum(), xs)
            )
    assert len(reasons) == 1


def test_a_function_that_looks_at_several_elements_is_left_alone():
    def program(x):
        return associative_scan(lambda a, b: a @ b, x, dim=0, combine_mode="generic")

    with pytest.raises(kiln.exc.Unsupported, match="more than one element"):
        kiln.compile(program, fullgraph=True)(torch.rand(4, 2, 2))
