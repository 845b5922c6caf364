"""Train the wide digits CNN: `python -m sample_models.digits_cnn_wide.train` (minutes on a core).

Needs torch, safetensors and scikit-learn. The rows are those of the small twin, drawn at 64×64.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from ..digits_cnn.train import augment
from ..digits_cnn.train import split as split_small
from ..shipping import ship
from .model import make, preprocess

SEED = 7
NUM_EPOCHS, BATCH_SIZE, PEAK_RATE = 20, 20, 0.004


def split() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images f32 (rows, 1, 64, 64) in 0..1 and labels i64, as train, calibration, evaluation."""
    return {
        part: (np.concatenate([preprocess(image[0])["x"] for image in images]), labels)
        for part, (images, labels) in split_small().items()
    }


def train(images: torch.Tensor, labels: torch.Tensor) -> torch.nn.Module:
    """The trained network, in eval mode. The epochs are fixed: no held-out row picks one."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
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
        print(f"epoch {epoch + 1}: loss {total / len(images):.4f}", flush=True)
    return model.eval()


def main() -> None:
    parts = split()
    model = train(*map(torch.from_numpy, parts["train"]))
    images, labels = parts["evaluation"]
    with torch.no_grad():
        answers = [model(batch).argmax(1) for batch in torch.from_numpy(images).split(64)]
    accuracy = float((torch.cat(answers).numpy() == labels).mean())
    print(f"accuracy {accuracy:.4f} on {len(labels)} held-out rows")
    card = {
        "name": "digits-cnn-wide",
        "title": "Wide digits CNN",
        "about": "Reads one handwritten digit from a grey image of 64×64 pixels with a residual "
        "network whose time is spent in convolutions: the twin of `digits-cnn` that is bound by "
        "arithmetic.",
        "task": "classification",
        "inputs": ["x: f32[batch, 1, 64, 64]"],
        "outputs": ["output: f32[batch, 10]"],
        "classes": [str(digit) for digit in range(10)],
        "data": "The 1,797 test images of Optical Recognition of Handwritten Digits (E. Alpaydin, "
        "C. Kaynak, 1998, UCI Machine Learning Repository) as scikit-learn bundles them, drawn at "
        f"64×64 by linear interpolation. {len(parts['train'][1])} train, "
        f"{len(parts['calibration'][1])} calibrate, {len(labels)} evaluate, drawn at random: the "
        "rows of `digits-cnn`.",
        "licence": "BSD-3-Clause for the model; the images are CC BY 4.0 (notice in "
        "`licence-data.txt`)",
        "training": f"{NUM_EPOCHS} epochs of AdamW with a one-cycle rate, images turned, sheared, "
        f"scaled and shifted at random, seed {SEED}; "
        "`python -m sample_models.digits_cnn_wide.train`.",
        "limits": "The images hold no more detail than 8×8 pixels: the size is there for the "
        "arithmetic, not for the accuracy. The thirteen writers are in all three parts.",
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
