"""Models written as plain modules, each in a style that people write: for the sweep and the tests.

Each builder returns a model and a function that makes its keyword arguments for a batch size and a length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

Inputs = Callable[[int, int], dict[str, Any]]
WORDS = 32


def tokens(batch: int, length: int) -> dict[str, Any]:
    return {"x": torch.randint(0, WORDS, (batch, length))}


def vectors(batch: int, length: int) -> dict[str, Any]:
    return {"x": torch.randn(batch, length, 16)}


def pictures(batch: int, length: int) -> dict[str, Any]:
    """Sides of 16, 24, 28 …: convolutional models take any that can be halved twice."""
    side = 4 * ((length + 1) // 2)
    return {"x": torch.randn(batch, 3, side, side)}


# -- convolutions -----------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int = 1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = None
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.shortcut is None else self.shortcut(x)
        y = self.body(x)
        y += identity
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.layers = nn.Sequential(Residual(8, 8), Residual(8, 16, 2))
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.head = nn.Linear(16, 5)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.layers(self.stem(x)))
        return self.head(torch.flatten(x, 1))


class UNet(nn.Module):
    """Down, across and up, with skip connections in a list that is popped."""

    def __init__(self, widths: tuple[int, ...] = (8, 16)):
        super().__init__()
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        before = 3
        for width in widths:
            self.downs.append(self.block(before, width))
            before = width
        self.middle = self.block(before, 2 * before)
        for width in reversed(widths):
            self.ups.append(nn.ConvTranspose2d(2 * width, width, 2, stride=2))
            self.ups.append(self.block(2 * width, width))
        self.pool = nn.MaxPool2d(2, 2)
        self.final = nn.Conv2d(widths[0], 1, 1)

    @staticmethod
    def block(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for index in range(0, len(self.ups), 2):
            x = self.ups[index](x)
            skip = skips.pop()
            if x.shape != skip.shape:
                x = F.interpolate(x, size=skip.shape[2:])
            x = self.ups[index + 1](torch.cat((skip, x), dim=1))
        return self.final(x)


class Squeeze(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.gates = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.Hardswish(), nn.Conv2d(4, channels, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gates(x.mean((2, 3), keepdim=True))


class Inverted(nn.Module):
    """Depthwise-separable blocks with squeeze and excitation, as mobile networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict()
        for name, width in (("first", 8), ("second", 8)):
            self.blocks[name] = nn.Sequential(
                nn.Conv2d(width, 2 * width, 1),
                nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width),
                nn.BatchNorm2d(2 * width),
                Squeeze(2 * width),
                nn.Conv2d(2 * width, width, 1),
            )
        self.stem = nn.Conv2d(3, 8, 3, padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _, block in self.blocks.items():
            x = x + block(x)
        return x.mean([-2, -1])


def sinusoids(steps: torch.Tensor, width: int) -> torch.Tensor:
    half = width // 2
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, device=steps.device, dtype=torch.float32) / half)
    angles = steps[:, None].float() * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Diffusion(nn.Module):
    """A block of a diffusion U-Net: time embedding, group norm, self- and cross-attention over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.inside = nn.Conv2d(3, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16) for _ in range(3)])
        self.convolution = nn.Conv2d(16, 16, 3, padding=1)
        self.attentions = nn.ModuleList([nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2)])
        self.outside = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, steps: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        emb = self.time(sinusoids(steps, 16))
        h = self.inside(x)
        h = h + self.convolution(F.silu(self.norms[0](h))) + emb[:, :, None, None]
        b, c, height, width = h.shape
        for norm, attention in zip(self.norms[1:], self.attentions, strict=True):
            flat = norm(h).view(b, c, height * width).permute(0, 2, 1)
            other = flat if context is None else context
            h = h + attention(flat, other, other, need_weights=False)[0].permute(0, 2, 1).reshape(b, c, height, width)
        return self.outside(h)


class VAE(nn.Module):
    """Draws random numbers with the reparametrisation trick; returns a named tuple."""

    class Output(NamedTuple):
        reconstruction: torch.Tensor
        mean: torch.Tensor
        log_variance: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 24), nn.LeakyReLU(0.2), nn.Linear(24, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 16), nn.Sigmoid())

    def sample(self, mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return mean
        return mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)

    def forward(self, x: torch.Tensor) -> VAE.Output:
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        return self.Output(self.decoder(self.sample(mean, log_variance)), mean, log_variance)


# -- sequences --------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """An embedding, an LSTM or GRU, and a head; the state may be given and is returned."""

    def __init__(self, kind: type[nn.RNNBase], **more: Any):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=0)
        self.core = kind(16, 12, batch_first=True, **more)
        self.head = nn.LazyLinear(WORDS)
        self(torch.zeros(1, 2, dtype=torch.int64))

    def forward(self, x: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        y, state = self.core(self.embedding(x), state)
        return self.head(y), state


class Cells(nn.Module):
    """A recurrent network unrolled in Python over a fixed number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(16, 12), nn.LSTMCell(12, 12)])
        self.gru = nn.GRUCell(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [(x.new_zeros(x.size(0), 12), x.new_zeros(x.size(0), 12)) for _ in self.cells]
        last = torch.zeros(x.shape[0], 8)
        outputs = []
        for step in range(4):
            y = x[:, step]
            for number, cell in enumerate(self.cells):
                states[number] = cell(y, states[number])
                y = states[number][0]
            last = self.gru(y, last)
            outputs.append(last)
        return torch.stack(outputs, dim=1)


class Packed(nn.Module):
    """Bidirectional LSTM with attention pooling over what the mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(16, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.score = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y, _ = self.core(x)
        weights = self.score(y).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(-1)
        return torch.einsum("bl,blh->bh", weights, y)


class Encoder(nn.Module):
    """torch's own transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, activation="gelu", norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("positions", torch.randn(64, 16))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.encoder(x + self.positions[: x.size(1)], src_key_padding_mask=mask)


class Translator(nn.Module):
    """torch's own encoder and decoder, with causal masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.core = nn.Transformer(16, 2, 2, 2, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(y.size(1))
        out = self.core(self.embedding(x) * math.sqrt(16), self.embedding(y), tgt_mask=mask, tgt_is_causal=True)
        return self.head(out)


class Attention(nn.Module):
    """nn.MultiheadAttention, with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True, kdim=16, vdim=16, add_zero_attn=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool), diagonal=1)
        return self.attention(x, x, x, attn_mask=mask, need_weights=True, average_attn_weights=False)


