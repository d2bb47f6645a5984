"""Upsampling and its gradients as machine code: mixtures of neighbours, and sources that are repeated unevenly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.compiled_programs import check as check_compiled
from tests.support.movement_cases import check, tensor

SIZES = {"more": (9, 13), "less and more": (3, 17), "one and the same": (1, 6)}


@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
@pytest.mark.parametrize("align", (False, True))
@pytest.mark.parametrize("mode", ("bilinear", "bicubic"))
def test_mixtures_in_two_axes(mode: str, align: bool, layout: str) -> None:
    def program(x):
        return [F.interpolate(x + 1, size=size, mode=mode, align_corners=align) for size in SIZES.values()]

    check(program, tensor((2, 3, 4, 6), layout), exact=False)


@pytest.mark.parametrize("align", (False, True))
def test_mixtures_in_one_axis_and_in_three(align: bool) -> None:
    def program(x, y):
        x = F.interpolate(x, scale_factor=1.7, mode="linear", align_corners=align)
        return x, F.interpolate(y, size=(6, 5, 8), mode="trilinear", align_corners=align)

    check(program, tensor((2, 3, 7)), tensor((1, 2, 3, 4, 4)), exact=False)


def test_scales_that_are_given() -> None:
    def program(x):
        return [
            F.interpolate(x, scale_factor=(2.3, 1.5), mode=mode, recompute_scale_factor=False)
            for mode in ("bilinear", "bicubic", "nearest", "nearest-exact")
        ]

    check(program, tensor((2, 3, 4, 6), dtype=torch.float64), exact=False)


@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
@pytest.mark.parametrize("mode", ("nearest", "nearest-exact"))
def test_sources_that_are_repeated_unevenly(mode: str, layout: str) -> None:
    check(lambda x: F.interpolate(x + 1, size=(7, 15), mode=mode), tensor((2, 3, 4, 6), layout), exact=False)


def test_one_source_and_many_elements() -> None:
    """Windows that are too wide are ATen's business."""
    called = ("aten.upsample_bilinear2d_backward.default",)
    check(lambda x: F.interpolate(x, size=(40, 41), mode="bilinear"), tensor((2, 3, 1, 2)), exact=False, called=called)


def test_gradients_that_are_no_numbers_stay_where_they_are() -> None:
    """An infinite gradient reaches the sources of its element, and no others."""

    def gradient(x):
        x = x.detach().requires_grad_()
        weights = torch.ones(1, 1, 8, 12)
        weights[0, 0, 3, 5] = float("inf")
        return torch.autograd.grad((F.interpolate(x, scale_factor=2, mode="bilinear") * weights).sum(), x)

    check(gradient, tensor((1, 1, 4, 6)), exact=False, grads=False, called=None)


@pytest.mark.parametrize("mode", ("bilinear", "bicubic", "nearest"))
def test_batches_that_vary(mode: str) -> None:
    x = tensor((3, 2, 4, 6)).requires_grad_()
    check_compiled(lambda x: F.interpolate(x, size=(9, 15), mode=mode), x, dynamic=True)
