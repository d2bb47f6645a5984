"""Elementwise operators through generated code: eager's bits where it is arithmetic, its values where it is a function.

Many operators are compiled as one graph and compared one by one; the values include NaN, infinities, zeros of both
signs and denormals.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kiln.codegen import graph_compiler
from kiln.lower.lowering import Lowering
from tests.lower.elementwise_checks import (
    FLOATS,
    INF,
    INTEGERS,
    NAN,
    Function,
    assert_same,
    check,
    compiled,
    name_of,
    pairs,
    values,
)
from tests.support.codegen_programs import graph_of

F = torch.nn.functional
aten = torch.ops.aten


# ---- one argument ----------------------------------------------------------------------------------------------------

EXACT_UNARY: dict[str, Function] = {
    name: getattr(torch, name)
    for name in "neg abs sign sgn floor ceil trunc round frac isnan isinf isposinf isneginf isfinite signbit "
    "logical_not reciprocal relu positive square deg2rad nan_to_num".split()
} | {
    "cube": lambda x: x.pow(3),
    "pow -1": lambda x: x.pow(-1),
    "pow 0": lambda x: x.pow(0),
    "pow 1": lambda x: x.pow(1),
    "clamp": lambda x: x.clamp(-0.5, 2.0),
    "clamp the wrong way round": lambda x: x.clamp(2.0, -0.5),
    "clamp_min": lambda x: x.clamp(min=0.0),
    "clamp_max": lambda x: x.clamp(max=-0.0),
    "nan_to_num of its own": lambda x: x.nan_to_num(1.0, 2.0, 3.0),
    "nan_to_num of infinities": lambda x: x.nan_to_num(1.0, NAN, INF),
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.3, 5.0),
    "round decimals": lambda x: torch.round(x, decimals=2),
    "masked_fill": lambda x: x.masked_fill(x > 0.3, -2.5),
    "tril": lambda x: x[:289].view(17, 17).tril(-2),
    "triu": lambda x: x[:289].view(17, 17).triu(1),
    "angle": torch.angle,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_exact_functions_of_one_number(dtype):
    check(EXACT_UNARY, [values(dtype)])


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_bounds_that_are_no_numbers(dtype):
    """Torch 2.11 keeps the elements, later releases give NaN."""
    functions = {
        "least": lambda x: x.clamp(min=NAN),
        "most": lambda x: x.clamp(max=NAN),
        "min": lambda x: x.clamp_min(NAN),
    }
    results, called = compiled(functions, [values(dtype)])
    assert len(called) == len(functions)
    for (name, function), found in zip(functions.items(), results, strict=True):
        assert_same(name, found, function(values(dtype)))


NEAR_UNARY: dict[str, Function] = {
    name: getattr(torch, name)
    for name in "sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc erfinv sigmoid rsqrt logit sinc lgamma digamma rad2deg".split()
} | {
    "special_entr": torch.special.entr,
    "pow": lambda x: x.pow(1.7),
    "power of": lambda x: torch.pow(1.7, x),
    "root as a power": lambda x: x.pow(0.5),
    "inverse root as a power": lambda x: x.pow(-0.5),
    "logit eps": lambda x: torch.logit(x, 0.1),
    "silu": F.silu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softplus": lambda x: F.softplus(x, 0.7, 10),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "tanhshrink": F.tanhshrink,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_functions_of_one_number(dtype):
    functions = dict(NEAR_UNARY)
    if dtype is torch.float64:
        del functions["digamma"]  # near its poles and its zero eager is hundreds of steps off
    check(functions, [values(dtype)], ulps=4)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_gelu(dtype):
    x = values(dtype)
    x = x[~torch.isinf(x)]
    check({"gelu": F.gelu}, [x], ulps=4)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_integers(dtype):
    functions: dict[str, Function] = {
        name: getattr(torch, name)
        for name in "neg abs sign floor round bitwise_not logical_not isnan isinf relu".split()
    }
    functions |= {name: getattr(torch, name) for name in "sqrt exp tanh reciprocal".split()}
    functions |= {
        "square": lambda x: x**2,
        "pow 5": lambda x: x.pow(5),
        "times": lambda x: x * 3,
        "float times": lambda x: x * 2.5,
        "plus alpha": lambda x: torch.add(x, x, alpha=3),
        "true division": lambda x: x / 3,
        "floor division": lambda x: x // 3,
        "by -1": lambda x: torch.div(x, -1 if dtype.is_signed else 1, rounding_mode="floor"),
        "truncated": lambda x: torch.div(x, -3 if dtype.is_signed else 3, rounding_mode="trunc"),
        "remainder": lambda x: x % 7,
        "fmod": lambda x: torch.fmod(x, 7),
        "clamp": lambda x: x.clamp(2, 50),
        "compare": lambda x: x > 2.5,
        "same": lambda x: x == 7,
        "to float": lambda x: x.float(),
        "to bool": lambda x: x.bool(),
        "to bfloat16": lambda x: x.to(torch.bfloat16),
        "to int8": lambda x: x.to(torch.int8),
        "to int64": lambda x: x.to(torch.int64) + 1,
        "addcmul": lambda x: torch.addcmul(x, x, x, value=2),
        "threshold": lambda x: F.threshold(x, 5, 3),
    }
    x = values(dtype)
    check(functions, [x], ulps=2)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_pairs_of_integers(dtype):
    functions: dict[str, Function] = {
        name: getattr(torch, name)
        for name in "add sub mul maximum minimum bitwise_and bitwise_or bitwise_xor eq ne lt le gt ge logical_and "
        "logical_or logical_xor bitwise_left_shift bitwise_right_shift fmax heaviside true_divide".split()
    }
    check(functions, pairs(dtype))


def test_bools():
    a, b = torch.tensor([True, True, False, False] * 9), torch.tensor([True, False] * 18)
    functions: dict[str, Function] = {
        "add": torch.add,
        "mul": torch.mul,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "and": torch.logical_and,
        "or": torch.bitwise_or,
        "xor": torch.bitwise_xor,
        "lt": torch.lt,
        "ge": torch.ge,
        "not": lambda x, y: ~x,
        "div": torch.true_divide,
        "times a float": lambda x, y: x * 0.3,
        "plus an int": lambda x, y: x + 3,
        "exp": lambda x, y: x.exp(),
        "sign": lambda x, y: torch.sign(x),
        "signbit": lambda x, y: torch.signbit(x),
        "to int": lambda x, y: x.to(torch.int32),
    }
    check(functions, [a, b], ulps=2)


# ---- two and three arguments -----------------------------------------------------------------------------------------

EXACT_PAIRS: dict[str, Function] = {
    name: getattr(torch, name)
    for name in "add sub mul div eq ne lt le gt ge logical_and logical_or logical_xor copysign heaviside "
    "nextafter".split()
} | {
    "add alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=0.3),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=3),
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "plus number": lambda x, y: x + 0.3,
    "times number": lambda x, y: x * 0.3,
    "over number": lambda x, y: x / 0.3,
    "number over": lambda x, y: 0.3 / x,
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x, value=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp far": lambda x, y: torch.lerp(x, y, 0.7),
    "lerp weights": lambda x, y: torch.lerp(x, y, y),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "where number": lambda x, y: torch.where(x > 0, x, 0.3),
    "mixed types": lambda x, y: x.float() + y,
    "0-dim": lambda x, y: x + y[30],
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_single_numbers(dtype):
    """What has no axes is not rounded to the type of the other, either."""
    functions: dict[str, Function] = {
        "times": lambda x, y: x * 3.3,
        "over": lambda x, y: x / 3.3,
        "over it": lambda x, y: 3.3 / x,
        "plus": lambda x, y: x + 3.3,
        "times wide": lambda x, y: y * torch.tensor(3.3, dtype=torch.float64),
        "down": lambda x, y: x // 3.3,
    }
    check(functions, [torch.tensor(-1.08, dtype=dtype), values(dtype)])


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_exact_pairs(dtype):
    functions = dict(EXACT_PAIRS)
    if dtype in (torch.float16, torch.bfloat16):
        del functions["nextafter"]
    check(functions, pairs(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_remainders(dtype):
    """Of quotients that are no larger than eager's vectors can count."""
    torch.manual_seed(5)
    x, y = torch.randn(512, dtype=dtype) * 50, torch.randn(512, dtype=dtype)
    x[:5] = torch.tensor([0.0, -0.0, INF, NAN, 3.0], dtype=dtype)
    functions = {"fmod": torch.fmod, "remainder": torch.remainder, "by a number": lambda x, y: x % 0.3}
    check(functions, [x, y])


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_extremes(dtype):
    """Which of two zeros is greater is not even eager's to say: it depends on the place in the tensor."""
    functions = {name: getattr(torch, name) for name in ("maximum", "minimum", "fmax", "fmin")}
    x, y = pairs(dtype)
    keep = (x != 0) | (y != 0)
    check(functions, [x[keep], y[keep]])


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_near_pairs(dtype):
    functions: dict[str, Function] = {
        name: getattr(torch, name) for name in "atan2 hypot logaddexp logaddexp2 xlogy pow".split()
    }
    functions["xlog1py"] = torch.special.xlog1py
    check(functions, pairs(dtype), ulps=4)


