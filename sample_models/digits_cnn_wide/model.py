"""A residual network that reads handwritten digits of 64×64 pixels, bound by its arithmetic."""

from __future__ import annotations

import torch
from torch import nn


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, added to their input.

    With `stride` 2, height and width are halved and the input is projected by a 1×1
    convolution.
    """

    def __init__(self, num_in: int, num_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(num_out)
        if stride == 1 and num_in == num_out:
            self.shortcut = nn.Identity()
        else:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(num_out),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class DigitsCnnWide(nn.Module):
    """Images (batch, 1, 64, 64), ink near 1 on 0, to logits (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 64, 7, stride=4, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )
        # Few wide layers on a small grid: the arithmetic of a convolution grows with the
        # square of its width, what norms and activations touch only with the width.
        self.stages = nn.Sequential(
            ResidualBlock(64, 128),
            ResidualBlock(128, 128),
            ResidualBlock(128, 192, stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(192, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.stages(self.stem(x))).flatten(1))


def make() -> nn.Module:
    """The untrained network, in eval mode."""
    return DigitsCnnWide().eval()


def preprocess(image):
    """A grey image of one digit, bright ink on dark, as the network's input.

    `image` is a 2-D array-like of at least 8×8 pixels in any scale from 0 up. It is averaged
    over an 8×8 grid, the detail the network was trained on, drawn at 64×64 by linear
    interpolation in 33 levels of grey, the brightest cell at 1. Returns
    {"x": f32 (1, 1, 64, 64)}. Raises ValueError for any other shape.
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
    # Where each of the 64 pixels' centres lies between the centres of the 8 cells.
    centre = np.clip((np.arange(64) + 0.5) / 8 - 0.5, 0, 7)
    weights = np.maximum(0, 1 - np.abs(centre[:, None] - np.arange(8)))
    drawn = np.round(weights @ pixels @ weights.T * 32) / 32
    return {"x": drawn[None, None].astype(np.float32)}


def postprocess(outputs):
    """The digit of the first row and how sure the network is, from 0 to 1."""
    import numpy as np

    logits = np.asarray(outputs["output"], dtype=np.float64)[0]
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    return {"digit": int(shares.argmax()), "probability": float(shares.max())}
