"""Kernels on a GPU: bandwidth of Kiln's, of torch.compile's, and of a copy of as many bytes.

    python -m benchmarks.gpu_kernels [--only softmax,sum] [--largest] [--contestants kiln] [--json FILE]

Bytes are those that have to be read and written once. Times are medians of CUDA events around ten calls: for small
sizes they are mostly the time that the host takes for a call. Sizes are static for both compilers.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

import kiln

HALF = torch.bfloat16
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=HALF)


def full(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def places(count: int, end: int) -> torch.Tensor:
    return torch.randint(end, (count,), device="cuda")


def layer_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.float()
    centred = y - y.mean(-1, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    normal, scaled = centred * inverse, g.float() * w
    mean, dot = scaled.mean(-1, keepdim=True), (scaled * normal).mean(-1, keepdim=True)
    return ((scaled - mean - normal * dot) * inverse).to(g.dtype)


def rms_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.float()
    inverse = torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
    normal, scaled = y * inverse, g.float() * w
    return ((scaled - normal * (scaled * normal).mean(-1, keepdim=True)) * inverse).to(g.dtype)


def cross_entropy_backward(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    wrong = torch.softmax(x.float(), -1) - F.one_hot(t, x.shape[-1])
    return (wrong / x.shape[0]).to(x.dtype)


def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


# name -> a function of the number of rows and of columns that gives a function and its arguments.
CASES: dict[str, Callable[[int, int], Case]] = {
    "bias gelu": lambda r, c: (lambda x, b: F.gelu(x + b, approximate="tanh"), (half(r, c), half(c))),
    "swiglu": lambda r, c: (lambda x, y: F.silu(x) * y, (half(r, c), half(r, c))),
    "add, float32": lambda r, c: (lambda x, y: x + 2 * y, (full(r, c), full(r, c))),
    "row sum": lambda r, c: (lambda x: x.float().sum(-1), (half(r, c),)),
    "row max and index": lambda r, c: (lambda x: x.max(-1), (full(r, c),)),
    "column sum": lambda r, c: (lambda x: x.float().sum(0), (half(r, c),)),
    "sum": lambda r, c: (lambda x: x.float().sum(), (half(r, c),)),
    "softmax": lambda r, c: (lambda x: torch.softmax(x, -1), (half(r, c),)),
    "layer norm": lambda r, c: (lambda x, w, b: F.layer_norm(x, (c,), w, b), (half(r, c), half(c), half(c))),
    "layer norm backward": lambda r, c: (layer_norm_backward, (half(r, c), half(r, c), full(c))),
    "rms norm": lambda r, c: (
        lambda x, w: (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(HALF) * w,
        (half(r, c), half(c)),
    ),
    "cross entropy": lambda r, c: (
        lambda x, t: F.cross_entropy(x.float(), t),
        (half(r, c), places(r, c)),
    ),
    "rms norm backward": lambda r, c: (rms_norm_backward, (half(r, c), half(r, c), full(c))),
    "group norm": lambda r, c: (
        lambda x, w, b: F.group_norm(x, 32, w, b),
        (half(r // 256, c, 16, 16), half(c), half(c)),
    ),
    "cross entropy backward": lambda r, c: (cross_entropy_backward, (half(r, c), places(r, c))),
    "gather": lambda r, c: (
        lambda w, i: F.embedding(i, w) * 2,
        (half(50304, c), places(r, 50304)),
    ),
    "scatter of rows": lambda r, c: (
        lambda x, i, y: x.index_copy(0, i, y),
        (half(2 * r, c), torch.randperm(2 * r, device="cuda")[:r], half(r, c)),
    ),
    "scatter, added": lambda r, c: (
        lambda i, g: torch.ops.aten.embedding_dense_backward(g, i, r, -1, False),
        (places(r, r), full(r, c)),
    ),
    "transpose": lambda r, c: (lambda x: x.t().contiguous() + 1, (half(r, c),)),
    "adam": lambda r, c: (adam, (full(r, c), full(r, c), full(r, c), full(r, c).abs())),
}
SIZES = ((1024, 768), (8192, 768), (8192, 3072), (8192, 8192))


def microseconds(call: Callable[[], Any], repeats: int = 7, calls: int = 10) -> float:
    for _ in range(3):
        call()
    found = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        found.append(1e3 * start.elapsed_time(end) / calls)
    return statistics.median(found)


def bytes_of(*values: Any) -> int:
    return sum(v.numel() * v.element_size() if isinstance(v, torch.Tensor) else bytes_of(*v) for v in values)


def rows(only: list[str], sizes: tuple[tuple[int, int], ...], contestants: list[str]) -> Iterator[dict[str, Any]]:
    for name, make in CASES.items():
        if only and name not in only:
            continue
        for size in sizes:
            function, arguments = make(*size)
            wanted = function(*arguments)
            moved = bytes_of(*arguments, wanted) if name != "gather" else 2 * bytes_of(wanted)
            source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            row: dict[str, Any] = {"name": name, "size": size, "bytes": moved}
            row["copy"] = microseconds(lambda source=source, target=target: target.copy_(source))
            if "eager" in contestants:
                row["eager"] = microseconds(lambda function=function, arguments=arguments: function(*arguments))
            for key, compiler in (("torch.compile", torch.compile), ("kiln", kiln.compile)):
                if key not in contestants:
                    continue
                torch._dynamo.reset()  # or sizes of earlier rows make those of later ones dynamic
                kiln.reset()
                try:
                    compiled = compiler(function, dynamic=False)
                    torch.testing.assert_close(compiled(*arguments), wanted, rtol=2e-2, atol=2e-2)
                    row[key] = microseconds(lambda compiled=compiled, arguments=arguments: compiled(*arguments))
                except Exception as error:
                    print(f"{name} {size} {key}: {str(error)[:300]}", file=sys.stderr)
            yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases")
    parser.add_argument("--largest", action="store_true", help="only the largest size")
    parser.add_argument("--contestants", default="eager,torch.compile,kiln")
    parser.add_argument("--json", help="a file to write the result to")
    options = parser.parse_args()
    keys = ("copy", "eager", "torch.compile", "kiln")
    print(f"{'':22} {'':>12} " + " ".join(f"{key:>14}" for key in keys) + "   of torch.compile's")
    table, ratios = [], []
    only, contestants = [name for name in options.only.split(",") if name], options.contestants.split(",")
    for row in rows(only, SIZES[-1:] if options.largest else SIZES, contestants):
        table.append(row)
        shown = " ".join(f"{row['bytes'] / row[key] / 1e3:9.0f} GB/s" if key in row else f"{'-':>14}" for key in keys)
        ratio = row["torch.compile"] / row["kiln"] if "kiln" in row and "torch.compile" in row else math.nan
        ratios.append(ratio)
        print(f"{row['name']:22} {row['size']!s:>12} {shown} {ratio:8.2f}", flush=True)
    known = [ratio for ratio in ratios if ratio == ratio]
    if known:
        print(f"geometric mean {math.exp(statistics.fmean(map(math.log, known))):.3f}, least {min(known):.2f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