# ---- derivatives -----------------------------------------------------------------------------------------------------

BACKWARD: dict[str, Function] = {
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
    "silu": aten.silu_backward,
    "gelu": aten.gelu_backward,
    "gelu tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "elu": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, False, x),
    "elu of result": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, True, x),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.3, False),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1.0, 1.0),
    "hardswish": aten.hardswish_backward,
    "hardsigmoid": aten.hardsigmoid_backward,
    "softplus": lambda g, x: aten.softplus_backward(g, x, 0.7, 10),
    "mish": aten.mish_backward,
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.3),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.3),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.3),
    "log_sigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, aten.log_sigmoid_forward(x)[1]),
    "logit": lambda g, x: aten.logit_backward(g, x / 20, None),
    "prelu": lambda g, x: aten._prelu_kernel_backward(g, x, g)[1],
    "glu": lambda g, x: aten.glu_backward(g[:100], x[:200], 0),
    "dropout": lambda g, x: aten.native_dropout_backward(g, x > 0, 1.25),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_derivatives(dtype):
    torch.manual_seed(1)
    grad, x = torch.randn(500, dtype=dtype), torch.randn(500, dtype=dtype) * 3
    check(BACKWARD, [grad, x], ulps=8)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_derivatives_at_no_number(dtype):
    grad, x = torch.linspace(-3, 3, 512, dtype=dtype), torch.tensor([NAN, 0.1, 7.0, -7.0], dtype=dtype).repeat(128)
    names = "elu hardtanh hardswish hardsigmoid leaky_relu softplus mish threshold hardshrink softshrink".split()
    functions = {name: BACKWARD[name] for name in names}
    functions["logit"] = lambda g, x: aten.logit_backward(g, x, 0.1)
    check(functions, [grad, x], ulps=8)


