"""``torch._dynamo.test_case`` and ``torch._inductor.test_case``: loaded on demand."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any

import torch

from ..config import config as kiln_config
from ..platform.torch_compiler import test_helpers
from . import dynamo, testing
from .counting import counters
from .settings import dynamo_config

if TYPE_CHECKING:
    from unittest import TestCase as Base
    from unittest import main as run_unittest
else:
    try:
        Base, run_unittest = test_helpers()
    except ImportError:  # torch's own test helpers need packages that torch itself does not
        run_unittest = unittest.main

        class Base(unittest.TestCase):
            """Comparison of tensors, as far as tests of compiled code need it."""

            def assertEqual(self, first: Any, second: Any, msg: Any = None, **tolerances: Any) -> None:
                if not testing.same(first, second, tol=tolerances.get("atol") or 1e-5):
                    super().assertEqual(first, second, msg)


class TestCase(Base):
    """``torch._dynamo.test_case.TestCase``: each test starts with nothing compiled and nothing counted.

    Bugs of Kiln's are raised in it: a test must not pass because plain Python took over.
    """

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for patch in (
            dynamo_config.patch(raise_on_ctx_manager_usage=True, suppress_errors=False),
            kiln_config.patch(raise_internal_errors=True),
        ):
            cls.enterClassContext(patch)

    def setUp(self) -> None:
        super().setUp()
        dynamo.reset()
        counters.clear()
        self._grad_mode = torch.is_grad_enabled()

    def tearDown(self) -> None:
        dynamo.reset()
        counters.clear()
        super().tearDown()
        torch.set_grad_enabled(self._grad_mode)


def run_tests(needs: Any = ()) -> None:
    """``torch._dynamo.test_case.run_tests``."""
    run_unittest()
