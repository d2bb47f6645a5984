"""GPT-2 small that generates text on a GPU with a static cache of keys and values: tokens per second.

    python -m benchmarks.gpu_inference [--batches 1,8] [--contestants eager,kiln+graphs] [--json FILE]

Weights are random, decoding is greedy, one token a call. Speed is that of bfloat16. The tokens that contestants find
are compared in float32, where rounding does not decide between two words. Each contestant runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

CONTESTANTS = ("eager", "torch.compile", "kiln", "kiln+graphs")
VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH = 50304, 768, 12, 12, 512
CHECKED = 24  # tokens that are compared
PROMPT = 8


class Block(nn.Module):
    """One layer. The cache has a place for every position; what lies after the current one is masked."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("keys", torch.zeros(batch, HEADS, LENGTH, WIDTH // HEADS))
        self.register_buffer("values", torch.zeros(batch, HEADS, LENGTH, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, place: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        parts = self.qkv(self.norm1(x)).view(batch, 1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        self.keys.index_copy_(2, place, key)
        self.values.index_copy_(2, place, value)
        y = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, 1, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Generator(nn.Module):
    """From a token and its position to the next token."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(batch) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        x = self.tokens(token) + self.places(place)
        mask = (torch.arange(LENGTH, device=token.device) <= place).view(1, 1, 1, LENGTH)
        for block in self.blocks:
            x = block(x, place, mask)
        return F.linear(self.norm(x)[:, -1], self.tokens.weight).argmax(-1, keepdim=True)


def compiled(contestant: str, model: nn.Module) -> Callable[..., torch.Tensor]:
    if contestant == "torch.compile":
        return torch.compile(model, mode="reduce-overhead")
    if contestant.startswith("kiln"):
        import kiln

        return kiln.compile(model, options={"cuda_graphs": contestant == "kiln+graphs"})
    return model


def generate(call: Callable[..., torch.Tensor], batch: int, count: int, begin_step: Callable[[], None]) -> torch.Tensor:
    """The tokens after a prompt, which is the same for all."""
    prompt = torch.arange(batch * PROMPT, device="cuda").view(batch, PROMPT) * 97 % VOCABULARY
    place = torch.zeros(1, dtype=torch.int64, device="cuda")
    found, token = [], prompt[:, :1]
    for step in range(PROMPT + count - 1):
        begin_step()
        following = call(token, place).clone()
        token = prompt[:, step + 1 : step + 2] if step + 1 < PROMPT else following
        if step + 1 >= PROMPT:
            found.append(following)
        place += 1
    return torch.cat(found, 1)


@torch.no_grad()
def child(contestant: str, batch: int, count: int) -> None:
    """Measures one contestant and prints JSON."""
    begin_step = torch.compiler.cudagraph_mark_step_begin if contestant == "torch.compile" else lambda: None
    torch.manual_seed(0)
    with torch.device("cuda"):
        exact, model = Generator(batch).eval(), Generator(batch).to(torch.bfloat16).eval()
    tokens = generate(compiled(contestant, exact), batch, CHECKED, begin_step).tolist()
    del exact
    call = compiled(contestant, model)
    torch.cuda.synchronize()
    start = time.perf_counter()
    generate(call, batch, 1, begin_step)
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    generate(call, batch, 8, begin_step)
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        generate(call, batch, count, begin_step)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    speed = batch * (count + PROMPT - 1) / statistics.median(times)
    found = {"first": first, "tokens per second": speed, "peak": torch.cuda.max_memory_allocated() / 2**20}
    print("@@" + json.dumps({**found, "tokens": tokens}))


def measured(contestant: str, batch: int, count: int) -> dict[str, Any]:
    options = ["--child", contestant, "--batches", str(batch), "--count", str(count)]
    command = [sys.executable, "-m", "benchmarks.gpu_inference", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("@@"):
            found: dict[str, Any] = json.loads(line[2:])
            return found
    print(done.stderr[-3000:], file=sys.stderr)
    return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--count", type=int, default=200, help="tokens to generate")
    parser.add_argument("--json", help="a file to write the result to")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, int(options.batches), options.count)
        return 0
    table: dict[str, Any] = {}
    print(f"{'batch':>5} {'contestant':14} {'first, s':>9} {'tokens/s':>9} {'peak, MiB':>10}  tokens")
    for batch in map(int, options.batches.split(",")):
        expected: Any = None
        for contestant in options.contestants.split(","):
            found = measured(contestant, batch, options.count)
            table[f"{contestant}, {batch}"] = found
            if not found:
                print(f"{batch:5} {contestant:14} failed", flush=True)
                continue
            expected = expected or found["tokens"]
            same = "the same" if found["tokens"] == expected else "DIFFERENT"
            numbers = f"{found['first']:9.2f} {found['tokens per second']:9.0f} {found['peak']:10.0f}"
            print(f"{batch:5} {contestant:14} {numbers}  {same}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