LOSSES: dict[str, Function] = {
    "mse": aten.mse_loss,
    "smooth_l1": lambda a, b, r: aten.smooth_l1_loss(a, b, r, 0.3),
    "huber": lambda a, b, r: aten.huber_loss(a, b, r, 0.3),
    "soft_margin": lambda a, b, r: aten.soft_margin_loss(a, b.sign(), r),
    "logistic": lambda a, b, r: F.binary_cross_entropy_with_logits(
        a, b.sigmoid(), b.abs(), pos_weight=a.abs(), reduction=["none", "mean", "sum"][r]
    ),
    "mse backward": lambda a, b, r: aten.mse_loss_backward(b if r == 0 else b[0, 0], a, b, r),
    "smooth_l1 backward": lambda a, b, r: aten.smooth_l1_loss_backward(b if r == 0 else b[0, 0], a, b, r, 0.3),
    "huber backward": lambda a, b, r: aten.huber_loss_backward(b if r == 0 else b[0, 0], a, b, r, 0.3),
    "soft_margin backward": lambda a, b, r: aten.soft_margin_loss_backward(b if r == 0 else b[0, 0], a, b.sign(), r),
    "cross entropy backward": lambda a, b, r: aten.binary_cross_entropy_backward(
        b if r == 0 else b[0, 0], a.abs() / 8, b.abs() / 8, b, r
    ),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_losses(dtype):
    torch.manual_seed(2)
    a, b = torch.randn(20, 33, dtype=dtype), torch.randn(20, 33, dtype=dtype)
    functions = {
        f"{name} {reduction}": lambda x, y, function=function, reduction=reduction: function(x, y, reduction)
        for name, function in LOSSES.items()
        for reduction in range(3)
    }
    check(functions, [a, b], ulps=8)


# ---- layouts ---------------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "transposed": lambda: (torch.randn(7, 9).t(), torch.randn(9, 7)),
    "both transposed": lambda: (torch.randn(7, 9).t(), torch.randn(7, 9).t()),
    "expanded": lambda: (torch.randn(9, 1).expand(9, 7), torch.randn(7)),
    "sliced": lambda: (torch.randn(20, 30)[1::2, 3::4], torch.randn(10, 7)),
    "channels last": lambda: (
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(3, 1, 1),
    ),
    "empty": lambda: (torch.randn(0, 4), torch.randn(4)),
    "one element": lambda: (torch.randn(1, 1), torch.randn(1)),
    "no axes": lambda: (torch.randn(()), torch.randn(())),
    "large": lambda: (torch.randn(300, 501), torch.randn(501)),
    "offset": lambda: (torch.randn(100)[3:94].view(13, 7), torch.randn(7)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    torch.manual_seed(3)
    a, b = LAYOUTS[layout]()
    functions: dict[str, Function] = {
        "sum": lambda x, y: x + y,
        "chain": lambda x, y: torch.relu(x * 2 + y) - x / 3,
        "clone": lambda x, y: x.clone(),
        "contiguous clone": lambda x, y: x.clone(memory_format=torch.contiguous_format),
        "cast": lambda x, y: x.to(torch.float64),
        "full": lambda x, y: torch.full_like(x, 0.3),
        "where": lambda x, y: torch.where(x > y, x, y),
        "copy": lambda x, y: torch.ops.aten.copy(x, y),
    }
    check(functions, [a, b])


def test_copies_have_memory_of_their_own():
    x = torch.randn(5, 6)
    functions = {
        "clone": lambda x: x.clone(),
        "to": lambda x: x.to(torch.float32, copy=True),
        "pow": lambda x: x.pow(1),
        "copy": lambda x: torch.ops.aten.copy(torch.zeros_like(x), x),
        "view of a clone": lambda x: x.clone().view(30),
        "conj": lambda x: torch.ops.aten._conj_physical(x),
    }
    results, _ = compiled(functions, [x])
    storages = {tensor.untyped_storage().data_ptr() for tensor in (x, *results)}
    assert len(storages) == len(functions) + 1
    for result in results:
        assert torch.equal(result.view(5, 6), x)


# ---- casts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_casts(dtype):
    functions: dict[str, Function] = {name_of(to): lambda x, to=to: x.to(to) for to in (*FLOATS, torch.bool)}
    check(functions, [values(dtype)])
    small = torch.tensor([0.0, -0.0, 1.9, -1.9, 3.5, 100.7, -100.7, 127.0, 0.49], dtype=dtype).repeat(5)
    check({name_of(to): lambda x, to=to: x.to(to) for to in INTEGERS if to.is_signed}, [small])
    check({name_of(to): lambda x, to=to: x.abs().to(to) for to in INTEGERS}, [small])


# ---- creation --------------------------------------------------------------------------------------------------------


def test_creation():
    functions: dict[str, Function] = {
        "full": lambda x: torch.full((3, 4), 0.3),
        "full int": lambda x: torch.full((3,), 7),
        "zeros": lambda x: torch.zeros(3, 4, dtype=torch.int8),
        "ones_like": lambda x: torch.ones_like(x),
        "new_full": lambda x: x.new_full((2, 2), 3),
        "arange": lambda x: torch.arange(17),
        "arange step": lambda x: torch.arange(3, -20, -2, dtype=torch.int32),
        "arange float": lambda x: torch.arange(2.0, 40.0, 3.0),
        "eye": lambda x: torch.eye(4, 6),
        "scalar": lambda x: torch.scalar_tensor(0.3),
        "tril": lambda x: torch.ones(6, 6, dtype=torch.bool).tril(1),
    }
    check(functions, [torch.randn(3, 5)])


@pytest.mark.parametrize(
    "function", [lambda: torch.arange(0, 1, 0.1), lambda: torch.linspace(0, 1, 33)], ids=["arange", "linspace"]
)
def test_fractional_steps_are_aten_s(function):
    results, called = compiled({"": lambda x: function()}, [torch.randn(2)])
    assert called and torch.equal(results[0], function())


# ---- lists -----------------------------------------------------------------------------------------------------------


def test_operators_on_lists():
    torch.manual_seed(4)
    tensors = [torch.randn(3, 4), torch.randn(5), torch.randn(3, 4), torch.randn(5)]

    def listed(a, b, c, d):
        x, y = [a, b], [c, d]
        found = [
            torch._foreach_add(x, y, alpha=0.3),
            torch._foreach_add(x, 0.3),
            torch._foreach_sub(x, [0.3, 0.4]),
            torch._foreach_mul(x, a[0, 0]),
            torch._foreach_div(x, [0.3, 0.7]),
            torch._foreach_addcmul(x, x, y, 0.3),
            torch._foreach_addcdiv(x, y, torch._foreach_abs(x), [0.3, 0.7]),
            torch._foreach_lerp(x, y, 0.1),
            torch._foreach_lerp(x, y, y),
            torch._foreach_floor(torch._foreach_abs(x)),
            torch._foreach_maximum(x, 0.1),
            torch._foreach_clamp_max(x, y),
            torch._foreach_neg(x),
            torch._foreach_pow(x, 3),
        ]
        return [tensor for group in found for tensor in group]

    graph = graph_of(listed, tensors)
    assert not Lowering(graph).run().called
    for place, (found, wanted) in enumerate(
        zip(graph_compiler.compile_graph(graph)(list(tensors)), listed(*tensors), strict=True)
    ):
        assert_same(f"result {place}", found, wanted)
