"""When the visits are looked at, and how wide the interval is at each look.

Looking early is paid for: there are seventeen planned looks, and at each the interval is the
trimmed mean ± `critical` × its standard error (`workbench.measure.location`). The critical
values are the same quantile of |mean| / error at every look (Pocock's spending), chosen so
that in 95 % of sequences of 400 Gaussian visits *no* look's interval misses the truth. Between
two looks the last look's interval holds. `derive` computes the table; a test repeats it.

Visits are not Gaussian. The same table misses at any look, of 20,000 sequences each: Student's
t with 3 degrees 4.2 %, Cauchy 2.4 %, one visit in seven fifteen times as noisy 3.6 %, noise
that comes in bursts of several visits 3.9 %, visits in either of two states 7.6 %, and visits
whose neighbours are correlated by 0.1 8.7 % (recorded: -0.1 to 0.1 at two seconds apart).
`python -m workbench.measure.looks` prints both tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.measure.location import trimmed_error, trimmed_mean

NUM_VISITS = (6, 8, 10, 13, 17, 22, 28, 36, 46, 60, 80, 100, 130, 170, 220, 290, 400)
MISS_RATE = 0.05


@dataclass(frozen=True, kw_only=True)
class Look:
    """A planned look: after `num_visits`, the interval is ± `critical` standard errors."""

    num_visits: int
    critical: float


# From `derive(400_000, seed=1)`.
LOOKS = (
    Look(num_visits=6, critical=4.672),
    Look(num_visits=8, critical=3.967),
    Look(num_visits=10, critical=4.172),
    Look(num_visits=13, critical=3.589),
    Look(num_visits=17, critical=3.464),
    Look(num_visits=22, critical=3.314),
    Look(num_visits=28, critical=3.185),
    Look(num_visits=36, critical=3.133),
    Look(num_visits=46, critical=3.061),
    Look(num_visits=60, critical=3.006),
    Look(num_visits=80, critical=2.95),
    Look(num_visits=100, critical=2.916),
    Look(num_visits=130, critical=2.874),
    Look(num_visits=170, critical=2.855),
    Look(num_visits=220, critical=2.835),
    Look(num_visits=290, critical=2.816),
    Look(num_visits=400, critical=2.816),
)


def last_look(num_visits: int) -> Look | None:
    """The last planned look that `num_visits` have reached, None before the first."""
    reached = [look for look in LOOKS if look.num_visits <= num_visits]
    return reached[-1] if reached else None


def next_look(num_visits: int) -> Look | None:
    """The first planned look after `num_visits`, None after the last."""
    return next((look for look in LOOKS if look.num_visits > num_visits), None)


Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]


def derive(num_sequences: int, seed: int, known_error: bool = False) -> tuple[Look, ...]:
    """The table, from `num_sequences` simulated sequences of Gaussian visits.

    With `known_error` it is that of a decision which knows the standard error and needs not
    estimate it: what `benchmarks.replay` compares with.
    """
    scores = _scores(gaussian, num_sequences, seed, known_error)
    ordered = np.sort(scores, axis=0)
    low, high = MISS_RATE / len(NUM_VISITS) / 4, MISS_RATE
    for _ in range(40):
        rate = (low * high) ** 0.5
        criticals = ordered[int((1 - rate) * num_sequences)]
        if (scores > criticals).any(axis=1).mean() > MISS_RATE:
            high = rate
        else:
            low = rate
    return tuple(
        Look(num_visits=num, critical=round(float(critical), 3))
        for num, critical in zip(NUM_VISITS, criticals, strict=True)
    )


def miss_rate(draw: Draw, num_sequences: int, seed: int) -> float:
    """How often any look's interval misses zero, for visits drawn by `draw`."""
    criticals = np.array([look.critical for look in LOOKS])
    return float((_scores(draw, num_sequences, seed, False) > criticals).any(axis=1).mean())


def _scores(draw: Draw, num_sequences: int, seed: int, known_error: bool) -> NDArray[np.float64]:
    """|mean| / error at every look, shape (num_sequences, num_looks)."""
    rng = np.random.default_rng(seed)
    chunks = []
    for start in range(0, num_sequences, 5000):
        size = min(5000, num_sequences - start)
        visits = draw(rng, (size, NUM_VISITS[-1]))
        columns = []
        for num in NUM_VISITS:
            seen = visits[:, :num]
            means = np.abs(trimmed_mean(seen))
            errors = np.sqrt(np.square(means).mean()) if known_error else trimmed_error(seen)
            columns.append(means / errors)
        chunks.append(np.stack(columns, axis=1))
    return np.concatenate(chunks)


def gaussian(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Independent standard Gaussian visits."""
    return rng.standard_normal(shape)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Student's t with three degrees of freedom: its variance exists, its kurtosis does not."""
    return rng.standard_t(3, shape)


def disturbed(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """One visit in seven is fifteen times as noisy, as where others load the machine."""
    return rng.standard_normal(shape) * np.where(rng.random(shape) < 0.15, 15.0, 1.0)


def in_bursts(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Ten times as noisy in bursts that last about seven visits."""
    in_burst = rng.random(shape[0]) < 0.2
    scale = np.empty(shape)
    for column in range(shape[1]):
        move = rng.random(shape[0])
        in_burst = np.where(in_burst, move > 0.15, move < 0.04)
        scale[:, column] = np.where(in_burst, 10.0, 1.0)
    return rng.standard_normal(shape) * scale


def in_two_states(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Each visit in one of two states, five times its noise to either side."""
    return rng.standard_normal(shape) + np.where(rng.random(shape) < 0.5, -5.0, 5.0)


def correlated(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Neighbouring visits correlated by 0.1."""
    noise = rng.standard_normal(shape)
    for column in range(1, shape[1]):
        noise[:, column] = 0.1 * noise[:, column - 1] + 0.99**0.5 * noise[:, column]
    return noise


def main() -> None:
    """Print the table as it stands, as derived anew, and how it does on other noise."""
    for look in derive(400_000, seed=1):
        print(f"    Look(num_visits={look.num_visits}, critical={look.critical}),")
    for draw in (gaussian, heavy_tailed, disturbed, in_bursts, in_two_states, correlated):
        print(f"{draw.__name__:<14} any look misses: {miss_rate(draw, 20_000, seed=2):.2%}")


if __name__ == "__main__":
    main()
