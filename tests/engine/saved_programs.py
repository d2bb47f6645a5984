"""Programs for test_saved_values: operators whose nodes together keep every kind of value.

A function of a 4x6 tensor and more arguments; then the first arguments; then others that the backward pass depends on,
each of which must be seen in what is saved.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def on_a_view(x: torch.Tensor, row: int, power: int) -> torch.Tensor:
    y = x * 1
    y[row].pow_(power)
    return y


LISTS = {"mul": torch._foreach_mul, "addcdiv": torch._foreach_addcdiv}
PROGRAMS: dict[str, tuple[Callable[..., Any] | tuple[Any, ...], ...]] = {
    "sum": (lambda x, dim, keep: x.sum(dim, keepdim=keep), (0, False), (1, False), (0, True), ((0, 1), False)),
    "mean": (lambda x, dim, keep: x.mean(dim, keepdim=keep), (0, False), (1, False), (0, True)),
    "prod": (lambda x, dim: x.prod(dim), (0,), (1,)),
    "max": (lambda x, dim: x.max(dim), (0,), (1,)),
    "amax": (lambda x, dim, keep: x.amax(dim, keepdim=keep), (0, False), (1, False), (0, True)),
    "sort": (lambda x, dim: torch.sort(x, dim), (0,), (1,)),
    "topk": (lambda x, dim: torch.topk(x, 2, dim), (0,), (1,)),
    "kthvalue": (lambda x, dim: torch.kthvalue(x, 2, dim), (0,), (1,)),
    "median": (lambda x, dim: torch.median(x, dim), (0,), (1,)),
    "logsumexp": (lambda x, dim: x.logsumexp(dim), (0,), (1,)),
    "softmax": (lambda x, dim: x.softmax(dim), (0,), (1,)),
    "log_softmax": (lambda x, dim: x.log_softmax(dim), (0,), (1,)),
    "cumsum": (lambda x, dim: x.cumsum(dim), (0,), (1,)),
    "cumprod": (lambda x, dim: x.cumprod(dim), (0,), (1,)),
    "std": (lambda x, correction: x.std(1, correction=correction), (1,), (0,), (2,)),
    "var_mean": (lambda x, keep: torch.var_mean(x, 1, keepdim=keep), (False,), (True,)),
    "norm": (lambda x, p: x.norm(p), (2,), (3,), (1.5,), (float("inf"),)),
    "vector_norm": (lambda x, p, dim: torch.linalg.vector_norm(x, p, dim), (2, 0), (3, 0), (2, 1)),
    "renorm": (lambda x, p, bound: x.renorm(p, 0, bound), (2, 1.0), (1, 1.0), (2, 0.5)),
    "add": (lambda x, alpha: torch.add(x, x, alpha=alpha), (1,), (2,), (1.0,)),
    "pow": (lambda x, exponent: x**exponent, (2,), (3,), (2.0,)),
    "pow of a number": (lambda x, base: base**x, (2,), (3,)),
    "div rounded": (lambda x, mode: torch.div(x, 2, rounding_mode=mode), (None,), ("floor",), ("trunc",)),
    "clamp": (lambda x, low, high: x.clamp(low, high), (0, 1), (0.0, 1), (None, 1), (0, None), (0.1, 1)),
    "leaky_relu": (lambda x, slope: F.leaky_relu(x, slope), (0.1,), (0.2,)),
    "elu": (lambda x, alpha: F.elu(x, alpha), (1.0,), (0.5,)),
    "gelu": (lambda x, kind: F.gelu(x, approximate=kind), ("none",), ("tanh",)),
    "softplus": (lambda x, beta: F.softplus(x, beta), (1,), (2,)),
    "threshold": (lambda x, bound: F.threshold(x, bound, 7.0), (0.5,), (0.25,)),
    "hardtanh": (lambda x, low: F.hardtanh(x, low, 1.0), (-1.0,), (0.0,)),
    "dropout": (lambda x, p: torch.native_dropout(x, p, True), (0.5,), (0.25,)),
    "transpose": (lambda x, left, right: x.transpose(left, right), (0, 1), (0, 0)),
    "permute": (lambda x, *dims: x.permute(*dims), (0, 1), (1, 0)),
    "squeeze": (lambda x, dim: x.unsqueeze(0).squeeze(dim), (0,), (1,)),
    "unbind": (lambda x, dim: x.unbind(dim), (0,), (1,)),
    "flip": (lambda x, *dims: x.flip(dims), (0,), (1,), (0, 1)),
    "roll": (lambda x, shift, dim: x.roll(shift, dim), (1, 0), (2, 0), (1, 1)),
    "diagonal": (lambda x, offset: x.diagonal(offset), (0,), (1,)),
    "tril": (lambda x, diagonal: x.tril(diagonal), (0,), (1,)),
    "select": (lambda x, dim, index: x.select(dim, index), (0, 1), (1, 1), (0, 2)),
    "slice": (lambda x, start, end, step: x[:, start:end:step], (0, 4, 1), (1, 4, 1), (0, 5, 1), (0, 4, 2)),
    "unfold": (lambda x, size, step: x.unfold(1, size, step), (2, 1), (3, 1), (2, 2)),
    "as_strided": (lambda x, size, offset: x.as_strided((size, 2), (2, 1), offset), (3, 0), (4, 0), (3, 1)),
    "cat": (lambda x, dim: torch.cat([x, x * 2], dim), (0,), (1,)),
    "block_diag": (lambda x, rows: torch.block_diag(x, x[:rows]), (2,), (3,)),
    "stack": (lambda x, dim: torch.stack([x, x * 2], dim), (0,), (1,)),
    "repeat": (lambda x, *repeats: x.repeat(*repeats), (2, 1), (1, 2)),
    "repeat_interleave": (lambda x, dim: x.repeat_interleave(2, dim), (0,), (1,)),
    "expand": (lambda x, count: x.unsqueeze(0).expand(count, -1, -1), (2,)),
    "index": (lambda x, index: x[torch.tensor(index)], ([0, 1],)),
    "index behind a slice": (lambda x, first: x[first, torch.tensor([0, 1])], (slice(None),), (torch.tensor([0, 1]),)),
    "index_select": (lambda x, dim: x.index_select(dim, torch.tensor([0, 1])), (0,), (1,)),
    "index_add": (lambda x, alpha: x.index_add(0, torch.tensor([0]), x[:1], alpha=alpha), (1,), (2,)),
    "index_put": (lambda x, more: x.index_put((torch.tensor([0]),), x[0], accumulate=more), (False,), (True,)),
    "index_reduce": (lambda x, how: x.index_reduce(0, torch.tensor([0]), x[:1], how), ("prod",), ("mean",)),
    "gather": (lambda x, dim: x.gather(dim, torch.zeros(2, 2, dtype=torch.long)), (0,), (1,)),
    "scatter": (lambda x, dim: x.scatter(dim, torch.zeros(2, 2, dtype=torch.long), x[:2, :2]), (0,), (1,)),
    "scatter_reduce": (
        lambda x, how, own: x.scatter_reduce(0, torch.zeros(2, 2, dtype=torch.long), x[:2, :2], how, include_self=own),
        ("amax", True),
        ("prod", True),
        ("amax", False),
    ),
    "masked_fill": (lambda x, value: x.masked_fill(x > 0.5, value), (0.0,)),
    "where": (lambda x, bound: torch.where(x > bound, x, x * 2), (0.5,)),
    "matmul": (lambda x, left: (x.t() @ x) if left else (x @ x.t()), (True,), (False,)),
    "addmm": (lambda x, beta, alpha: torch.addmm(x, x, x.t() @ x, beta=beta, alpha=alpha), (1, 1), (2, 1), (1, 2)),
    "einsum": (lambda x, how: torch.einsum(how, x, x), ("ij,kj->ik",), ("ij,ij->j",)),
    "linear": (lambda x, bias: F.linear(x, x, x[:, 0] if bias else None), (True,), (False,)),
    "inverse": (lambda x, shift: torch.linalg.inv(x @ x.t() + shift * torch.eye(4)), (1,)),
    "solve": (
        lambda x, left: torch.linalg.solve(x @ x.t() + torch.eye(4), x if left else x.t(), left=left),
        (True,),
        (False,),
    ),
    "cholesky": (lambda x, upper: torch.linalg.cholesky(x @ x.t() + torch.eye(4), upper=upper), (False,), (True,)),
    "qr": (lambda x, mode: torch.linalg.qr(x, mode), ("reduced",), ("r",)),
    "triangular": (lambda x, upper: torch.linalg.solve_triangular(x[:, :4], x, upper=upper), (False,), (True,)),
    "fft": (lambda x, dim, how: torch.fft.fft(x, dim=dim, norm=how), (0, None), (1, None), (0, "ortho")),
    "rfft": (lambda x, count: torch.fft.rfft(x, count), (6,), (4,)),
    "conv1d": (
        lambda x, stride, padding, dilation: F.conv1d(
            x[None], x[:2, :4, None].repeat(1, 1, 2), None, stride, padding, dilation
        ),
        (1, 0, 1),
        (2, 0, 1),
        (1, 1, 1),
        (1, 0, 2),
    ),
    "conv_transpose2d": (
        lambda x, padding: F.conv_transpose2d(x[None, None], x[None, None, :2, :2], output_padding=padding, stride=2),
        (0,),
        (1,),
    ),
    "max_pool2d": (
        lambda x, kernel, ceil: F.max_pool2d(x[None], kernel, ceil_mode=ceil),
        (2, False),
        (3, False),
        (2, True),
    ),
    "avg_pool2d": (lambda x, pad: F.avg_pool2d(x[None], 3, padding=1, count_include_pad=pad), (True,), (False,)),
    "adaptive_avg_pool2d": (lambda x, size: F.adaptive_avg_pool2d(x[None], size), (2,)),
    "interpolate": (
        lambda x, corners: F.interpolate(x[None, None], (5, 5), mode="bilinear", align_corners=corners),
        (True,),
        (False,),
    ),
    "pad": (
        lambda x, how, amount: F.pad(x[None], (amount, amount), how),
        ("reflect", 1),
        ("replicate", 1),
        ("reflect", 2),
    ),
    "grid_sample": (
        lambda x, mode: F.grid_sample(x[None, None], x[None, :, :, None].expand(1, 4, 6, 2), mode, align_corners=False),
        ("bilinear",),
        ("nearest",),
    ),
    "layer_norm": (lambda x, eps: F.layer_norm(x, (6,), eps=eps), (1e-5,)),
    "batch_norm": (
        lambda x, training: F.batch_norm(x, torch.zeros(6), torch.ones(6), training=training),
        (True,),
        (False,),
    ),
    "batch_norm's epsilon": (lambda x, eps: F.batch_norm(x, None, None, training=True, eps=eps), (1e-5,), (1e-1,)),
    "group_norm": (lambda x, groups: F.group_norm(x, groups), (1,), (2,), (3,)),
    "embedding": (
        lambda x, padding, by_count: F.embedding(torch.tensor([0, 1, 1]), x, padding, scale_grad_by_freq=by_count),
        (None, False),
        (1, False),
        (None, True),
    ),
    "embedding_bag": (
        lambda x, mode: F.embedding_bag(torch.tensor([[0, 1], [1, 2]]), x, mode=mode),
        ("sum",),
        ("mean",),
        ("max",),
    ),
    "attention": (
        lambda x, causal, scale: F.scaled_dot_product_attention(
            x[None, None], x[None, None], x[None, None], is_causal=causal, scale=scale
        ),
        (False, None),
        (True, None),
        (False, 0.3),
    ),
    "lstm": (
        lambda x, heads: torch.lstm_cell(x, (x[:, :2], x[:, 2:4]), x[:, :6].repeat(2, 1), x[:, :2].repeat(2, 1))[heads],
        (0,),
        (1,),
    ),
    "gru": (lambda x, tied: torch.gru_cell(x, x[:, :2], x.repeat(2, 1)[:6], x[:, :2].repeat(2, 1)[:6] * tied), (1,)),
    "nll_loss": (lambda x, how: F.nll_loss(x, torch.tensor([0, 1, 2, 3]), reduction=how), ("mean",), ("sum",)),
    "nll_loss, ignoring": (
        lambda x, index: F.nll_loss(x, torch.tensor([0, 1, 2, 3]), ignore_index=index),
        (-100,),
        (1,),
    ),
    "mse_loss": (lambda x, how: F.mse_loss(x, x * 2, reduction=how), ("mean",), ("sum",), ("none",)),
    "huber_loss": (lambda x, delta: F.huber_loss(x, x * 2, delta=delta), (1.0,), (0.5,)),
    "cdist": (lambda x, p: torch.cdist(x, x * 2, p), (1.0,), (2.0,), (3.0,)),
    "to": (lambda x, dtype: x.to(dtype).to(torch.half), (torch.float64,), (torch.bfloat16,)),
    "copy_": (lambda x, dtype: torch.empty(4, 6).copy_(x.to(dtype)), (torch.float64,), (torch.bfloat16,)),
    "complex": (lambda x, factor: torch.view_as_real(torch.complex(x, x) * factor), (1j,)),
    "foreach, list": (
        lambda x, which: LISTS[which]([x, x], [x, x]) if which == "mul" else LISTS[which]([x], [x], [x], 1),
        ("mul",),
        ("addcdiv",),
    ),
    "foreach, scalars": (
        lambda x, *numbers: torch._foreach_mul([x, x], list(numbers)),
        (1.0, 2.0),
        (1.0, 3.0),
        (2.0, 1.0),
    ),
    "foreach norm": (lambda x, order: torch._foreach_norm([x, x], order), (2,), (1,)),
    "in place": (lambda x, factor: (x * 1).mul_(factor), (2,)),
    "in place on a view": (lambda x, row, power: on_a_view(x, row, power), (0, 2), (1, 2), (0, 3)),
}
