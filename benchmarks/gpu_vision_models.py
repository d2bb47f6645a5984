"""Models of images for gpu.py: a vision transformer, ResNet-50 and a U-Net as in diffusion models, with losses."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu_models import Block, Made


class VisionTransformer(nn.Module):
    def __init__(self, size: int, patch: int, width: int, layers: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads, 0.0, False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1) + self.places
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), labels)


class Bottleneck(nn.Module):
    """Three convolutions with batch norms; the step is in the second one."""

    def __init__(self, width: int, inner: int, step: int) -> None:
        super().__init__()
        wide = 4 * inner
        self.conv1, self.norm1 = nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.norm2 = nn.Conv2d(inner, inner, 3, step, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.norm3 = nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.shortcut: nn.Module = nn.Identity()
        if step != 1 or width != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(width, wide, 1, step, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, width = [], 64
        for stage, depth in enumerate(depths):
            inner = 64 * 2**stage
            for number in range(depth):
                blocks.append(Bottleneck(width, inner, 2 if stage and not number else 1))
                width = 4 * inner
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(images))
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Residual(nn.Module):
    """Two convolutions with group norms, SiLU and the embedded time in between."""

    def __init__(self, width: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, width), nn.GroupNorm(32, out)
        self.conv1, self.conv2 = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.shortcut: nn.Module = nn.Identity() if width == out else nn.Conv2d(width, out, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.shortcut(x)


class Attention(nn.Module):
    """Attention among the places of an image."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width, height, length = x.shape
        parts = self.qkv(self.norm(x)).view(batch, 3, self.heads, width // self.heads, height * length)
        y = F.scaled_dot_product_attention(*parts.transpose(-1, -2).unbind(1))
        return x + self.out(y.transpose(-1, -2).reshape(batch, width, height, length))


class Level(nn.Module):
    """A residual block, with attention where the image is small."""

    def __init__(self, width: int, out: int, time: int, attends: bool) -> None:
        super().__init__()
        self.block = Residual(width, out, time)
        self.attention: nn.Module = Attention(out, out // 64) if attends else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = self.attention(self.block(x, time))
        return attended


class UNet(nn.Module):
    """Predicts the noise in images; the loss is the mean squared error."""

    def __init__(self, width: int, factors: tuple[int, ...], depth: int, attending: int) -> None:
        super().__init__()
        time, widths = 4 * width, [width * factor for factor in factors]
        self.width = width
        self.embedding = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.shrink, self.grow = nn.ModuleList(), nn.ModuleList()
        kept, now = [width], width
        for level, out in enumerate(widths):
            for _ in range(depth):
                self.down.append(Level(now, out, time, level >= attending))
                now = out
                kept.append(now)
            last = level == len(widths) - 1
            self.shrink.append(nn.Identity() if last else nn.Conv2d(now, now, 3, 2, 1))
            kept += [] if last else [now]
        self.middle = nn.ModuleList([Level(now, now, time, True), Level(now, now, time, False)])
        for level, out in reversed(list(enumerate(widths))):
            for _ in range(depth + 1):
                self.up.append(Level(now + kept.pop(), out, time, level >= attending))
                now = out
            self.grow.append(nn.Conv2d(now, now, 3, padding=1) if level else nn.Identity())
        self.norm, self.last, self.depth = nn.GroupNorm(32, now), nn.Conv2d(now, 3, 3, padding=1), depth

    def embedded(self, times: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(-math.log(10000) / half * torch.arange(half, device=times.device))
        angles = times[:, None] * rates
        embedded: torch.Tensor = self.embedding(torch.cat((angles.cos(), angles.sin()), 1))
        return embedded

    def forward(self, images: torch.Tensor, times: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        time = self.embedded(times)
        x = self.first(images)
        kept = [x]
        for number, level in enumerate(self.down):
            x = level(x, time)
            kept.append(x)
            if number % self.depth == self.depth - 1 and number + 1 < len(self.down):
                x = self.shrink[number // self.depth](x)
                kept.append(x)
        for level in self.middle:
            x = level(x, time)
        for number, level in enumerate(self.up):
            x = level(torch.cat((x, kept.pop()), 1), time)
            if number % (self.depth + 1) == self.depth and number + 1 < len(self.up):
                x = self.grow[number // (self.depth + 1)](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return F.mse_loss(self.last(F.silu(self.norm(x))).float(), noise)


def labelled_images(batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))


def channels_last(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> Made:
    last: Any = torch.channels_last
    laid_out = tuple(tensor.to(memory_format=last) if tensor.dim() == 4 else tensor for tensor in batch)
    return model.to(memory_format=last), laid_out


def vit() -> Made:
    return VisionTransformer(224, 16, 768, 12, 12, 1000), labelled_images(64, 224)


def resnet50() -> Made:
    return channels_last(ResNet((3, 4, 6, 3), 1000), labelled_images(128, 224))


def unet() -> Made:
    images = torch.randn(32, 3, 64, 64)
    return UNet(128, (1, 2, 4), 2, 2), (images, torch.randint(1000, (32,)), torch.randn(32, 3, 64, 64))
