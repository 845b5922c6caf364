"""How far apart two processes of one recipe stay: what more visits cannot average away.

A process keeps its luck (where its pages and heap lie, its hash seed, its threads' places) for
as long as it lives. Between processes of the same recipe, recorded here: a log ratio of 0.2 to
1.4 % standard deviation, unchanged over a minute, while one visit's noise was 0.7 to 1.4 %. Ten
visits therefore know less than they seem to, and the hundredth adds nothing.

The control shows the size of these offsets, since the truth between its two sides is zero: one
group of visits per pair of processes, each group's mean an offset plus what noise is left. From
m groups with means d_i and squared standard errors e_i^2,

    s^2 = (v0 s0^2 + max(0, sum(d_i^2 - e_i^2))) / (v0 + m)

and |offset| <= t(0.975; v0 + m) s / sqrt(k) in 95 % of cases, for a comparison spread evenly
over k pairs of processes. The prior, s0 = 1 % with the weight of v0 = 3 groups, is what was
recorded here; it keeps one lucky pair from passing for proof. A variant that was itself spread
over several processes adds their differences, k - 1 degrees of freedom, since other engines may
keep more luck than the baseline's. This bound is the floor of the verdict, and part of every
interval. The 95th percentile of single visits would bound one visit's noise instead, which
visits do average away: it forbids verdicts on 5 % at the noise recorded here, for ever.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.measure.location import student_quantile, trimmed_error, trimmed_mean

PRIOR_SD = 0.01
PRIOR_DEGREES = 3
# A shorter group knows too little of its offset to be worth a degree of freedom.
MIN_GROUP_VISITS = 3

Process = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Offsets:
    """Standard deviation of the log ratio between two processes of one recipe.

    `degrees` of freedom count the groups it rests on, the prior included.
    """

    sd: float
    degrees: int

    def bound(self, num_pairs: float) -> float:
        """What the mean over `num_pairs` pairs of processes stays within, in 95 % of cases."""
        return student_quantile(0.975, self.degrees) * self.sd / math.sqrt(num_pairs)


def estimate_offsets(
    control: NDArray[np.float64],
    control_processes: Sequence[Process],
    values: NDArray[np.float64],
    processes: Sequence[Process],
) -> Offsets:
    """The offsets that the control and the comparison itself show.

    `control` and `values` are log ratios of visits, `*_processes` the (baseline, variant)
    processes of each.
    """
    total = PRIOR_DEGREES * PRIOR_SD**2
    degrees = PRIOR_DEGREES
    means, errors = _groups(control, control_processes)
    surplus = sum(mean**2 - error**2 for mean, error in zip(means, errors, strict=True))
    degrees += len(means)
    means, errors = _groups(values, processes)
    if len(means) > 1:
        middle = sum(means) / len(means)
        share = (len(means) - 1) / len(means)
        surplus += sum(
            (mean - middle) ** 2 - share * error**2
            for mean, error in zip(means, errors, strict=True)
        )
        degrees += len(means) - 1
    return Offsets(sd=math.sqrt((total + max(0.0, surplus)) / degrees), degrees=degrees)


def num_process_pairs(processes: Sequence[Process]) -> float:
    """How many independent pairs of processes the visits amount to.

    n^2 / sum(n_i^2) for each side, and the harmonic mean of the two: a side that never
    restarted keeps half of the offset, however often the other one did.
    """
    sides = [_effective_number([pair[side] for pair in processes]) for side in (0, 1)]
    return 2 / (1 / sides[0] + 1 / sides[1])


def _effective_number(labels: Sequence[Hashable]) -> float:
    counts = [labels.count(label) for label in set(labels)]
    return sum(counts) ** 2 / sum(count**2 for count in counts)


def _groups(
    values: NDArray[np.float64], processes: Sequence[Process]
) -> tuple[list[float], list[float]]:
    """Mean and standard error of each process pair's visits; errors from the pooled spread."""
    members = [
        values[[index for index, pair in enumerate(processes) if pair == wanted]]
        for wanted in dict.fromkeys(processes)
    ]
    members = [group for group in members if len(group) >= MIN_GROUP_VISITS]
    if not members:
        return [], []
    means = [float(trimmed_mean(group)) for group in members]
    residuals = np.concatenate([group - mean for group, mean in zip(members, means, strict=True)])
    num = len(residuals)
    one_visit = float(trimmed_error(residuals)) * math.sqrt(num)
    one_visit *= math.sqrt(num / max(1, num - len(members)))
    return means, [one_visit / math.sqrt(len(group)) for group in members]