class Block(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        self.norms = nn.ModuleList([nn.LayerNorm(config.width) for _ in range(2)])
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.project = nn.Linear(config.width, config.width, bias=config.bias)
        self.mlp = nn.ModuleDict(
            dict(
                up=nn.Linear(config.width, 4 * config.width),
                act=nn.GELU(),
                down=nn.Linear(4 * config.width, config.width),
            )
        )
        self.flash = hasattr(F, "scaled_dot_product_attention") and config.flash
        if not self.flash:
            causal = torch.tril(torch.ones(config.context, config.context))
            self.register_buffer("causal", causal.view(1, 1, config.context, config.context))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(self.config.width, dim=2)
        q, k, v = (t.view(B, T, self.config.heads, C // self.config.heads).transpose(1, 2) for t in (q, k, v))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.causal[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        return self.project(y.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norms[0](x))
        m = self.mlp
        return x + m.down(m.act(m.up(self.norms[1](x))))


class Settings:
    """A configuration as a plain object."""

    def __init__(self, **given: Any):
        self.width, self.heads, self.layers, self.context, self.bias, self.flash = 16, 2, 2, 64, True, True
        self.__dict__.update(given)


class LittleGPT(nn.Module):
    """A language model in the style of small teaching code: tied weights, targets optional."""

    def __init__(self, config: Settings):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(WORDS, config.width),
                wpe=nn.Embedding(config.context, config.width),
                h=nn.ModuleList([Block(config) for _ in range(config.layers)]),
                ln_f=nn.LayerNorm(config.width),
            )
        )
        self.lm_head = nn.Linear(config.width, WORDS, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self.start)

    def start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.2)

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        device = x.device
        b, t = x.size()
        assert t <= self.config.context, f"Cannot forward sequence of length {t}, context is only {self.config.context}"
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        h = self.transformer.wte(x) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            h = block(h)
        h = self.transformer.ln_f(h)
        if targets is not None:
            logits = self.lm_head(h)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            logits, loss = self.lm_head(h[:, [-1], :]), None
        return logits, loss


