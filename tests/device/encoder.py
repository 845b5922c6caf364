"""A transformer encoder of the size of MiniLM, with weights drawn from a seed.

It has no mask, so that every attention kernel fits, and its widths are multiples of what
8-bit and 4-bit matmuls need.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

LENGTH, NUM_TOKENS, NUM_CLASSES = 128, 1000, 64


class Layer(nn.Module):
    """Attention and a feed-forward part, each added to its input; (batch, places, width)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.before_attention = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_feed = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mix(self.before_attention(x)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.before_feed(x))))


class Encoder(nn.Module):
    """Ids, i64 (batch, 128), to scores (batch, 64)."""

    def __init__(self, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(NUM_TOKENS, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def make() -> nn.Module:
    """Width 384, six layers: about eleven million parameters."""
    torch.manual_seed(7)
    return Encoder(width=384, num_layers=6, num_heads=6).eval()


def make_small() -> nn.Module:
    """Width 64, two layers: for runs that only show that the code works."""
    torch.manual_seed(7)
    return Encoder(width=64, num_layers=2, num_heads=2).eval()
