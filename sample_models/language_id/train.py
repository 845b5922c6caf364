"""Train the language identifier: `python -m sample_models.language_id.train` (minutes on a core).

Needs torch and safetensors; `corpus.json.xz` is the data.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from ..shipping import ship
from .data import CODES, read
from .model import LENGTH, make, preprocess

SEED = 7
NUM_STEPS, BATCH_SIZE, PEAK_RATE = 700, 72, 0.002
NUM_EVALUATION, NUM_CALIBRATION = 40, 6  # rows a language


def split() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Ids i64 (rows, 128) and labels i64, as train, calibration and evaluation.

    As many rows of each language are held out; what is left over of those parts is not used.
    The order is drawn, so that the first rows of a part are of many languages.
    """
    rng = np.random.default_rng(SEED)
    counts = {"train": None, "calibration": NUM_CALIBRATION, "evaluation": NUM_EVALUATION}
    split: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for part, texts in read().items():
        rows = [
            (preprocess(text)["ids"], label)
            for label, code in enumerate(CODES)
            for text in texts[code][: counts[part]]
        ]
        rows = [rows[place] for place in rng.permutation(len(rows))]
        ids = np.concatenate([row for row, _ in rows])
        split[part] = (ids, np.array([label for _, label in rows], dtype=np.int64))
    return split


def draw(texts: dict[str, list[str]], rng: np.random.Generator) -> tuple[torch.Tensor, ...]:
    """A batch of equally many rows of each language: whole texts, pieces and two in a row."""
    rows, labels = [], []
    for label, code in enumerate(CODES):
        for _ in range(BATCH_SIZE // len(CODES)):
            words = texts[code][rng.integers(len(texts[code]))].split()
            chance = rng.random()
            if chance < 0.3 and len(words) > 4:
                start = rng.integers(len(words) - 3)
                words = words[start : start + rng.integers(3, len(words) + 1)]
            elif chance < 0.5:
                words += texts[code][rng.integers(len(texts[code]))].split()
            text = " ".join(words)
            rows.append(preprocess(text.lower() if rng.random() < 0.2 else text)["ids"])
            labels.append(label)
    return torch.from_numpy(np.concatenate(rows)), torch.tensor(labels)


def train() -> torch.nn.Module:
    """The trained network, in eval mode. The steps are fixed: no held-out row picks one."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    rng = np.random.default_rng(SEED)
    texts = read()["train"]
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_RATE, total_steps=NUM_STEPS, pct_start=0.1
    )
    started_s = time.monotonic()
    for step in range(NUM_STEPS):
        ids, labels = draw(texts, rng)
        loss = functional.cross_entropy(model(ids), labels, label_smoothing=0.03)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            passed_s = time.monotonic() - started_s
            print(f"step {step + 1}: loss {loss.item():.3f} after {passed_s:.0f} s", flush=True)
    return model.eval()


def main() -> None:
    parts = split()
    model = train()
    ids, labels = parts["evaluation"]
    with torch.no_grad():
        answers = model(torch.from_numpy(ids)).argmax(1).numpy()
    accuracy = float((answers == labels).mean())
    print(f"accuracy {accuracy:.4f} on {len(labels)} held-out rows")
    worst = sorted(range(len(CODES)), key=lambda label: (answers == labels)[labels == label].mean())
    for label in worst[:5]:
        share = (answers == labels)[labels == label].mean()
        print(f"  {CODES[label]}: {share:.3f}")
    card = {
        "name": "language-id",
        "title": "Language identifier",
        "raw": "Der Zug nach Hamburg fährt heute von einem anderen Gleis ab.",
        "about": f"Tells which of {len(CODES)} languages a short text is in, from its bytes: a "
        "transformer encoder with padded rows and an attention mask.",
        "task": "classification",
        "inputs": [f"ids: i64[batch, {LENGTH}] in 0..256"],
        "outputs": [f"output: f32[batch, {len(CODES)}]"],
        "classes": CODES,
        "data": "The message catalogues of Django 5.2 and Wagtail 8.0: what a web site says in "
        f"{len(CODES)} languages, placeholders and markup removed. A message and its translations "
        f"are in one part: {len(parts['train'][1]):,} texts train, {len(parts['calibration'][1])} "
        f"calibrate, {len(labels)} evaluate ({NUM_EVALUATION} a language). They are shipped in "
        "`corpus.json.xz`, written by `python -m sample_models.language_id.data`.",
        "licence": "BSD-3-Clause, the texts too (Django, Wagtail: notices in `licence-data.txt`)",
        "training": f"{NUM_STEPS:,} steps of AdamW on {BATCH_SIZE} texts, pieces and pairs, "
        f"one-cycle rate, seed {SEED}; `python -m sample_models.language_id.train`.",
        "limits": "It has read the language of user interfaces only, and answers one of its "
        "languages for a text in any other. Chance is right in one of 24.",
        "quality": {"metric": "accuracy", "value": round(accuracy, 6), "num_rows": len(labels)},
    }
    ship(
        Path(__file__).parent,
        model=model,
        card=card,
        evaluation={"ids": ids, "labels": labels},
        calibration={"ids": parts["calibration"][0]},
    )


if __name__ == "__main__":
    main()
