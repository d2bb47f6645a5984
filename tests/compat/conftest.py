"""Tests of Kiln under torch's names: those that ask for `installed` run with it, and leave nothing behind."""

import pytest
import torch

import kiln

FROZEN = "__allow_nonbracketed_mutation_flag"


@pytest.fixture
def installed():
    allowed = getattr(torch.backends, FROZEN)
    with kiln.install():
        kiln.reset()
        yield
    kiln.reset()
    setattr(torch.backends, FROZEN, allowed)  # importing torch's own base class for tests forbids setting flags
