"""Tests of Kiln under torch's names: those that ask for `installed` run with it, and leave nothing behind."""

import pytest

import kiln


@pytest.fixture
def installed():
    with kiln.install():
        kiln.reset()
        yield
    kiln.reset()
