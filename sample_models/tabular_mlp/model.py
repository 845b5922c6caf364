"""A multilayer perceptron that prices a cut diamond from its measures and grades."""

from __future__ import annotations

import torch
from torch import nn

NUM_MEASURES, NUM_GRADES = 6, 20


class TabularMlp(nn.Module):
    """Measures f32 (batch, 6) and grades i64 (batch, 3) to log price, f32 (batch,).

    Measures are carat, depth in %, table in %, and length, width and depth in mm. Grades are
    numbered through: cut 0 to 4, colour 5 to 11, clarity 12 to 19. The price is the natural
    logarithm of dollars.
    """

    def __init__(self, width: int = 256, grade_width: int = 8) -> None:
        super().__init__()
        # Mean and spread of what the network was trained on, so that it takes plain units.
        self.register_buffer("measure_mean", torch.zeros(NUM_MEASURES))
        self.register_buffer("measure_std", torch.ones(NUM_MEASURES))
        self.register_buffer("price_mean", torch.zeros(()))
        self.register_buffer("price_std", torch.ones(()))
        self.grade = nn.Embedding(NUM_GRADES, grade_width)
        self.layers = nn.Sequential(
            nn.Linear(NUM_MEASURES + 3 * grade_width, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(0.05),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(0.05),
            nn.Linear(width, width // 2),
            nn.GELU(),
            nn.Linear(width // 2, 1),
        )

    def forward(self, measures: torch.Tensor, grades: torch.Tensor) -> torch.Tensor:
        scaled = (measures - self.measure_mean) / self.measure_std
        features = torch.cat([scaled, self.grade(grades).flatten(1)], dim=1)
        return self.layers(features).squeeze(1) * self.price_std + self.price_mean


def make() -> nn.Module:
    """The untrained network, in eval mode."""
    return TabularMlp().eval()


def preprocess(diamond):
    """One diamond as the network's inputs.

    `diamond` has "carat", "depth" and "table" (both %), "x", "y" and "z" (mm), "cut" ("Fair"
    to "Ideal"), "color" ("D" to "J") and "clarity" ("I1" to "IF"). Returns
    {"measures": f32 (1, 6), "grades": i64 (1, 3)}. Raises KeyError where one is missing and
    ValueError for a grade that does not exist.
    """
    import numpy as np

    grades = ["Fair", "Good", "Very Good", "Premium", "Ideal"]
    grades += ["D", "E", "F", "G", "H", "I", "J"]
    grades += ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"]
    measures = [float(diamond[name]) for name in ("carat", "depth", "table", "x", "y", "z")]
    numbers = [grades.index(diamond[name]) for name in ("cut", "color", "clarity")]
    return {
        "measures": np.array([measures], dtype=np.float32),
        "grades": np.array([numbers], dtype=np.int64),
    }


def postprocess(outputs):
    """The price of the first row in dollars."""
    import numpy as np

    return {"price_dollars": float(np.exp(np.asarray(outputs["output"], dtype=np.float64)[0]))}
