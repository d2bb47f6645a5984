"""What eager refuses, generated code refuses as well; and numbers that a type does not hold are what eager makes of
them: an error, or a number that is wrapped around."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kiln

F = torch.nn.functional
INTS = torch.tensor([-58, 51, 0, 5, 127, -128, 1, 7], dtype=torch.int8)
BYTES = torch.tensor([70, 179, 0, 8, 255, 1, 128, 41], dtype=torch.uint8)
HALVES, FLOATS = torch.linspace(-3, 3, 9, dtype=torch.float16), torch.linspace(-3, 3, 9)
BOOLS, NOTHING = torch.tensor([True, False, True]), torch.ones(3, 0)

REFUSED: dict[str, tuple[Callable[[torch.Tensor], object], torch.Tensor]] = {
    "full": (lambda x: torch.full_like(x, 300), INTS),
    "full of halves": (lambda x: torch.full_like(x, 1e6), HALVES),
    "full of a fraction": (lambda x: torch.full_like(x, -0.1), BYTES),
    "new_full": (lambda x: x.new_full((2,), 1e300), FLOATS),
    "fill": (lambda x: x.clone().fill_(-300), BYTES),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -1e9), HALVES),
    "clamp": (lambda x: x.clamp(min=300), INTS),
    "clamp of bools": (lambda x: x.clamp(min=True), BOOLS),
    "where": (lambda x: torch.where(x > 0, x, 1e300), FLOATS),
    "alpha": (lambda x: torch.add(x, x, alpha=1e6), HALVES),
    "threshold": (lambda x: F.threshold(x, 0.0, 1e300), FLOATS),
    "hardtanh": (lambda x: F.hardtanh(x, -1e6, 1e6), HALVES),
    "leaky_relu": (lambda x: F.leaky_relu(x, 1e300), FLOATS),
    "pad": (lambda x: F.pad(x, (1, 1), value=1e6), HALVES),
    "index_fill": (lambda x: x.index_fill(0, torch.tensor([1]), 1e6), HALVES),
    "scatter": (lambda x: x.scatter(0, torch.tensor([1]), 1e6), HALVES),
    "a difference of bools": (lambda x: x - x, BOOLS),
    "a bool taken away": (lambda x: x - True, FLOATS),
    "taken away from a bool": (lambda x: x - 3, BOOLS),
    "heaviside of two types": (lambda x: torch.heaviside(x, x.double()), FLOATS),
    "the greatest of nothing": (lambda x: x.max(), NOTHING),
    "the place of the greatest bool": (lambda x: x.argmax(), BOOLS),
    "a norm with weights of another type": (lambda x: F.layer_norm(x, (9,), torch.ones(9)), FLOATS.double()),
    "a batch norm with others": (lambda x: F.batch_norm(x, torch.ones(1), torch.ones(1)), FLOATS.double()[:, None]),
    "a reflected border of bools": (lambda x: F.pad(x[None], (1, 1), mode="reflect"), BOOLS),
    "the variance of integers": (lambda x: x.var(), INTS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses(name):
    function, x = REFUSED[name]
    with pytest.raises(RuntimeError) as wanted:
        function(x)
    with pytest.raises(RuntimeError) as found:
        kiln.compile(function, backend="kiln")(x)
    assert type(found.value) is type(wanted.value)
    assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]


WRAPPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "floor division": lambda x: x // -1,
    "division": lambda x: torch.div(x, -1, rounding_mode="trunc"),
    "remainder": lambda x: x % -1,
    "fmod": lambda x: torch.fmod(x, -1),
    "product": lambda x: x * -1,
    "sum": lambda x: x + 300,
    "comparison": lambda x: x == 300,
    "order": lambda x: x < -1,
    "masked_fill": lambda x: x.masked_fill(x > 7, -1),
    "full": lambda x: torch.full_like(x, -1),
}


@pytest.mark.parametrize("x", [INTS[INTS > -128], BYTES], ids=["int8", "uint8"])
def test_numbers_that_wrap_around(x):
    def together(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in WRAPPED.values()]

    found = kiln.compile(together, backend="kiln")(x)
    for name, one, wanted in zip(WRAPPED, found, together(x), strict=True):
        assert torch.equal(one, wanted), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8], ids=str)
def test_numbers_that_vary(dtype):
    """Also where they are not known when it is compiled."""
    compiled = kiln.compile(lambda x, number: x.masked_fill(x > 0, number), backend="kiln")
    x = torch.arange(-3, 4).to(dtype)
    for number in (1, 2, 3, 4, 1.5, 2.5, 3.5):
        assert torch.equal(compiled(x, number), x.masked_fill(x > 0, number))
    for number in (70000, 70000.0):
        with pytest.raises(RuntimeError, match="without overflow"):
            compiled(x, number)


def test_numbers_that_become_infinite():
    """As the other operand of floats they are no error."""
    functions = [lambda x: x + 1e6, lambda x: x * -1e6, lambda x: x / 1e6, lambda x: x < 1e6, lambda x: 1e6 - x]
    found = kiln.compile(lambda x: [function(x) for function in functions], backend="kiln")(HALVES)
    for one, function in zip(found, functions, strict=True):
        assert torch.equal(one, function(HALVES))