# -- experts, tables, graphs ------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Top-k routing, every expert computed and weighted: no shape depends on data."""

    def __init__(self, count: int = 4, k: int = 2):
        super().__init__()
        self.k = k
        self.router = nn.Linear(16, count)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)) for _ in range(count)]
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = self.router(x).topk(self.k, dim=-1)
        gates = torch.zeros(*x.shape[:-1], len(self.experts)).scatter(-1, chosen, weights.softmax(-1))
        out = sum(gates[..., number : number + 1] * expert(x) for number, expert in enumerate(self.experts))
        balance = gates.mean((0, 1)).pow(2).sum()
        return out, balance


class Mixture(nn.Module):
    """Weights in a ParameterList and a ParameterDict, mixed by learnt proportions."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(16, 16) for _ in range(3)])
        self.named = nn.ParameterDict({"shift": torch.randn(16), "scale": torch.ones(16)})
        self.logits = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [p * (x @ w) for p, w in zip(self.logits.softmax(0), self.weights, strict=True)]
        return torch.stack(parts).sum(0) * self.named["scale"] + self.named.shift


class Ranking(nn.Module):
    """Embedding tables and dense features that meet in pairwise products, as recommenders have them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(WORDS, 8, mode="sum") for _ in range(3)])
        self.bottom = self.mlp([5, 16, 8])
        self.top = self.mlp([8 + 6, 16, 1])
        self.register_buffer("pairs", torch.tril_indices(4, 4, -1))

    @staticmethod
    def mlp(sizes: list[int]) -> nn.Sequential:
        layers: list[nn.Module] = []
        for inside, outside in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(inside, outside), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def forward(self, dense: torch.Tensor, sparse: list[torch.Tensor]) -> torch.Tensor:
        bottom = self.bottom(dense)
        rows = [bottom] + [table(indices) for table, indices in zip(self.tables, sparse, strict=True)]
        stacked = torch.stack(rows, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([bottom, products], dim=1))).squeeze(-1)


class GraphConvolution(nn.Module):
    """Message passing over an edge list: gather, add at the target, normalise by degree."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 12), nn.Linear(12, 4)])

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        count = x.size(0)
        ones = torch.ones(edges.size(1), device=x.device)
        degree = torch.zeros(count, device=x.device).index_add(0, target, ones).clamp(min=1)
        for number, layer in enumerate(self.layers):
            h = layer(x)
            sums = torch.zeros(count, h.size(-1), device=x.device).index_add(0, target, h[source])
            x = sums / degree.unsqueeze(-1)
            if number < len(self.layers) - 1:
                x = F.relu(x)
        return F.log_softmax(x, dim=-1)


class Teacher(nn.Module):
    """Two networks of which one follows the other: buffers changed in forward, no gradients into the follower."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(16, 8), nn.Linear(16, 8)
        self.teacher.requires_grad_(False)
        self.register_buffer("center", torch.zeros(8))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = F.softmax((self.teacher(x) - self.center) / 0.04, dim=-1)
            if self.training:
                self.center.mul_(0.9).add_(target.mean(dim=(0, 1)), alpha=0.1)
                self.steps += 1
        return -(target * F.log_softmax(self.student(x) / 0.1, dim=-1)).sum(-1).mean()


