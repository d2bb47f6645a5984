"""Views of expressions, joining, padding, upsampling: the backend's elements are eager's, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from tests.support.movement_cases import LAYOUTS, check, tensor

# Of a tensor of shape (2, 3, 4, 6). They see an expression (x * 2), not memory, which has views of its own.
VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda x: x.reshape(6, 24),
    "view splits": lambda x: x.reshape(2, 3, 2, 2, 3, 2),
    "flatten": lambda x: x.flatten(),
    "permute": lambda x: x.permute(3, 1, 0, 2),
    "transpose": lambda x: x.transpose(1, -1),
    "expand": lambda x: x[:, :, :1].expand(5, 2, 3, 4, 6),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
    "squeeze": lambda x: x[:, :1].squeeze(1).squeeze(),
    "select": lambda x: x[:, -1],
    "slice": lambda x: x[:, :, 1:, -4:-1],
    "slice with a step": lambda x: x[..., 1::2],
    "empty slice": lambda x: x[..., 7:],
    "split": lambda x: x.split([1, 2, 3], dim=-1),
    "chunk": lambda x: x.chunk(2, dim=2),
    "unbind": lambda x: x.unbind(1),
    "diagonal": lambda x: x.diagonal(1, 1, 3),
    "unfold": lambda x: x.unfold(3, 3, 2),
    "flip": lambda x: x.flip(0, 3),
    "rot90": lambda x: torch.rot90(x, 3, (1, 2)),
    "movedim": lambda x: x.movedim(0, 2),
    "as_strided": lambda x: x.contiguous().as_strided((3, 2), (5, 1), 7),
    "reshape of a permutation": lambda x: x.permute(0, 2, 3, 1).reshape(2, 24, 3),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 8, 3, 6), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x.reshape(1, 6, 4, 6), 3),
    "repeat": lambda x: x.repeat(2, 1, 3, 1, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1),
    "tile": lambda x: x.tile(2, 2),
    "roll": lambda x: x.roll(2, -1),
    "roll of two axes": lambda x: x.roll((1, -3), (0, 2)),
    "roll of all": lambda x: x.roll(-5),
    "cat": lambda x: torch.cat([x, x[:, :1] + 1, -x], dim=1),
    "cat of types": lambda x: torch.cat([x, x.double()], dim=0),
    "stack": lambda x: torch.stack([x, -x, x.exp()], dim=2),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=0.5),
    "pad that cuts": lambda x: F.pad(x, (-1, 2, 3, -2)),
    "reflection": lambda x: F.pad(x, (2, 1, 3, 0), mode="reflect"),
    "replication": lambda x: F.pad(x, (2, 1, 3, 0), mode="replicate"),
    "circular": lambda x: F.pad(x, (2, 1, 3, 0), mode="circular"),
    "diag_embed": lambda x: torch.diag_embed(x, 1, 0, -1),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "nearest, uneven": lambda x: F.interpolate(x, size=(7, 5), mode="nearest"),
    "nearest-exact": lambda x: F.interpolate(x, size=(9, 4), mode="nearest-exact"),
}
# The gradients that are ATen's.
CALLED = {
    "nearest, uneven": ("aten.upsample_nearest2d_backward.default",),
    "nearest-exact": ("aten._upsample_nearest_exact2d_backward.default",),
}
# Sums of gradients, in an order of their own.
SUMS = ("stack", "reflection", "replication", "circular", "as_strided", "unfold", "tile", "repeat", "nearest")


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_expressions(name: str) -> None:
    function = VIEWS[name]
    check(lambda x: function(x * 2), tensor((2, 3, 4, 6)), called=CALLED.get(name, ()), exact=name not in SUMS)


PLAIN = ("view", "permute", "split", "cat", "pad", "roll", "repeat", "nearest", "reflection", "slice with a step")


@pytest.mark.parametrize("layout", LAYOUTS[1:])
@pytest.mark.parametrize("name", PLAIN)
def test_layouts(name: str, layout: str) -> None:
    function = VIEWS[name]
    # What torch tells about the strides of a roll before it runs is not what they are.
    check(lambda x: function(x + 1), tensor((2, 3, 4, 6), layout), exact=False, strides=name != "roll")


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool), ids=str)
def test_types(dtype: torch.dtype) -> None:
    def program(x):
        y = x.logical_not() if dtype is torch.bool else x + 1
        return (
            y.permute(2, 0, 1).reshape(-1, 5),
            F.pad(y, (1, 0, 2, 1)),
            torch.cat([y, x], 1),
            y.roll((1, 2), (0, 1)),
            y.flip(1)[:, ::2],
            y.repeat(1, 2, 2),
        )

    check(program, tensor((5, 3, 4), dtype=dtype), grads=False)


@pytest.mark.parametrize("shape", ((0, 3), (3, 0), (1, 1), (1,), ()), ids=str)
def test_nothing_and_one(shape: tuple[int, ...]) -> None:
    def program(x):
        y = x + 1
        results = [
            y.flatten(),
            y.flip(0) if y.dim() else y,
            y.unsqueeze(0).expand(2, *shape),
            y.roll(1),
            torch.stack([y, x]),
        ]
        if y.dim():
            results += [torch.cat([y, x, x[:0]], 0), F.pad(y, (1, 1)), y.repeat(*[2] * y.dim())]
        return results

    check(program, tensor(shape))


def set_parts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x * 2
    x[1] = y[0]
    x[:, 2:5] = y[:, :3]
    x[:, ::3] = 7
    x[:, -1] += 1
    x.diagonal().copy_(y[0, :4])
    return x


def test_setting_parts() -> None:
    check(set_parts, tensor((4, 6)), tensor((4, 6), "transposed"))


def test_gradients_of_parts_are_one_expression() -> None:
    check(lambda x: (x[1] * x[2], x[:, 1:4].sin(), x[::2].cos(), x.diagonal() * 3), tensor((5, 6)), exact=False)


def test_channels_last_stays() -> None:
    x = tensor((2, 4, 6, 8), "channels_last")
    joined = kiln.compile(lambda x: torch.cat([x, x * 2], 1), backend="kiln")(x)
    assert joined.is_contiguous(memory_format=torch.channels_last)


def test_sizes_that_vary() -> None:
    def program(x, y):
        z = x * 2
        return (
            torch.cat([z, y], 1),
            z.transpose(0, 1).reshape(-1),
            F.pad(z, (2, 1)),
            z.roll(3, 1),
            z[:, 1:-1].flip(0),
            z.unsqueeze(1).expand(-1, 3, -1).reshape(-1, z.shape[1]),
        )

    compiled = kiln.compile(program, backend="kiln", fullgraph=True, dynamic=True)
    for rows, columns in ((4, 6), (9, 17), (33, 64)):
        x, y = tensor((rows, columns)), tensor((rows, 5))
        for found, wanted in zip(compiled(x, y), program(x, y), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
