"""Fake tensors of one capture, and what is known of each."""

from __future__ import annotations

from typing import Any

from ...program.shapes.fake_tensors import make_mode
from .values import TensorInfo


class Fakes:
    """Fake tensors, and symbolic sizes only once something is symbolic (sympy costs half a second to import)."""

    __slots__ = ("_mode", "_shapes", "infos", "storages")

    def __init__(self) -> None:
        self._mode: Any = None
        self._shapes: Any = None
        self.infos: dict[int, TensorInfo] = {}  # by the id of the fake
        self.storages: dict[int, Any] = {}  # real storage -> its fake

    @property
    def mode(self) -> Any:
        """The mode under which operations run on fakes."""
        if self._mode is None:
            self._mode = make_mode(shape_env=self._shapes, allow_non_fake_inputs=False)
        return self._mode

    @property
    def shapes(self) -> Any:
        """The symbols and what is assumed of them."""
        if self._shapes is None:
            from ...platform.torch_shapes import ShapeEnv

            self._shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
            if self._mode is not None:
                self._mode.shape_env = self._shapes
                self._mode.static_shapes = False
        return self._shapes
