"""Branches on tensors that only guard against an error are captured; the error is the program's own.

PYTEST_DONT_REWRITE: the assertions here are the programs under test.
"""

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.testing import check
from tests.support.releases import SIZES_STAY_DYNAMIC

GOOD, BAD = torch.ones(3), torch.tensor([1.0, -1.0, 1.0])


def asserted(x):
    assert (x > 0).all(), f"all of {len(x)} must be positive"
    return x * 2


def bare(x):
    assert x.min() > 0
    return x.sqrt()


def checked(x):
    if (x <= 0).any():
        raise ValueError("positive numbers only")
    return x.log()


def checked_far(x):
    y = x + 1
    if not torch.all(x > 0):
        message = "positive" + " numbers"
        print(message)
        raise ValueError(message)
    return y * 2


def handled(x):
    try:
        return checked(x)
    except ValueError:
        return x * 0


def inside(x):
    return asserted(x) + checked(x)


def counted(x):
    limit = x.shape[0]
    assert (x > 0).all().item(), "positive numbers only"
    assert (x > 0).sum().item() == limit
    if (x < 0).sum().item() > 0:
        raise ValueError("none below zero")
    return x * limit


PROGRAMS = [asserted, bare, checked, checked_far, handled, inside, counted]


@pytest.mark.parametrize("program", PROGRAMS)
def test_checks_of_values_are_captured_and_raise_as_in_eager(program):
    check(program, calls=[(GOOD,), (BAD,), (GOOD,)], fullgraph=True, graphs=1)


class Swallowing:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return True


def raised_and_swallowed(x):
    if (x > 0).all():
        return x * 2
    with Swallowing():
        raise ValueError
    return x


def raised_and_caught(x):
    if (x > 0).all():
        return x * 2
    try:
        raise ValueError
    except ValueError:
        return x


@pytest.mark.parametrize("program", [raised_and_swallowed, raised_and_caught])
def test_what_is_raised_and_stays_inside_is_a_branch(program):
    check(program, calls=[(GOOD,), (BAD,), (GOOD,)], breaks=1)


def test_a_real_branch_still_breaks():
    def branch(x):
        if (x > 0).all():
            return x * 2
        return x / 2

    check(branch, calls=[(GOOD,), (BAD,)])
    with pytest.raises(kiln.exc.Unsupported):
        kiln.compile(branch, fullgraph=True)(GOOD)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2 if (x > 0).all().item() else x / 2,
        lambda x: (x * 2, (x > 0).sum().item()),
        lambda x: x * 2 if (x > 0).sum().item() == 3 else x / 2,
    ],
)
def test_other_uses_of_item_break(program):
    assert check(program, calls=[(GOOD,), (BAD,)]).breaks


def test_a_float_against_a_whole_number_is_compared_as_numbers():
    def program(x):
        limit = 16777216.0
        assert x.max().item() > limit
        return x * 2

    check(program, torch.tensor([16777217]), grads=False)


def test_a_check_after_an_effect_is_undone():
    def count(x, total):
        total += x.sum()
        assert (x > 0).all()
        return x + torch.rand(3)

    check(count, calls=[(x, torch.zeros(())) for x in (GOOD, BAD, GOOD)], fullgraph=True, graphs=1)


def test_a_tensor_with_several_values_is_ambiguous():
    def several(x):
        assert x > 0
        return x

    check(several, GOOD)


def test_sizes_searched_for_a_number_stay_symbolic():
    def program(x):
        return x * 2 if 0 in x.shape else x + 1

    check(program, calls=[(torch.ones(n, 2),) for n in (3, 4, 5, 6)], graphs=2, recompiles=1)


def test_a_flag_that_follows_from_a_size():
    def attend(x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=x.shape[1] > 1)

    check(attend, calls=[(torch.randn(2, n, 4),) for n in (3, 4, 5, 6)], graphs=2, recompiles=1)


def test_pooling_over_a_symbolic_length():
    pool = torch.nn.MaxPool1d(3, 2, padding=1)
    counts = {"graphs": 2, "recompiles": 1} if SIZES_STAY_DYNAMIC else {}
    check(lambda x: pool(x), calls=[(torch.randn(2, 3, n),) for n in (8, 11, 12, 17)], **counts)


# -- text that only an error would need -------------------------------------------------------------------------------


def described(x):
    message = f"bad values: {x.sum()} of {len(x)} in {x!s:>4}" if False else f"bad values: {x.sum():.2f} of {len(x)}"
    if (x <= 0).any():
        raise ValueError(message)
    return x.log()


def checked_by_torch(x):
    torch._check_tensor_all(x > 0, lambda: f"bad values in {x}")
    return x.log()


def test_torch_check_of_sizes():
    def program(x):
        torch._check(x.shape[0] < 6, lambda: f"at most five, not {x.shape[0]}")
        return x * 2

    check(program, calls=[(torch.ones(n),) for n in (3, 4, 5, 6, 2)], tracebacks=False)
    check(program, calls=[(torch.ones(n),) for n in (3, 4, 5)], fullgraph=True, graphs=2)


@pytest.mark.parametrize("program", [described, checked_by_torch])
def test_text_of_tensors_that_only_an_error_needs(program):
    check(program, calls=[(GOOD,), (BAD,), (torch.ones(4),), (torch.ones(5),), (-GOOD,)], fullgraph=True, graphs=2)


@pytest.mark.parametrize(
    "use",
    [
        lambda text: text,
        lambda text: text == "1.0",
        lambda text: {text: 1},
        lambda text: {"1.0": 1}.get(text),
        lambda text: text in ["a", "1.0"],
        lambda text: len(text),
        lambda text: text.upper(),
        lambda text: text + "!",
        lambda text: "%s" % text,  # noqa: UP031
        lambda text: f"<{text}>",
        lambda text: [text, "b"],
        lambda text: sorted([text, "b"]),
        lambda text: (isinstance(text, str), type(text), text is None, callable(text), bool(text)),
        lambda text: getattr(torch.ones(1), text, "none"),
        lambda text: str(text),
        lambda text: ",".join([text, "b"]),
        lambda text: print(text),
        lambda text: int(float(text)),
    ],
)
def test_text_of_tensors_that_somebody_looks_at(use):
    def program(x):
        y = x * 2
        return use(f"{y.item() if y.dim() > 1 else y}"), y + 1

    check(program, calls=[(torch.tensor(0.5),), (torch.tensor(4.0),)], grads=False, tracebacks=False)


def beyond_the_type(x):
    if x.max().item() <= 200:
        raise ValueError("too small")
    return x + 1


def beyond_all_types(x):
    if x.max().item() != 9223372036854775808:
        raise ValueError("not the one")
    return x + 1


@pytest.mark.parametrize("dtype", (torch.int8, torch.uint8, torch.int16, torch.int64), ids=str)
@pytest.mark.parametrize("program", (beyond_the_type, beyond_all_types))
def test_numbers_that_the_tensor_cannot_hold(program, dtype):
    """A tensor compared with such a number compares with what is left of it; an int does not."""
    check(program, calls=[(torch.tensor([1, 2], dtype=dtype),), (torch.tensor([0, 100], dtype=dtype),)])
