"""`set_contents` and `bump_versions`: what ``tensor.data.copy_`` and changes in place would do, for many tensors."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kiln import _native
from kiln.platform.torch_tensors import version_of


def base():
    return torch.arange(12.0).reshape(3, 4)


def shared_lazily():
    made = torch.arange(6.0)
    torch._lazy_clone(made)  # their memory is shared until one is changed
    return made


PAIRS = {
    "scalar": lambda: (torch.tensor(1.0), torch.tensor(2.0)),
    "matrix": lambda: (torch.zeros(3, 4), base()),
    "transposed alike": lambda: (torch.zeros(3, 4).t(), base().t()),
    "other strides": lambda: (torch.zeros(4, 3), base().t()),
    "broadcast": lambda: (torch.zeros(3, 4), torch.ones(4)),
    "other type": lambda: (torch.zeros(3, 4), torch.ones(3, 4, dtype=torch.int64)),
    "rows of a base": lambda: (base()[1:], torch.ones(2, 4)),
    "column of a base": lambda: (base()[:, 1], torch.ones(3)),
    "from a view": lambda: (torch.zeros(2, 4), base()[1:]),
    "none": lambda: (torch.zeros(0, 4), torch.ones(0, 4)),
    "large": lambda: (torch.zeros(40_000), torch.ones(40_000)),
    "leaf": lambda: (torch.nn.Parameter(torch.zeros(3)), torch.ones(3)),
    "conjugated": lambda: (torch.zeros(3, dtype=torch.complex64), torch.full((3,), 1 + 2j).conj()),
    "into conjugated": lambda: (torch.zeros(3, dtype=torch.complex64).conj(), torch.full((3,), 1 + 2j)),
    "negative": lambda: (torch.zeros(3), torch.full((3,), 1 + 2j).conj().imag),
    "shared lazily": lambda: (shared_lazily(), torch.ones(6)),
    "from what is shared lazily": lambda: (torch.ones(6), shared_lazily()),
    "sparse": lambda: (torch.zeros(3, 4).to_sparse(), base().to_sparse()),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_tensor_gets_what_copy_gives_it(case):
    target, content = PAIRS[case]()
    wanted, same = PAIRS[case]()
    before, history = version_of(target), target.grad_fn
    _native.set_contents((target,), (content,))
    wanted.data.copy_(same)
    assert torch.equal(target.to_dense().detach(), wanted.to_dense().detach())
    if target._base is not None:
        assert torch.equal(target._base, wanted._base)
    assert version_of(target) == before and target.grad_fn is history
    assert torch.equal(content.to_dense(), same.to_dense())


def test_many_tensors_at_once():
    targets, contents = zip(*(make() for make in PAIRS.values()), strict=True)
    _native.set_contents(targets, contents)
    for target, make in zip(targets, PAIRS.values(), strict=True):
        wanted, same = make()
        wanted.data.copy_(same)
        assert torch.equal(target.to_dense().detach(), wanted.to_dense().detach())


def test_a_tensor_that_is_shared_lazily_does_not_change_its_twin():
    first = torch.arange(6.0)
    twin = torch._lazy_clone(first)
    _native.set_contents((first,), (torch.ones(6),))
    assert torch.equal(first, torch.ones(6)) and torch.equal(twin, torch.arange(6.0))


def test_storages_that_were_resized():
    target, content = torch.ones(6), torch.arange(6.0)
    target.untyped_storage().resize_(0)
    target.untyped_storage().resize_(100)
    content.untyped_storage().resize_(64)
    _native.set_contents((target,), (content,))
    assert torch.equal(target, torch.arange(6.0)) and target.untyped_storage().nbytes() == 100


def test_what_is_raised_in_the_middle_comes_through():
    first, last = torch.zeros(2), torch.zeros(2)
    with pytest.raises(RuntimeError, match="size"):
        _native.set_contents((first, torch.zeros(3), last), (torch.ones(2), torch.ones(7), torch.ones(2)))
    with pytest.raises(TypeError):
        _native.set_contents((first,), (1,))
    with pytest.raises(TypeError):
        _native.set_contents((first,), ())
    with pytest.raises(TypeError):
        _native.set_contents([first], [first])


def test_modes_see_the_copies():
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    target = torch.zeros(3)
    with Mode():
        _native.set_contents((target,), (torch.ones(3),))
    assert torch.ops.aten.copy_.default in seen and torch.equal(target, torch.ones(3))


def test_versions_are_counted_for_each_tensor():
    one, other = torch.zeros(2), torch.nn.Parameter(torch.zeros(3))
    view = one[:1]
    _native.bump_versions((one, other), (2, 1))
    assert (version_of(one), version_of(view), version_of(other)) == (2, 2, 1)
    _native.bump_versions((view, other), (1, 0))
    assert (version_of(one), version_of(other)) == (3, 1)
    _native.bump_versions((), ())
    for wrong in (((one,), ()), ((1,), (1,)), ((one,), ("x",)), ([one], [1])):
        with pytest.raises(TypeError):
            _native.bump_versions(*wrong)
