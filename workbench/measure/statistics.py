"""Summaries of visits, computed when they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workbench.core.measurement import Round, Visit
from workbench.measure.intervals import median_interval
from workbench.measure.location import student_quantile
from workbench.measure.verdict import timed_calls, typical_item_s

# A percentile is shown from as many samples as leave three beyond it.
MIN_SAMPLES_P95 = 60
MIN_SAMPLES_P99 = 300
# The spread between fewer visits says too little about a percentile's.
MIN_TAIL_VISITS = 3


@dataclass(frozen=True, kw_only=True)
class Tail:
    """A percentile of the calls, in seconds, with its 95 % interval.

    `high` is None where the samples do not reach far enough to bound it.
    """

    value_s: float
    low_s: float
    high_s: float | None


@dataclass(frozen=True, kw_only=True)
class Latency:
    """What one side's visits say of its calls, in seconds.

    `median_s` is the median over visits of a visit's median call; `item_s` that of an
    undisturbed call's time an item, as the verdict uses it; `mean_item_s` counts every call.
    The intervals are over visits, and None below six of them. `p95` needs 60 timed calls,
    `p99` 300, both three visits. `num_samples` is how many calls were timed.
    """

    median_s: float
    low_s: float | None
    high_s: float | None
    item_s: float
    item_low_s: float | None
    item_high_s: float | None
    mean_item_s: float
    p95: Tail | None
    p99: Tail | None
    num_samples: int
    num_visits: int


def summarise(visits: Sequence[Visit], side: Literal["baseline", "variant"]) -> Latency | None:
    """One side's latency, or None where there are no visits."""
    rounds = [_rounds(visit, side) for visit in visits if visit.pairs]
    if not rounds:
        return None
    calls = [np.concatenate([timed_calls(one) for one in visit]) for visit in rounds]
    medians = [
        float(np.median(timed)) if len(timed) else _call_s(visit)
        for timed, visit in zip(calls, rounds, strict=True)
    ]
    items = [float(np.median([typical_item_s(one) for one in visit])) for visit in rounds]
    call_interval = median_interval(medians) or (None, None)
    item_interval = median_interval(items) or (None, None)
    total_s = sum(one.wall_s for visit in rounds for one in visit)
    num_items = sum(one.num_items for visit in rounds for one in visit)
    return Latency(
        median_s=float(np.median(medians)),
        low_s=call_interval[0],
        high_s=call_interval[1],
        item_s=float(np.median(items)),
        item_low_s=item_interval[0],
        item_high_s=item_interval[1],
        mean_item_s=total_s / num_items,
        p95=_tail(calls, 0.95, MIN_SAMPLES_P95),
        p99=_tail(calls, 0.99, MIN_SAMPLES_P99),
        num_samples=sum(len(timed) for timed in calls),
        num_visits=len(rounds),
    )


def _rounds(visit: Visit, side: Literal["baseline", "variant"]) -> list[Round]:
    return [pair.baseline if side == "baseline" else pair.variant for pair in visit.pairs]


def _call_s(rounds: Sequence[Round]) -> float:
    return float(np.median([one.wall_s / one.num_calls for one in rounds]))


def _tail(calls: Sequence[NDArray[np.float64]], share: float, min_samples: int) -> Tail | None:
    """A percentile of all calls, with R. S. Woodruff's interval (JASA 47, 1952) over visits.

    The share of calls beyond the percentile has a standard error, from how that share differs
    between visits; the interval's ends are the percentiles that far to either side.
    """
    calls = [timed for timed in calls if len(timed)]
    if not calls:
        return None
    pooled = np.sort(np.concatenate(calls))
    num, num_visits = len(pooled), len(calls)
    if num < min_samples or num_visits < MIN_TAIL_VISITS:
        return None
    value = float(np.quantile(pooled, share))
    sizes = np.array([len(timed) for timed in calls], dtype=np.float64)
    below = np.array([np.count_nonzero(timed <= value) for timed in calls], dtype=np.float64)
    residuals = (below - share * sizes) / sizes.mean()
    between = float(np.sqrt(np.square(residuals).sum() / (num_visits * (num_visits - 1))))
    error = max(between, math.sqrt(share * (1 - share) / num))
    half = student_quantile(0.975, num_visits - 1) * error
    low = float(np.quantile(pooled, max(0.0, share - half)))
    high = share + half
    reaches = high <= 1 - 1 / num
    return Tail(
        value_s=value, low_s=low, high_s=float(np.quantile(pooled, high)) if reaches else None
    )


def break_even_calls(
    extra_cost_s: float, baseline_call_s: float, variant_call_s: float
) -> int | None:
    """How many calls pay for what a variant costs more before its first answer.

    `extra_cost_s` is its build, cold compile, load and first call over the baseline's. 0
    where it costs no more; None where its calls are no faster, so that they never pay.
    """
    gain_s = baseline_call_s - variant_call_s
    if extra_cost_s <= 0:
        return 0 if gain_s >= 0 else None
    if gain_s <= 0:
        return None
    return math.ceil(extra_cost_s / gain_s)
