"""Train the digits CNN: `python -m sample_models.digits_cnn.train` (about a minute on a core).

Needs torch, safetensors and scikit-learn, whose copy of the UCI digits is the data.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from ..shipping import ship
from .model import make

SEED = 7
NUM_TRAIN, NUM_CALIBRATION = 1000, 128
NUM_EPOCHS, BATCH_SIZE, PEAK_RATE = 120, 50, 0.01


def split() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images f32 (rows, 1, 8, 8) in 0..1 and labels i64, as train, calibration and evaluation."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(labels))
    bounds = {
        "train": order[:NUM_TRAIN],
        "calibration": order[NUM_TRAIN : NUM_TRAIN + NUM_CALIBRATION],
        "evaluation": order[NUM_TRAIN + NUM_CALIBRATION :],
    }
    return {name: (images[rows], labels[rows]) for name, rows in bounds.items()}


def augment(images: torch.Tensor) -> torch.Tensor:
    """Each image turned by up to 14°, sheared, scaled by up to 12 % and shifted by a pixel."""
    num = len(images)
    angle = (torch.rand(num) * 2 - 1) * math.radians(14)
    shear = (torch.rand(num) * 2 - 1) * 0.2
    scale = 1 + (torch.rand(num, 2) * 2 - 1) * 0.12
    shift = (torch.rand(num, 2) * 2 - 1) * 0.25
    cos, sin = angle.cos(), angle.sin()
    top = torch.stack([cos * scale[:, 0], (shear - sin) * scale[:, 0], shift[:, 0]], dim=1)
    bottom = torch.stack([sin * scale[:, 1], cos * scale[:, 1], shift[:, 1]], dim=1)
    grid = functional.affine_grid(
        torch.stack([top, bottom], dim=1), list(images.shape), align_corners=False
    )
    return functional.grid_sample(images, grid, align_corners=False)


def train() -> torch.nn.Module:
    """The trained network, in eval mode. The epochs are fixed: no held-out row picks one."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    images, labels = map(torch.from_numpy, split()["train"])
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.02)
    num_steps = NUM_EPOCHS * (len(images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=num_steps)
    for epoch in range(NUM_EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(images)).split(BATCH_SIZE):
            logits = model(augment(images[rows]))
            loss = functional.cross_entropy(logits, labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        if epoch % 20 == 19:
            print(f"epoch {epoch + 1}: loss {total / len(images):.4f}", flush=True)
    return model.eval()


def main() -> None:
    model = train()
    parts = split()
    images, labels = parts["evaluation"]
    with torch.no_grad():
        answers = model(torch.from_numpy(images)).argmax(1).numpy()
    accuracy = float((answers == labels).mean())
    print(f"accuracy {accuracy:.4f} on {len(labels)} held-out rows")
    card = {
        "name": "digits-cnn",
        "title": "Digits CNN",
        "about": "Reads one handwritten digit from a grey image of 8×8 pixels. Small enough that "
        "the cost of calling it outweighs its arithmetic.",
        "task": "classification",
        "inputs": ["x: f32[batch, 1, 8, 8]"],
        "outputs": ["output: f32[batch, 10]"],
        "classes": [str(digit) for digit in range(10)],
        "data": "The 1,797 test images of Optical Recognition of Handwritten Digits (E. Alpaydin, "
        "C. Kaynak, 1998, UCI Machine Learning Repository) as scikit-learn bundles them, divided "
        f"by 16. {NUM_TRAIN} train, {NUM_CALIBRATION} calibrate, {len(labels)} evaluate, drawn "
        "at random.",
        "licence": "BSD-3-Clause for the model; the images are CC BY 4.0 (notice in "
        "`licence-data.txt`)",
        "training": f"{NUM_EPOCHS} epochs of AdamW with a one-cycle rate, images turned, sheared, "
        f"scaled and shifted at random, seed {SEED}; `python -m sample_models.digits_cnn.train`.",
        "limits": "The thirteen writers are in all three parts, so the figure says how well it "
        "reads these hands, not a stranger's.",
        "quality": {"metric": "accuracy", "value": round(accuracy, 6), "num_rows": len(labels)},
    }
    ship(
        Path(__file__).parent,
        model=model,
        card=card,
        evaluation={"x": images, "labels": labels},
        calibration={"x": parts["calibration"][0]},
    )


if __name__ == "__main__":
    main()
