"""A transformer encoder over bytes that tells which of 24 languages a text is in."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

NUM_LANGUAGES, LENGTH = 24, 128


class SelfAttention(nn.Module):
    """Every place attends to every place that `keep` marks; (batch, places, width) in and out."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=keep)
        return self.out(mixed.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    """Attention and a feed-forward part, each added to its input and then normed."""

    def __init__(self, width: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, num_heads)
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, keep)))
        return self.norm(x + self.dropout(self.down(functional.gelu(self.up(x)))))


class LanguageId(nn.Module):
    """Bytes of UTF-8, i64 (batch, 128) padded with 0, to logits (batch, 24).

    A strided convolution turns the bytes into half as many places, each of five bytes' view:
    letters of two bytes and short endings are one place, and attention costs a quarter.
    """

    def __init__(
        self, width: int = 128, num_layers: int = 3, num_heads: int = 4, hidden: int = 384
    ) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, 64, padding_idx=0)
        self.join = nn.Conv1d(64, width, kernel_size=5, stride=2, padding=2)
        self.place = nn.Parameter(torch.randn(LENGTH // 2, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            EncoderLayer(width, num_heads, hidden) for _ in range(num_layers)
        )
        self.head = nn.Linear(width, NUM_LANGUAGES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        joined = self.join(self.byte(ids).transpose(1, 2)).transpose(1, 2)
        x = self.norm(functional.gelu(joined) + self.place)
        # The first place always counts, or a row of nothing but padding would divide by zero.
        first = torch.arange(LENGTH // 2, device=ids.device) == 0
        keep = (ids[:, ::2] != 0) | first
        for layer in self.layers:
            x = layer(x, keep[:, None, None, :])
        share = keep.to(x.dtype).unsqueeze(-1)
        return self.head((x * share).sum(1) / share.sum(1))


def make() -> nn.Module:
    """The untrained network, in eval mode."""
    return LanguageId().eval()


def preprocess(text):
    """The first 128 bytes of a text's UTF-8, padded with 0, as {"ids": i64 (1, 128)}.

    Spaces in a row count as one. Raises ValueError where nothing but spaces is left.
    """
    import numpy as np

    content = " ".join(text.split()).encode()[:128]
    if not content:
        raise ValueError("an empty text is in no language")
    ids = np.zeros((1, 128), dtype=np.int64)
    ids[0, : len(content)] = np.frombuffer(content, dtype=np.uint8)
    return {"ids": ids}


def postprocess(outputs):
    """The language of the first row by its code, and how sure the network is, from 0 to 1."""
    import numpy as np

    # fmt: off
    codes = ["ar", "ca", "cs", "de", "el", "en", "es", "fi", "fr", "hu", "it", "ja",
             "ko", "lt", "nb", "nl", "pl", "pt_BR", "ro", "ru", "sl", "sv", "tr", "uk"]
    # fmt: on
    logits = np.asarray(outputs["output"], dtype=np.float64)[0]
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    return {"language": codes[int(shares.argmax())], "probability": float(shares.max())}