class Normalised(nn.Module):
    """Weight norm, spectral norm and a parametrised weight."""

    class Symmetric(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight.triu() + weight.triu(1).transpose(-1, -2)

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
        self.second = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
        self.third = nn.Linear(16, 16)
        torch.nn.utils.parametrize.register_parametrization(self.third, "weight", self.Symmetric())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


class Gaussian(nn.Module):
    """A policy that returns a distribution's parameters, a sample's logarithm and the entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))
        self.log_scale = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        mean = self.net(x)
        normal = torch.distributions.Normal(mean, self.log_scale.exp().expand_as(mean), validate_args=False)
        action = normal.rsample() if self.training else normal.mean
        return {"action": action, "log_prob": normal.log_prob(action).sum(-1), "entropy": normal.entropy().sum(-1)}


class Checkpointed(nn.Module):
    """Activations computed anew in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.training else layer(x)
        return x


def masked(batch: int, length: int) -> dict[str, Any]:
    made = torch.ones(batch, length, dtype=torch.bool)
    made[0, -2:] = False
    return {**vectors(batch, length), "mask": made}


PLAIN: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "plain-resnet": lambda: (ResNet(), pictures),
    "plain-unet": lambda: (UNet(), pictures),
    "plain-mobile": lambda: (Inverted(), pictures),
    "plain-diffusion": lambda: (Diffusion(), lambda b, n: {**pictures(b, n), "steps": torch.randint(0, 100, (b,))}),
    "plain-diffusion-cross": lambda: (
        Diffusion(),
        lambda b, n: {**pictures(b, n), "steps": torch.randint(0, 100, (b,)), "context": torch.randn(b, n, 16)},
    ),
    "plain-vae": lambda: (VAE(), vectors),
    "plain-lstm": lambda: (Recurrent(nn.LSTM, num_layers=2), tokens),
    "plain-gru": lambda: (Recurrent(nn.GRU, bidirectional=True), tokens),
    "plain-rnn": lambda: (Recurrent(nn.RNN, nonlinearity="relu"), tokens),
    "plain-cells": lambda: (Cells(), vectors),
    "plain-bilstm": lambda: (Packed(), masked),
    "plain-encoder": lambda: (Encoder(), vectors),
    "plain-encoder-mask": lambda: (Encoder(), lambda b, n: {**vectors(b, n), "mask": ~masked(b, n)["mask"]}),
    "plain-translator": lambda: (Translator(), lambda b, n: {**tokens(b, n), "y": tokens(b, n + 2)["x"]}),
    "plain-attention": lambda: (Attention(), vectors),
    "plain-gpt": lambda: (LittleGPT(Settings()), lambda b, n: {**tokens(b, n), "targets": tokens(b, n)["x"]}),
    "plain-gpt-slow": lambda: (LittleGPT(Settings(flash=False)), tokens),
    "plain-experts": lambda: (Experts(), vectors),
    "plain-mixture": lambda: (Mixture(), vectors),
    "plain-ranking": lambda: (
        Ranking(),
        lambda b, n: {"dense": torch.randn(b, 5), "sparse": [torch.randint(0, WORDS, (b, n)) for _ in range(3)]},
    ),
    "plain-graph": lambda: (
        GraphConvolution(),
        lambda b, n: {"x": torch.randn(5 * b, 16), "edges": torch.randint(0, 5 * b, (2, 10 * n))},
    ),
    "plain-teacher": lambda: (Teacher(), vectors),
    "plain-normalised": lambda: (Normalised(), vectors),
    "plain-policy": lambda: (Gaussian(), vectors),
    "plain-checkpoint": lambda: (Checkpointed(), vectors),
}
