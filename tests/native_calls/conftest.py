"""Calls of ``torch.device.__enter__`` leave a mode behind: each test takes away what it left."""

import pytest
from torch.overrides import _get_current_function_mode_stack, _pop_mode


@pytest.fixture(autouse=True)
def modes_are_left():
    before = len(_get_current_function_mode_stack())
    yield
    while len(_get_current_function_mode_stack()) > before:
        _pop_mode()
