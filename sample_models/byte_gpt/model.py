"""A small GPT over bytes, trained on Python's documentation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

NUM_BYTES, LENGTH = 256, 128


class CausalAttention(nn.Module):
    """Every place attends to itself and those before; (batch, places, width) in and out."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward part, each on a normed copy and added to its input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, num_heads)
        self.norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.norm(x))


class ByteGpt(nn.Module):
    """Bytes i64 (batch, places up to 128) to logits of each next byte (batch, places, 256)."""

    def __init__(self, width: int = 128, num_layers: int = 4, num_heads: int = 4) -> None:
        super().__init__()
        self.byte = nn.Embedding(NUM_BYTES, width)
        self.place = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        # Not tied to the embedding: a layer of its own can be quantized on its own.
        self.head = nn.Linear(width, NUM_BYTES, bias=False)
        self.apply(_start_small)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.blocks(self.byte(ids) + self.place(places))))


def _start_small(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def make() -> nn.Module:
    """The untrained network, in eval mode."""
    return ByteGpt().eval()


def preprocess(text):
    """The last 128 bytes of a text's UTF-8 as {"ids": i64 (1, 128)}.

    A shorter text gets line breaks in front, so that the last place is the text's end.
    """
    import numpy as np

    content = text.encode()[-128:].rjust(128, b"\n")
    return {"ids": np.frombuffer(content, dtype=np.uint8).astype(np.int64)[None]}


def postprocess(outputs):
    """What may follow the first row: the five likeliest bytes as text, with their shares."""
    import numpy as np

    logits = np.asarray(outputs["output"], dtype=np.float64)[0, -1]
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    best = np.argsort(-shares, kind="stable")[:5]
    return {"next": [[chr(byte), float(shares[byte])] for byte in best.tolist()]}
