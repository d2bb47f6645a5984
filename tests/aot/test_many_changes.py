"""Functions that change many inputs: contents, version counters and errors are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kiln

BACKENDS = ("aot_eager", "kiln")
MANY = 24


def change(tensors: list[torch.Tensor]) -> None:
    """Each a different number of times, one by its shape, some not at all."""
    for number, tensor in enumerate(tensors):
        for _ in range(number % 4):
            tensor.add_(1)
        if number % 5 == 0:
            tensor.mul_(2)
    tensors[3].t_()


def made() -> list[torch.Tensor]:
    torch.manual_seed(0)
    kinds = [
        lambda: torch.randn(4, 4),
        lambda: torch.randn(4, 8)[:, ::2],
        lambda: torch.randn(6, 4)[1:5],
        lambda: torch.randn(4, 4).t(),
        lambda: torch.randn(4, 4, dtype=torch.float64),
        lambda: torch.nn.Parameter(torch.randn(4, 4)),
        lambda: torch.tensor(3.0),
        lambda: torch.randn(130, 130),
    ]
    return [kinds[number % len(kinds)]() for number in range(MANY)]


def state(tensors: list[torch.Tensor]) -> list[Any]:
    return [
        (one.detach().clone(), one._version, one.stride(), one.storage_offset(), one.requires_grad) for one in tensors
    ]


def assert_alike(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for (one, *facts), (other, *expected) in zip(state(found), state(wanted), strict=True):
        assert torch.equal(one, other) and facts == expected
    for one, other in zip(found, wanted, strict=True):
        assert (one._base is None) == (other._base is None)
        if one._base is not None and other._base is not None:
            assert torch.equal(one._base, other._base) and one._base._version == other._base._version


@pytest.mark.parametrize("backend", BACKENDS)
def test_contents_and_versions(backend):
    found, wanted = made(), made()
    compiled = kiln.compile(change, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            compiled(found)
            change(wanted)
            assert_alike(found, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_share_memory(backend):
    compiled = kiln.compile(change, backend=backend)
    both = []
    for call in (compiled, change):
        base = torch.arange(16.0 * MANY).reshape(MANY, 4, 4)
        given = [base[number] for number in range(MANY)]
        with torch.no_grad():
            call(made())
            call(given)
        both.append([base, *given])
    assert_alike(*both)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_saved_before_is_noticed_to_have_changed(backend):
    compiled = kiln.compile(change, backend=backend)
    for place in range(MANY):
        errors = []
        for call in (compiled, change):
            tensors = made()
            factor = torch.ones((), requires_grad=True)
            result = (tensors[place].detach() * factor).sum()
            with torch.no_grad():
                call(tensors)
            try:
                result.backward()
                errors.append(None)
            except RuntimeError as error:
                errors.append(str(error).split(";")[0])
        assert errors[0] == errors[1], place


@pytest.mark.parametrize("backend", BACKENDS)
def test_storages_that_were_resized(backend):
    compiled = kiln.compile(change, backend=backend)
    found, wanted = made(), made()
    with torch.no_grad():
        for tensors, call in ((found, compiled), (wanted, change)):
            call(tensors)
            for tensor in tensors[::6]:
                content = tensor.detach().clone()
                size = tensor.untyped_storage().nbytes()
                tensor.untyped_storage().resize_(0)
                tensor.untyped_storage().resize_(4 * size)
                (tensor if tensor._base is None else tensor._base).detach().zero_()
                tensor.detach().copy_(content)
            call(tensors)
    assert_alike(found, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_in_the_middle(backend):
    def fails(tensors: list[torch.Tensor], index: torch.Tensor) -> None:
        for tensor in tensors:
            tensor.add_(1)
        tensors[1].add_(torch.arange(4.0)[index])
        for tensor in tensors:
            tensor.mul_(2)

    both = []
    for call in (kiln.compile(fails, backend=backend), fails):
        tensors = [torch.ones(4) for _ in range(MANY)]
        call(tensors, torch.tensor([0, 1, 2, 3]))
        with pytest.raises(IndexError):
            call(tensors, torch.tensor([0, 1, 2, 9]))
        both.append(tensors)
    assert_alike(*both)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_tensors(backend):
    both = []
    for call in (kiln.compile(change, backend=backend), change):
        with torch.inference_mode():
            tensors = made()
            call(tensors)
            call(tensors)
        both.append([tensor.clone() for tensor in tensors])
    for one, other in zip(*both, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_through_changed_inputs(backend):
    def run(tensors: list[torch.Tensor], factor: torch.Tensor) -> torch.Tensor:
        for number, tensor in enumerate(tensors):
            tensor.mul_(factor + number)
        return sum((tensor.sum() for tensor in tensors), torch.zeros(()))

    both = []
    for call in (kiln.compile(run, backend=backend), run):
        factor = torch.tensor(1.5, requires_grad=True)
        tensors = [torch.full((3,), float(number)) for number in range(MANY)]
        call(tensors, factor).backward()
        both.append([*tensors, factor.grad])
    for one, other in zip(*both, strict=True):
        assert torch.equal(one, other)
        assert (one._version, one.requires_grad) == (other._version, other.requires_grad)
