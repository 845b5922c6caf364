"""Two rows that were never measured side by side, compared through the one both were."""

from __future__ import annotations

import math
from dataclasses import replace

from workbench.core.decision import Decision, Verdict

_ITSELF = Decision(verdict="same", provisional=False, num_visits=0, ratio=1.0, low=1.0, high=1.0)


def against(
    row: Decision | None, baseline: Decision | None, *, is_root: bool, threshold: float
) -> Decision | None:
    """The decision on a row against a baseline that is not the study's own.

    Both decisions are against the study's baseline; `is_root` says that the row is that
    baseline itself. Intervals are divided bound by opposite bound: each covers 95 %, and of
    two independent errors the quotient's interval covers no less. None where a ratio is
    missing.
    """
    if is_root:
        row = replace(_ITSELF, num_visits=baseline.num_visits if baseline else 0)
    if row is None or baseline is None or row.ratio is None or baseline.ratio is None:
        return None
    ratio = row.ratio / baseline.ratio
    low = high = None
    if row.low and row.high and baseline.low and baseline.high:
        low, high = row.low / baseline.high, row.high / baseline.low
    floor = max((f for f in (row.floor, baseline.floor) if f is not None), default=None)
    return Decision(
        verdict=_verdict(low, high, floor, threshold),
        provisional=row.provisional or baseline.provisional,
        num_visits=min(row.num_visits, baseline.num_visits),
        ratio=ratio,
        low=low,
        high=high,
        floor=floor,
        threshold=threshold,
        reason="combined through the study's own baseline",
    )


def _verdict(
    low: float | None, high: float | None, floor: float | None, threshold: float
) -> Verdict:
    if low is None or high is None:
        return "undecided"
    # Both rows' noise is in the quotient, so the control's floor counts twice.
    beyond = max(math.log1p(threshold), 2 * (floor or 0.0))
    if math.log(low) > beyond:
        return "faster"
    if math.log(high) < -beyond:
        return "slower"
    within = math.log1p(threshold)
    if -within <= math.log(low) and math.log(high) <= within:
        return "same"
    return "undecided"
