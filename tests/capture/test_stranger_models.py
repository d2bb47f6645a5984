"""What a stranger to Kiln meets around models: programs as people write them, and what Kiln tells when it cannot."""

import pytest
import torch

import kiln
from kiln.testing import check


@kiln.disable
def kept_out(x):
    return x


def two(x):
    yield x
    yield x + 1


def backward(x):
    torch.autograd.backward(x.sin().sum(), create_graph=True)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (lambda x: two(x), "capture a generator that outlives the graph; it is made by Python instead."),
        (lambda x: kept_out(x), "What to do: call it outside the compiled function, or take kiln.disable away."),
        (backward, "capture backward(create_graph=True): gradients of leaves would have a history"),
    ],
    ids=["generator", "disabled", "backward"],
)
def test_what_is_told(program, told):
    """In sentences, and in the words of the program rather than of what lies below it."""
    with pytest.raises(kiln.exc.Unsupported) as found:
        kiln.compile(program, fullgraph=True)(torch.ones(2, requires_grad=True))
    assert told in str(found.value), found.value


# -- reasons of recompiles run none of the program's code ------------------------------------------------------------


class Silent:
    def __repr__(self):
        raise ValueError("nobody asked")


class SilentClass(type):
    __repr__ = Silent.__repr__


class Scale(metaclass=SilentClass):
    scale = 2


class OtherScale(Scale):
    scale = 3


def by_key(given, x):
    return sum(given.values()) * x


def by_identity(given, x):
    return x + 1 if given is KEYS[0] else x * given.scale


KEYS = [Silent(), Silent()]


@pytest.mark.parametrize(
    ("program", "values"),
    [(by_key, [{KEYS[0]: 1}, {KEYS[1]: 2, KEYS[0]: 1}, {KEYS[0]: 1.5}]), (by_identity, [Scale, OtherScale, KEYS[0]])],
)
def test_reasons_of_recompiles_ask_for_no_text(program, values):
    compiled, reasons = kiln.compile(program), []
    with kiln.on_recompile(lambda function, reason: reasons.append(reason)), kiln.config.patch(log={"guards"}):
        for value in values:
            assert torch.equal(compiled(value, torch.ones(2)), program(value, torch.ones(2)))
    assert len(reasons) == 2 and all(len(reason.splitlines()) == 1 for reason in reasons)


class SilentError(Exception):
    __str__ = Silent.__repr__


class SilentlyRaising(torch.nn.Module):
    def forward(self, x, given):
        if x.shape[0] == 2:
            raise SilentError(given) if given else ValueError(Silent())
        return x + 1


@pytest.mark.parametrize("given", ["text", None])
def test_errors_of_the_program_are_not_asked_for_text(given):
    compiled = kiln.compile(SilentlyRaising())
    for size in (2, 3, 2):
        try:
            assert torch.equal(compiled(torch.ones(size), given), torch.full((3,), 2.0))
        except (SilentError, ValueError) as error:
            assert size == 2 and type(error) is (SilentError if given else ValueError) and len(error.args) == 1


# -- in-place changes that torch refuses because memory overlaps: only real tensors tell ------------------------------


def count_and_copy(count, source, target):
    count += 1
    source.mul_(2)
    target.copy_(source)
    return target


def count_and_fill(count, source, target):
    count.add_(1)
    source.mul_(2)
    return target.expand(3, *target.shape).add_(source.sum())


def within_one(count, source, target):
    count.add_(1)
    source[:1].copy_(source[1:] + 1)
    target[:-1].add_(target[1:])
    return target


def side_by_side():
    return torch.zeros(()), torch.ones(2, 3), torch.ones(2, 3)


def in_part():
    base = torch.arange(12.0).view(4, 3)
    return torch.zeros(()), base[:2], base[1:3]


def count_and_try(count, source, target):
    count += 1
    try:
        target.copy_(source)
    except RuntimeError:
        return count + source.sum()
    return target * 2


@pytest.mark.parametrize("program", [count_and_copy, count_and_fill, within_one, count_and_try])
@pytest.mark.parametrize("order", [(in_part, in_part), (side_by_side, in_part, side_by_side)])
def test_changes_before_a_refused_one_are_made_once(program, order):
    """Where the graph was captured for other memory, the error is right, and comes out of the graph."""
    told = order[0] is in_part or program is not count_and_copy
    check(setup=lambda: (program, [make() for make in order]), breaks_every=(None, "line"), tracebacks=told)


def test_memory_side_by_side_is_one_graph():
    check(setup=lambda: (count_and_copy, [side_by_side() for _ in range(3)]), graphs=1, recompiles=0, fullgraph=True)
