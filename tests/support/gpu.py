"""Tests that need a GPU: the device they run on, and the mark that skips them elsewhere.

``KILN_TEST_DEVICE=cpu`` runs them on the CPU, to try the tests themselves.
"""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = os.environ.get("KILN_TEST_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
needs_gpu = pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="needs a GPU")
