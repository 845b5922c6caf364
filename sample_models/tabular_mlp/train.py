"""Train the tabular network: `python -m sample_models.tabular_mlp.train` (a minute on a core).

Needs torch and safetensors; `diamonds.npz` is the data.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional

from ..shipping import ship
from .data import split
from .model import make

SEED = 7
NUM_EPOCHS, BATCH_SIZE, PEAK_RATE = 60, 100, 0.003


def train(measures: torch.Tensor, grades: torch.Tensor, log_price: torch.Tensor) -> torch.nn.Module:
    """The trained network, in eval mode. The epochs are fixed: no held-out row picks one."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = make().train()
    model.measure_mean.copy_(measures.mean(0))
    model.measure_std.copy_(measures.std(0))
    model.price_mean.copy_(log_price.mean())
    model.price_std.copy_(log_price.std())
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.02)
    num_steps = NUM_EPOCHS * (len(measures) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=num_steps)
    for epoch in range(NUM_EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(measures)).split(BATCH_SIZE):
            loss = functional.mse_loss(model(measures[rows], grades[rows]), log_price[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: squared error {total / len(measures):.5f}", flush=True)
    return model.eval()


def main() -> None:
    parts = split()
    model = train(*map(torch.from_numpy, parts["train"]))
    measures, grades, log_price = map(torch.from_numpy, parts["evaluation"])
    with torch.no_grad():
        answers = model(measures, grades)
    error = (answers - log_price).double()
    spread = (log_price - log_price.mean()).double()
    r2 = float(1 - error.square().sum() / spread.square().sum())
    median = float(error.abs().median().expm1() * 100)
    print(f"R² {r2:.4f}, median error {median:.1f} % on {len(log_price)} held-out rows")
    card = {
        "name": "tabular-mlp",
        "title": "Tabular MLP",
        "about": "Prices a cut diamond from six measures and three grades: two inputs, an "
        "embedding, layer norms, and so little arithmetic that a call is mostly overhead.",
        "task": "regression",
        "inputs": ["measures: f32[batch, 6]", "grades: i64[batch, 3] in 0..20"],
        "outputs": ["output: f32[batch]"],
        "data": "The diamonds data set of ggplot2 as plotnine bundles it: 53,940 stones, of which "
        f"distinct ones were drawn at random: {len(parts['train'][2])} train, "
        f"{len(parts['calibration'][2])} calibrate, {len(log_price)} evaluate. They are shipped "
        "in `diamonds.npz`, written by `python -m sample_models.tabular_mlp.data`.",
        "licence": "BSD-3-Clause for the model; the data is MIT (ggplot2, plotnine: notices in "
        "`licence-data.txt`)",
        "training": f"{NUM_EPOCHS} epochs of AdamW on the squared error of the log price, "
        f"one-cycle rate, seed {SEED}; `python -m sample_models.tabular_mlp.train`.",
        "limits": "Prices are those of one list of some years ago, and no stone is over 18,823 "
        "dollars. The output is the natural logarithm of dollars.",
        "quality": {
            "metric": "r2",
            "value": round(r2, 6),
            "num_rows": len(log_price),
            "compare": f"of the log price; half of the prices are within {median:.1f} %",
        },
    }
    calibration = parts["calibration"]
    ship(
        Path(__file__).parent,
        model=model,
        card=card,
        evaluation=dict(zip(("measures", "grades", "labels"), parts["evaluation"], strict=True)),
        calibration={"measures": calibration[0], "grades": calibration[1]},
    )


if __name__ == "__main__":
    main()
