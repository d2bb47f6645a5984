"""Every test runs with Kiln's own bugs raised, never hidden behind eager."""

import pytest

import kiln


@pytest.fixture(autouse=True)
def raise_internal_errors():
    with kiln.config.patch(raise_internal_errors=True):
        yield
