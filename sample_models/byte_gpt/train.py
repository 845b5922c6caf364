"""Train the byte GPT: `python -m sample_models.byte_gpt.train` (some ten minutes on a core).

Needs torch and safetensors; `corpus.json.xz` is the data.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from ..shipping import ship
from .data import LENGTH, split
from .model import make

SEED = 7
NUM_STEPS, BATCH_SIZE, PEAK_RATE = 1000, 32, 0.003


def train(text: torch.Tensor) -> torch.nn.Module:
    """The trained network, in eval mode. The steps are fixed: no held-out row picks one."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = make().train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_RATE, weight_decay=0.05, betas=(0.9, 0.98)
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_RATE, total_steps=NUM_STEPS, pct_start=0.1
    )
    started_s = time.monotonic()
    for step in range(NUM_STEPS):
        starts = torch.randint(len(text) - LENGTH, (BATCH_SIZE, 1))
        rows = text[starts + torch.arange(LENGTH + 1)].long()
        loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            bits, passed_s = loss.item() / math.log(2), time.monotonic() - started_s
            print(f"step {step + 1}: {bits:.3f} bits after {passed_s:.0f} s", flush=True)
    return model.eval()


def main() -> None:
    parts = split()
    model = train(torch.from_numpy(parts["train"].copy()))
    rows = torch.from_numpy(parts["evaluation"].astype(np.int64))
    ids, labels = rows[:, :-1], rows[:, 1:]
    with torch.no_grad():
        logits = torch.cat([model(batch) for batch in ids.split(64)])
    nats = functional.cross_entropy(logits.flatten(0, 1).double(), labels.flatten()).item()
    bits = nats / math.log(2)
    accuracy = float((logits.argmax(-1) == labels).double().mean())
    shares = np.bincount(parts["train"], minlength=256) + 1
    shares = shares / shares.sum()
    chance = float(-np.log2(shares[labels.numpy()]).mean())
    print(f"{bits:.4f} bits a byte ({chance:.2f} by frequency), next byte right {accuracy:.3f}")
    print(f"{len(rows)} held-out rows")
    card = {
        "name": "byte-gpt",
        "title": "Byte GPT",
        "raw": "Return a list of the words in the string",
        "about": "Predicts the next byte of English technical prose and Python: a decoder-only "
        "transformer with causal attention over bytes.",
        "task": "language-model",
        "inputs": [f"ids: i64[batch, {LENGTH}] in 0..256"],
        "outputs": [f"output: f32[batch, {LENGTH}, 256]"],
        "data": "The documentation strings of CPython 3.11's standard library and the language "
        f"reference that `help()` prints: {len(parts['train']) / 1e6:.2f} MB train, "
        f"{len(parts['calibration'])} rows calibrate, {len(rows)} evaluate. A module or topic is "
        "in one part, and no half of a held-out row occurs in the training text. The text is "
        "shipped in `corpus.json.xz`, written by `python -m sample_models.byte_gpt.data`.",
        "licence": "BSD-3-Clause for the model; the text is under the Python Software Foundation "
        "Licence 2 (notices in `licence-data.txt`)",
        "training": f"{NUM_STEPS:,} steps of AdamW on {BATCH_SIZE} windows of {LENGTH} bytes, "
        f"one-cycle rate, seed {SEED}; `python -m sample_models.byte_gpt.train`.",
        "limits": "It has learned spelling, layout and turns of phrase, not facts. The labels are "
        "the next bytes of each place.",
        "quality": {
            "metric": "bits_per_byte",
            "value": round(bits, 6),
            "num_rows": len(rows),
            "compare": f"{chance:.2f} by the bytes' frequency alone; the likeliest next byte is "
            f"right in {accuracy * 100:.1f} %",
        },
    }
    calibration = parts["calibration"].astype(np.int64)
    ship(
        Path(__file__).parent,
        model=model,
        card=card,
        evaluation={"ids": ids.numpy(), "labels": labels.numpy()},
        calibration={"ids": calibration[:, :-1]},
    )


if __name__ == "__main__":
    main()
