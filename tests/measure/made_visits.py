"""Visits made of chosen numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.core.measurement import Pair, Round, Visit


def made_round(
    item_s: float, *, num_calls: int = 10, items_per_call: int = 1, calls_s: Sequence[float] = ()
) -> Round:
    """A round whose calls all took the same time, or the times given."""
    timed = np.array(calls_s) if len(calls_s) else np.full(num_calls, item_s * items_per_call)
    return Round(
        num_calls=len(timed),
        num_items=len(timed) * items_per_call,
        wall_s=float(timed.sum()),
        calls_s=timed,
    )


def made_visit(number: int, pairs: Sequence[tuple[float, float]], process: int = 0) -> Visit:
    """A visit from (baseline, variant) seconds an item of each pair."""
    return Visit(
        number=number,
        started_s=float(number),
        pairs=tuple(
            Pair(baseline=made_round(a), variant=made_round(b), baseline_first=True)
            for a, b in pairs
        ),
        baseline_process=process,
        variant_process=process,
    )


def visits_of(
    log_ratios: Sequence[float] | NDArray[np.float64], visits_per_process: int | None = None
) -> list[Visit]:
    """Visits of three equal pairs each, with these log ratios of baseline over variant."""
    return [
        made_visit(
            number,
            [(0.001 * float(np.exp(value)), 0.001)] * 3,
            process=0 if visits_per_process is None else (number - 1) // visits_per_process,
        )
        for number, value in enumerate(log_ratios, start=1)
    ]
