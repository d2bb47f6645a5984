"""The models that speed.py trains: each builder gives a module and the keyword arguments of a batch.

Sizes are such that a training step takes 10 to 100 ms on two cores: big enough that kernels matter, small enough that
what is around them does, too. `loss_of` finds the loss in what a model returns. The six Hugging Face models are
made from configurations; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Model = tuple[nn.Module, dict[str, Any]]

# Of the GPT, also as JAX has it.
WORDS, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 1000, 128, 4, 4, 4, 128


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first_norm(x)).split(width, 2)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


def gpt() -> Model:
    x, y = torch.randint(0, WORDS, (2, BATCH, LENGTH))
    return GPT(), {"x": x, "y": y}


# --- the six of Hugging Face ------------------------------------------------------------------------------------------

SIZES = dict(hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512)
# name -> settings of the configuration, batch, length
NAMED: dict[str, tuple[dict[str, Any], int, int]] = {
    "bert": (dict(SIZES, head="BertForMaskedLM", vocab_size=1000, max_position_embeddings=128), 4, 128),
    "gpt2": (dict(vocab_size=1000, n_positions=128, n_embd=128, n_layer=3, n_head=4), 4, 128),
    "llama": (dict(SIZES, vocab_size=1000, max_position_embeddings=128, num_key_value_heads=2), 4, 128),
    "t5": (
        dict(vocab_size=1000, d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4)
        | dict(relative_attention_num_buckets=32),
        4,
        64,
    ),
    "vit": (dict(SIZES, image_size=16, patch_size=2), 8, 0),
    "whisper": (
        dict(vocab_size=1000, d_model=128, encoder_layers=2, decoder_layers=2, max_target_positions=128)
        | dict(encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512)
        | dict(num_mel_bins=8, max_source_positions=12),
        8,
        64,
    ),
}


def named(name: str) -> Model:
    from tests.models import tiny_models

    settings, batch, length = NAMED[name]
    model, inputs = tiny_models.BUILDERS[name](**settings)
    return model, inputs(batch, length)


# --- convolutions -----------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]))
        layers, before = [], widths[0]
        for number, width in enumerate(widths):
            layers += [Residual(before, width, 1 + (number > 0)), Residual(width, width, 1)]
            before = width
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(before, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.layers(F.relu(self.stem(x)))
        return F.cross_entropy(self.head(h.mean((2, 3))), y)


def resnet() -> Model:
    return ResNet(), {"x": torch.randn(16, 3, 32, 32), "y": torch.randint(0, 10, (16,))}


class UNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2 = self.block(3, width), self.block(width, 2 * width)
        self.middle = self.block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.joined2, self.joined1 = self.block(4 * width, 2 * width), self.block(2 * width, width)
        self.final = nn.Conv2d(width, 1, 1)

    @staticmethod
    def block(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        h = self.up2(self.middle(F.max_pool2d(second, 2)))
        h = self.up1(self.joined2(torch.cat((second, h), 1)))
        return F.binary_cross_entropy_with_logits(self.final(self.joined1(torch.cat((first, h), 1))), y)


def unet() -> Model:
    return UNet(), {"x": torch.randn(4, 3, 64, 64), "y": torch.rand(4, 1, 64, 64).round()}


class Diffusion(nn.Module):
    """A block of a diffusion U-Net: time embedding, group norm, convolutions, attention over pixels."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.inside, self.outside = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(3))
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, steps: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        angles = steps[:, None].float() * torch.exp(-torch.arange(16) / 2.0)
        time = self.time(torch.cat((angles.sin(), angles.cos()), 1))
        h = self.inside(x)
        y = self.first(F.silu(self.norms[0](h))) + time[:, :, None, None]
        h = h + self.second(F.silu(self.norms[1](y)))
        batch, width, rows, columns = h.shape
        flat = self.norms[2](h).flatten(2).transpose(1, 2)
        parts = self.qkv(flat).view(batch, rows * columns, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, rows * columns, width)
        h = h + self.project(y).transpose(1, 2).reshape(batch, width, rows, columns)
        return F.mse_loss(self.outside(h), noise)


def diffusion() -> Model:
    x, noise = torch.randn(2, 4, 3, 16, 16)
    return Diffusion(), {"x": x, "steps": torch.randint(0, 1000, (4,)), "noise": noise}


# --- sequences, tables, graphs ----------------------------------------------------------------------------------------


class LSTM(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.core = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.core(self.words(x))[0]).flatten(0, 1), y.flatten())


def lstm() -> Model:
    x, y = torch.randint(0, WORDS, (2, 16, 32))
    return LSTM(), {"x": x, "y": y}


class DLRM(nn.Module):
    """Embedding tables and dense features that meet in pairwise products."""

    def __init__(self, tables: int = 8, rows: int = 5000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.last = nn.Linear(64, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        rows = [bottom, *(table(indices) for table, indices in zip(self.tables, sparse, strict=True))]
        stacked = torch.stack(rows, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        found = self.last(self.top(torch.cat((bottom, products), 1))).squeeze(1)
        return F.binary_cross_entropy_with_logits(found, y)


def dlrm() -> Model:
    batch = 2048
    sparse = torch.randint(0, 5000, (8, batch, 4))
    return DLRM(), {"dense": torch.randn(batch, 13), "sparse": sparse, "y": torch.rand(batch).round()}


class GraphConvolution(nn.Module):
    """Message passing over a list of edges: gather, add at the target, divide by the degree."""

    def __init__(self, width: int = 64, classes: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(width, width), nn.Linear(width, classes)))

    def forward(self, x: torch.Tensor, edges: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        source, target = edges
        count = x.size(0)
        degree = torch.zeros(count).index_add(0, target, torch.ones(edges.size(1))).clamp(min=1)
        for number, layer in enumerate(self.layers):
            h = layer(x)
            x = torch.zeros(count, h.size(1)).index_add(0, target, h[source]) / degree[:, None]
            x = F.relu(x) if number == 0 else x
        return F.cross_entropy(x, y)


def graph() -> Model:
    nodes, edges = 8000, 40000
    x, y = torch.randn(nodes, 64), torch.randint(0, 16, (nodes,))
    return GraphConvolution(), {"x": x, "edges": torch.randint(0, nodes, (2, edges)), "y": y}


def of_name(name: str) -> Callable[[], Model]:
    return lambda: named(name)


BUILDERS: dict[str, Callable[[], Model]] = {
    "gpt": gpt,
    **{name: of_name(name) for name in NAMED},
    "resnet": resnet,
    "unet": unet,
    "lstm": lstm,
    "dlrm": dlrm,
    "graph": graph,
    "diffusion": diffusion,
}


def build(name: str) -> Model:
    """The model in training mode, the same in every process."""
    torch.manual_seed(0)
    model, batch = BUILDERS[name]()
    return model.train(), batch


def loss_of(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.loss
