"""Training steps for gpu.py: each function gives a module and its batch; called with it, the module gives the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Block(nn.Module):
    """A block of a transformer with learned positions: layer norms before attention and a GELU between two layers."""

    def __init__(self, width: int, heads: int, dropout: float, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.is_causal = heads, dropout, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropped = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=self.is_causal, dropout_p=dropped)
        y = self.out(y.transpose(1, 2).reshape(batch, length, width))
        x = x + F.dropout(y, self.dropout, self.training)
        y = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int, dropout: float, causal: bool):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def tokens_of(vocabulary: int, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length))


def gpt2() -> Made:
    return Transformer(50304, 768, 12, 12, 1024, 0.0, True), tokens_of(50304, 8, 1024)


def bert() -> Made:
    return Transformer(30528, 768, 12, 12, 512, 0.1, False), tokens_of(30528, 16, 512)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine.to(x.dtype) + torch.cat((-second, first), -1) * sine.to(x.dtype)


class Llama(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, inner: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, inner) for _ in range(layers))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("cosine", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sine", torch.cat((angles, angles), -1).sin(), persistent=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def llama() -> Made:
    return Llama(32000, 1024, 16, 16, 2816, 1024), tokens_of(32000, 8, 1024)


class Dlrm(nn.Module):
    """Recommendations: bags of embeddings and dense features, products of all pairs of them, and two MLPs."""

    def __init__(self, tables: int, rows: int, width: int, dense: int, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = layers([dense, *bottom, width])
        self.top = layers([width + tables * (tables + 1) // 2, *top])
        self.last = nn.Linear(top[-1], 1)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("first", pairs[0], persistent=False)
        self.register_buffer("second", pairs[1], persistent=False)

    def forward(self, dense: torch.Tensor, indices: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        bags = [table(indices[number]) for number, table in enumerate(self.tables)]
        features = torch.stack([x, *(bag.to(x.dtype) for bag in bags)], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.first, self.second]
        logits = self.last(self.top(torch.cat((x, products), 1)))
        return F.binary_cross_entropy_with_logits(logits.float().squeeze(1), clicks)


def layers(widths: list[int]) -> nn.Sequential:
    pairs = zip(widths, widths[1:], strict=False)
    return nn.Sequential(*(part for before, after in pairs for part in (nn.Linear(before, after), nn.ReLU())))


def dlrm() -> Made:
    model = Dlrm(26, 100_000, 64, 13, [512, 256], [1024, 1024, 512, 256])
    batch = 65536
    return model, (torch.randn(batch, 13), torch.randint(100_000, (26, batch, 4)), torch.randint(2, (batch,)).float())


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x * self.weight) + x).sum()


def tiny() -> Made:
    return Tiny(), (torch.ones(8),)


MODELS: dict[str, Callable[[], Made]] = {"gpt2": gpt2, "llama": llama, "bert": bert, "dlrm": dlrm, "tiny": tiny}


def make(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A model and its batch on the GPU."""
    from benchmarks import gpu_vision_models

    torch.manual_seed(0)
    model, batch = (MODELS.get(name) or getattr(gpu_vision_models, name))()
    return model.cuda(), tuple(tensor.cuda() for tensor in batch)
