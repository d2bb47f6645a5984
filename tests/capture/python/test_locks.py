"""Locks from outside in captured code."""

import threading
import types

import pytest
import torch

import kiln
from kiln.testing import check

X = torch.arange(3.0)


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_what_is_done_under_a_lock_is_written_under_it(make):
    def setup():
        lock = make()
        seen = []
        table = types.SimpleNamespace(entries=0)

        def program(x):
            with lock:
                table.entries += 1
                seen.append(x.shape[0])
            with lock:
                return x + table.entries

        return program, [(X,), (X,)], (table, seen)

    check(setup=setup, fullgraph=True)


def test_effects_wait_for_the_lock():
    lock = threading.Lock()
    seen = []

    def program(x):
        with lock:
            seen.append(1)
        return x + 1

    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    compiled(X)
    thread = threading.Thread(target=compiled, args=(X,))
    with lock:
        thread.start()
        thread.join(timeout=0.1)  # without the lock it would be done in far less
        assert seen == [1]
    thread.join()
    assert seen == [1, 1] and not lock.locked()


def test_a_lock_held_over_a_break_is_pythons():
    def setup():
        lock = threading.RLock()

        def program(x):
            with lock:
                y = x + 1
                print("between")
                return y * 2

        return program, (X,)

    check(setup=setup)


def test_a_lock_is_released_when_the_program_raises():
    def setup():
        lock = threading.Lock()

        def program(x):
            try:
                with lock:
                    raise ValueError("inside")
            except ValueError:
                with lock:
                    return x + 1

        return program, (X,)

    check(setup=setup, fullgraph=True)
