"""Collect the diamonds: `python -m sample_models.tabular_mlp.data` (needs plotnine and pandas).

Draws rows from the data set that plotnine bundles and writes `diamonds.npz`, so that training
and the proof that no row is in two parts need no other package than numpy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

SEED = 7
NUM_TRAIN, NUM_CALIBRATION, NUM_EVALUATION = 12_000, 256, 1_000
FILE = Path(__file__).parent / "diamonds.npz"
# Hundredths of a carat or a millimetre, tenths of a per cent: whole numbers in the source.
SCALE = np.array([100, 10, 10, 100, 100, 100], dtype=np.float64)


def collect() -> None:
    """Write distinct, plausible rows, drawn at random: measures, grades and dollars."""
    from plotnine.data import diamonds

    from .model import preprocess

    table = diamonds.drop_duplicates().reset_index(drop=True)
    # A stone of no size, or wider than any of its weight: slips of the keyboard.
    sizes = table[["x", "y", "z"]]
    table = table[(sizes > 0).all(axis=1) & (sizes < 12).all(axis=1)]
    # The same stone is listed at several prices: one of them stays.
    table = table.drop_duplicates(subset=[name for name in table.columns if name != "price"])
    table = table.sample(NUM_TRAIN + NUM_CALIBRATION + NUM_EVALUATION, random_state=SEED)
    inputs = [preprocess(row) for row in table.to_dict("records")]
    measures = np.concatenate([each["measures"] for each in inputs]).astype(np.float64)
    np.savez_compressed(
        FILE,
        measures=np.rint(measures * SCALE).astype(np.uint16),
        grades=np.concatenate([each["grades"] for each in inputs]).astype(np.uint8),
        dollars=table["price"].to_numpy(np.uint16),
    )


def split() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Measures f32, grades i64 and log price f32, as train, calibration and evaluation."""
    with np.load(FILE) as stored:
        measures = (stored["measures"] / SCALE).astype(np.float32)
        grades = stored["grades"].astype(np.int64)
        log_price = np.log(stored["dollars"]).astype(np.float32)
    bounds = {
        "train": slice(0, NUM_TRAIN),
        "calibration": slice(NUM_TRAIN, NUM_TRAIN + NUM_CALIBRATION),
        "evaluation": slice(NUM_TRAIN + NUM_CALIBRATION, None),
    }
    return {part: (measures[rows], grades[rows], log_price[rows]) for part, rows in bounds.items()}


if __name__ == "__main__":
    collect()
