"""Operators on a GPU in all types, beside eager's: functions, casts, scans, scatters, float8, batch norm."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import kiln
from kiln.target.llvm.float8 import FORMATS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
SPECIAL = [math.nan, math.inf, -math.inf, 0.5, -0.5, -1.5, 127.5, 128.0, 200.0, 256.0, 300.0, -129.0, -300.0, 32768.0]
SPECIAL += [65504.0, -40000.0, 70000.0, 2.0**31, -(2.0**31), 3e9, -3e9, 2.0**63, -(2.0**63), 2.0**64, 1e20, -1e20, 1e38]


def everywhere() -> torch.Tensor:
    """float32 of all sizes."""
    bits = torch.arange(0, 2**32, 4099, dtype=torch.int64) - 2**31
    return torch.cat([bits.to(torch.int32).view(torch.float32), torch.randn(100_000) * 10]).cuda()


def same(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (found == wanted) | (found.isnan() & wanted.isnan())


def ulps(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Errors of float32 in units of the last place."""
    near = wanted.float()
    unit = torch.nextafter(near.abs(), torch.full_like(near, math.inf)) - near.abs()
    errors = (found.double() - wanted).abs() / unit.double()
    return torch.where(same(found, near), 0.0, errors.nan_to_num(math.inf))


@pytest.mark.parametrize("name", ["sin", "cos", "tan", "lgamma", "digamma", "erfc"])
def test_functions_of_all_numbers(name):
    function, x = getattr(torch, name), everywhere()
    wanted = function(x.cpu().double()).cuda()
    assert ulps(kiln.compile(lambda x: function(x), backend="kiln")(x), wanted).max() <= 2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_divide"])
def test_remainders_are_eagers(name, dtype):
    function, x = getattr(torch, name), everywhere().to(dtype)
    y = x[torch.randperm(len(x), device="cuda")]
    assert same(kiln.compile(lambda x, y: function(x, y), backend="kiln")(x, y), function(x, y)).all()


@pytest.mark.parametrize("target", [*INTEGERS, torch.bool])
@pytest.mark.parametrize("source", FLOATS)
def test_floats_out_of_range_become_eagers_integers(source, target):
    x = torch.tensor(SPECIAL * 8, dtype=torch.float64).to(source).cuda()
    assert torch.equal(kiln.compile(lambda x: x.to(target), backend="kiln")(x), x.to(target))


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", FORMATS)
def test_casts_of_float8_are_eagers(dtype, source):
    x = torch.cat([everywhere()[::7], torch.linspace(-600, 600, 50_001, device="cuda")]).to(source)
    found, wanted = kiln.compile(lambda x: x.to(dtype), backend="kiln")(x), x.to(dtype)
    assert same(found.float(), wanted.float()).all()
    assert same(kiln.compile(lambda x: x.to(source), backend="kiln")(wanted), wanted.to(source)).all()


@pytest.mark.parametrize(
    ("shape", "dim"), [((1000,), 0), ((64, 100), 1), ((300, 5000), 1), ((300, 5001), 1), ((128, 1000), 0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int16])
def test_scans(dtype, shape, dim):
    x = (torch.randn(shape, device="cuda") * 5).to(dtype)
    found, wanted = kiln.compile(lambda x: torch.cumsum(x, dim), backend="kiln")(x), torch.cumsum(x, dim)
    if dtype.is_floating_point:
        exact, size = x.double().cumsum(dim), x.double().abs().cumsum(dim).clamp(min=1)
        ours, eagers = (((one.double() - exact).abs() / size).max() for one in (found, wanted))
        assert ours <= 2 * eagers + torch.finfo(dtype).eps
    else:
        assert torch.equal(found, wanted)
    values, places = kiln.compile(lambda x: torch.cummax(x, dim), backend="kiln")(x)
    assert torch.equal(values, torch.cummax(x, dim).values) and torch.equal(places, torch.cummax(x, dim).indices)


@pytest.mark.parametrize("includes_self", [True, False])
@pytest.mark.parametrize("how", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_scatters(dtype, how, includes_self):
    x = (torch.rand(4000, 33, device="cuda") * 3 + 1).to(dtype)
    if how == "prod" and dtype.is_floating_point:
        x = torch.where(torch.rand(4000, 33, device="cuda") < 0.5, 2.0, 0.5).to(dtype)
    if how in ("amax", "amin") and dtype.is_floating_point:
        x[5], x[7] = math.nan, -math.inf
    places, base = torch.randint(0, 700, (4000, 33), device="cuda"), torch.ones(700, 33, device="cuda", dtype=dtype)

    def function(base, x, places):
        return torch.scatter_reduce(base, 0, places, x, how, include_self=includes_self)

    tolerance = {torch.bfloat16: 0.05, torch.float16: 0.01}.get(dtype, 1e-5) if how in ("sum", "prod") else 0
    found, wanted = kiln.compile(function, backend="kiln")(base, x, places), function(base, x, places)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_training_with_batch_norm_and_pools(layout, dtype):
    torch.manual_seed(0)
    nn = torch.nn
    layers = [nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)]
    model = nn.Sequential(*layers, nn.GroupNorm(2, 16), nn.Upsample(scale_factor=2)).cuda().to(memory_format=layout)
    other = copy.deepcopy(model)
    x = torch.randn(8, 3, 34, 34, device="cuda").to(memory_format=layout)

    def loss(model, x):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype is not None):
            return model(x).float().square().mean()

    compiled = kiln.compile(loss, backend="kiln")
    for _ in range(2):
        loss(model, x).backward()
        compiled(other, x).backward()
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype is None else {"rtol": 5e-2, "atol": 5e-2}
    for one, wanted in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, wanted.grad, **tolerance)
    for one, wanted in zip(other.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-4)
