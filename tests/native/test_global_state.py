"""kiln._native.GlobalState: a setting that changes what a program does is seen, named, and put back where it can be."""

import contextlib
import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kiln import _native


@contextlib.contextmanager
def changed(setter, value, before):
    setter(value)
    try:
        yield
    finally:
        setter(before)


def deterministic(value):
    enabled, warn_only = value
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


CHANGES = [
    (torch.no_grad, "grad mode: enabled expected, disabled seen"),
    (torch.inference_mode, "grad mode: enabled expected, disabled seen"),
    (lambda: torch.autocast("cpu"), "autocast on cpu: disabled expected, enabled seen"),
    (
        lambda: changed(lambda value: torch.set_autocast_dtype("cpu", value), torch.float16, torch.bfloat16),
        "autocast dtype on cpu: bfloat16 expected, float16 seen",
    ),
    (
        lambda: changed(lambda value: torch.set_autocast_enabled("cuda", value), True, False),
        "autocast on cuda: disabled expected, enabled seen",
    ),
    (
        lambda: changed(torch.set_autocast_cache_enabled, False, True),
        "autocast cache: enabled expected, disabled seen",
    ),
    (
        lambda: changed(deterministic, (True, False), (False, False)),
        "deterministic algorithms: off expected, on seen",
    ),
    (
        lambda: changed(deterministic, (True, True), (False, False)),
        "deterministic algorithms: off expected, on (warnings only) seen",
    ),
    (
        lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
        "default dtype: float32 expected, float64 seen",
    ),
    (lambda: TorchFunctionMode(), "torch function modes: 0 expected, 1 seen"),
    (lambda: torch.device("cpu"), "torch function modes: 0 expected, 1 seen"),
    (lambda: TorchDispatchMode(), "torch dispatch modes: 0 expected, 1 seen"),
    (torch._C.DisableTorchFunctionSubclass, "torch function: enabled expected, disabled for subclasses seen"),
    (torch._C.DisableTorchFunction, "torch function: enabled expected, disabled seen"),
]


@pytest.mark.parametrize("change, words", CHANGES, ids=[words for _, words in CHANGES])
def test_changes_are_seen_and_said(change, words):
    state = _native.GlobalState()
    assert state.check() is True and state.reason() is None
    with change():
        assert state.check() is False
        assert state.reason() == words
        inside = _native.GlobalState()
        assert inside.check() and inside.reason() is None
    assert state.check() is True, state.reason()
    assert inside.check() is False


def test_number_of_threads_and_matmul_precision():
    state = _native.GlobalState()
    threads = torch.get_num_threads()
    with changed(torch.set_num_threads, threads + 1, threads):
        assert state.reason() == f"number of threads: {threads} expected, {threads + 1} seen"
    precision = torch.get_float32_matmul_precision()
    with changed(torch.set_float32_matmul_precision, "medium", precision):
        assert "matrix products" in state.reason() and not state.check()


def test_transforms_are_seen():
    state = _native.GlobalState()
    seen = []

    def probe(x):
        seen.append((state.check(), state.reason()))
        return x

    torch.func.vmap(probe)(torch.zeros(2))
    assert seen[0][0] is False and "dispatch keys" in seen[0][1]
    assert state.check()


def test_restore_puts_back_what_a_program_sets():
    state = _native.GlobalState()
    torch.set_grad_enabled(False)
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_autocast_cache_enabled(False)
    torch.set_default_dtype(torch.float64)
    deterministic((True, True))
    other = _native.GlobalState()
    assert not state.check()
    state.restore()
    assert state.check(), state.reason()
    assert (
        torch.is_grad_enabled() and torch.zeros(1).dtype is torch.float32 and torch.tensor(1.0).dtype is torch.float32
    )
    other.restore()
    assert other.check(), other.reason()
    assert torch.tensor(1.0).dtype is torch.float64 and torch.is_deterministic_algorithms_warn_only_enabled()
    state.restore()
    assert state.check()


def test_grad_mode_is_per_thread():
    seen = []
    with torch.no_grad():
        state = _native.GlobalState()
        thread = threading.Thread(target=lambda: seen.append((state.check(), state.reason())))
        thread.start()
        thread.join()
    assert seen == [(False, "grad mode: disabled expected, enabled seen")]


def test_wrong_use_raises_type_error():
    state = _native.GlobalState()
    for use in (lambda: _native.GlobalState(1), lambda: _native.GlobalState(x=1), lambda: state.check(1)):
        with pytest.raises(TypeError):
            use()
