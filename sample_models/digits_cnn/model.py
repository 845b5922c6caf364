"""A small convolutional network that reads handwritten digits of 8×8 pixels."""

from __future__ import annotations

import torch
from torch import nn


class ConvBlock(nn.Module):
    """3×3 convolution, batch norm, ReLU; height and width stay."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        # The norm brings the bias.
        self.conv = nn.Conv2d(num_in, num_out, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(num_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


class DigitsCnn(nn.Module):
    """Images (batch, 1, 8, 8), ink near 1 on 0, to logits (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvBlock(1, 16),
            ConvBlock(16, 32),
            nn.MaxPool2d(2),
            ConvBlock(32, 48),
            ConvBlock(48, 48),
            nn.MaxPool2d(2),
        )
        self.hidden = nn.Linear(48 * 2 * 2, 96)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.features(x).flatten(1)
        return self.head(self.dropout(torch.relu(self.hidden(features))))


def make() -> nn.Module:
    """The untrained network, in eval mode."""
    return DigitsCnn().eval()


def preprocess(image):
    """A grey image of one digit, bright ink on dark, as the network's input.

    `image` is a 2-D array-like of at least 8×8 pixels in any scale from 0 up; it is averaged
    over an 8×8 grid and divided by its brightest cell. Returns {"x": f32 (1, 1, 8, 8)}.
    Raises ValueError for any other shape.
    """
    import numpy as np

    pixels = np.asarray(image, dtype=np.float32)
    if pixels.ndim != 2 or min(pixels.shape) < 8:
        raise ValueError(f"a grey image of at least 8×8 pixels is needed, not {pixels.shape}")
    for axis in (0, 1):
        edges = np.linspace(0, pixels.shape[axis], 9).astype(int)
        sizes = np.diff(edges).reshape((-1, 1) if axis == 0 else (1, -1))
        pixels = np.add.reduceat(pixels, edges[:-1], axis=axis) / sizes
    brightest = pixels.max()
    if brightest > 0:
        pixels = pixels / brightest
    return {"x": pixels[None, None].astype(np.float32)}


def postprocess(outputs):
    """The digit of the first row and how sure the network is, from 0 to 1."""
    import numpy as np

    logits = np.asarray(outputs["output"], dtype=np.float64)[0]
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    return {"digit": int(shares.argmax()), "probability": float(shares.max())}
