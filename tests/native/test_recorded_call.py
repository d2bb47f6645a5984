"""RecordedCall: when a recording fits, what it gives, and who uses its memory."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from kiln._native import RecordedCall, RecordedMemory, any_modes

NONE = frozenset()


def recorded(arguments, results, copied=NONE, given_out=NONE, memory=None, replay=lambda: None):
    return RecordedCall(list(arguments), frozenset(copied), tuple(results), frozenset(given_out), replay, memory)


@pytest.fixture
def memory():
    return RecordedMemory()


def test_an_argument_must_be_alike(memory):
    x = torch.randn(4, 6)
    call = recorded([x], [torch.zeros(2)], copied={0}, memory=memory)
    assert call.is_alike([torch.randn(4, 6)])
    for other in (
        torch.randn(4, 7),
        torch.randn(6, 4).t(),
        torch.randn(4, 6, dtype=torch.float64),
        torch.randn(4, 6, device="meta"),
        torch.randn(4, 6, dtype=torch.complex64),
        torch.zeros(4, 6).to_sparse(),
        3,
        None,
        torch._neg_view(torch.randn(4, 6)),
    ):
        assert not call.is_alike([other]) and call([other]) is None
    assert not call.is_alike([]) and not call.is_alike([x, x])


def test_subclasses_do_not_fit(memory):
    class Own(torch.Tensor):
        pass

    call = recorded([torch.randn(4)], [torch.zeros(2)], copied={0}, memory=memory)
    assert call([torch.randn(4).as_subclass(Own)]) is None
    assert call([torch.nn.Parameter(torch.randn(4))]) is not None


def test_tangents_and_empty_storages_do_not_fit(memory):
    import torch.autograd.forward_ad as forward_ad

    call = recorded([torch.randn(4)], [torch.zeros(2)], copied={0}, memory=memory)
    with forward_ad.dual_level():
        assert call([forward_ad.make_dual(torch.randn(4), torch.randn(4))]) is None
    gone = torch.randn(4)
    gone.untyped_storage().resize_(0)
    assert call([gone]) is None


def test_modes_do_not_fit(memory):
    call = recorded([torch.randn(4)], [torch.zeros(2)], copied={0}, memory=memory)
    with torch.device("cpu"):
        assert any_modes() and call([torch.randn(4)]) is None
    assert not any_modes()
    with torch.inference_mode():
        assert call([torch.randn(4)]) is None


def test_settings_of_libraries_must_be_the_same(memory):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before  # torch tells what nobody has set from what is off
    call = recorded([torch.randn(4)], [torch.zeros(2)], copied={0}, memory=memory)
    torch.backends.cuda.matmul.allow_tf32 = not before
    try:
        assert call([torch.randn(4)]) is None
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert call([torch.randn(4)]) is None
    torch.use_deterministic_algorithms(True)
    try:
        assert call([torch.randn(4)]) is None
    finally:
        torch.use_deterministic_algorithms(False)
    assert call([torch.randn(4)]) is not None


def test_numbers_must_be_equal(memory):
    call = recorded([torch.randn(4), 3, 2.5, None, True], [torch.zeros(2)], copied={0}, memory=memory)
    x = torch.randn(4)
    assert call.is_alike([x, 3, 2.5, None, True])
    for numbers in ((4, 2.5, None, True), (3, 2.6, None, True), (3, 2.5, 0, True), (3.0, 2.5, None, True)):
        assert not call.is_alike([x, *numbers])
    assert not call.is_alike([x, 3, 2.5, None, 1])


def test_addresses(memory):
    fixed, copied = torch.randn(4), torch.randn(4)
    static, seen = torch.zeros(4), []
    call = recorded([fixed, static], [torch.zeros(1)], {1}, memory=memory, replay=lambda: seen.append(static.clone()))
    arguments = [fixed, copied]
    assert call(arguments) is not None and arguments == []
    assert torch.equal(seen[0], copied)
    moved = [torch.randn(4), copied]
    assert call.moved(moved) == [0] and call(moved) is None and len(moved) == 2 and len(seen) == 1


def test_results_are_new_tensors_over_the_memory(memory):
    own, argument = torch.zeros(3, 4), torch.randn(4, 6)
    results = [own, own[1:], own, argument, argument.t()[2:], 7, None]
    call = recorded([argument], results, memory=memory)
    addresses = own.data_ptr(), own[1:].data_ptr()
    del results, own
    first, part, again, same, view, number, nothing = call([argument])
    assert first is again and (first.data_ptr(), part.data_ptr()) == addresses and part.shape == (2, 4)
    first.add_(1)
    assert part._version == first._version == 1  # they share memory, and so the counter
    assert same is argument and torch.equal(view, argument.t()[2:]) and view.data_ptr() == argument[:, 2:].data_ptr()
    argument.add_(1)
    assert view._version == argument._version
    assert number == 7 and nothing is None and not first.requires_grad and first.grad_fn is None


def test_a_view_of_a_copied_argument_is_of_the_argument(memory):
    static = torch.zeros(4, 6)
    call = recorded([static], [static[1:3]], copied={0}, memory=memory)
    x = torch.randn(5, 6)[1:]
    (view,) = call([x])
    assert torch.equal(view, x[1:3]) and view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_results_in_use(memory):
    call = recorded([], [torch.zeros(3), torch.zeros(4)], memory=memory)
    assert call.is_free()
    results = call([])
    assert not call.is_free() and memory.count_used() == 2 and call([]) is None
    kept = results[1][2:]
    del results
    assert memory.count_used() == 1 and call([]) is None
    storage = kept.untyped_storage()
    del kept
    assert call([]) is None  # the storage alone is enough
    del storage
    assert call.is_free() and call([]) is not None


def test_a_storage_object_that_nobody_holds(memory):
    """torch keeps the Python object of a storage as long as the storage: that is no use of it."""
    call = recorded([], [torch.zeros(3)], memory=memory)
    for _ in range(3):
        (result,) = call([])
        result.untyped_storage().nbytes()
        del result
        assert call.is_free()


def test_autograd_uses_results(memory):
    w = torch.randn(3, requires_grad=True)
    call = recorded([], [torch.ones(3)], memory=memory)
    loss = (w * call([])[0]).sum()
    assert not call.is_free()
    loss.backward()
    assert call.is_free()


def test_results_given_out(memory):
    call = recorded([], [torch.arange(3.0)], given_out={0}, memory=memory)
    kept = [call([])[0] for _ in range(3)]
    assert call.is_free() and all(one.tolist() == [0, 1, 2] for one in kept)
    assert len({one.data_ptr() for one in kept}) == 3


def test_earlier_recordings_wait_for_results_of_later_ones(memory):
    first, second = (recorded([], [torch.zeros(3)], memory=memory) for _ in range(2))
    (result,) = second([])
    assert first([]) is None
    del result
    (result,) = first([])
    assert second([]) is not None


def test_a_recording_that_is_gone(memory):
    first, second = (recorded([], [torch.zeros(3)], memory=memory) for _ in range(2))
    kept = second([])
    del second
    assert first([]) is None and memory.count_used() == 1
    del kept
    assert first([]) is not None


def test_memory_that_is_resized(memory):
    call = recorded([], [torch.zeros(3)], memory=memory)
    (result,) = call([])
    result.untyped_storage().resize_(0)
    del result
    assert not call.is_intact() and call([]) is None


def test_a_recording_that_runs_does_not_run_again(memory):
    inner = []

    def replay():
        inner.append(call([]))

    call = recorded([], [], memory=memory, replay=replay)
    assert call([]) == () and inner == [None]


def test_an_error_of_the_recording(memory):
    def replay():
        raise ValueError("lost")

    call = recorded([], [torch.zeros(3)], memory=memory, replay=replay)
    for _ in range(2):
        with pytest.raises(ValueError, match="lost"):
            call([])
    assert call.is_free()


def test_what_dies_with_a_recording(memory):
    class Replay:
        def __call__(self):
            pass

    argument = torch.randn(4)
    replay = Replay()
    call = recorded([argument], [torch.zeros(3), argument.view(2, 2)], memory=memory, replay=replay)
    held = weakref.ref(argument), weakref.ref(replay)
    del argument, replay
    gc.collect()
    assert held[0]() is None  # an argument at its address is not held
    del call
    assert held[1]() is None


def test_bad_arguments(memory):
    with pytest.raises(TypeError):
        RecordedCall([], set(), (), NONE, lambda: None, memory)
    with pytest.raises(TypeError):
        RecordedCall([], NONE, (), NONE, lambda: None, None)
    call = recorded([], [], memory=memory)
    for arguments in ((), (1,), ((),), ([], [])):
        with pytest.raises(TypeError):
            call(*arguments)
    with pytest.raises(TypeError):
        call.moved(())
    with pytest.raises(RuntimeError):
        call.moved([1])
