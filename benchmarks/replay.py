"""Recorded visits, decided again: how long it took, and how long it had to take.

The yardstick is a decision that knows the noise: the standard deviation of a visit and of the
offset between two processes, neither of which it has to estimate. It takes the same looks and
keeps the same promise (95 % over all looks), so what it needs is what the effect demands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.decision import Verdict
from workbench.core.measurement import Visit
from workbench.measure.location import normal_quantile, trimmed_error, trimmed_mean
from workbench.measure.looks import NUM_VISITS
from workbench.measure.offsets import estimate_offsets, num_process_pairs
from workbench.measure.verdict import MIN_CONTROL_VISITS, decide, judge, visit_log_ratio

# `looks.derive(200_000, seed=1, known_error=True)` gives 2.75 to 2.78 for every look.
KNOWN_CRITICAL = 2.76


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations of log ratios: of one visit, and between two processes."""

    visit_sd: float
    offset_sd: float


@dataclass(frozen=True, kw_only=True)
class Replay:
    """When a record was decided, by the decision and by one that knew the noise.

    Numbers of visits and of rounds are None where the record ended undecided.
    """

    verdict: Verdict
    num_visits: int | None
    num_rounds: int | None
    known_verdict: Verdict
    known_num_visits: int | None
    known_num_rounds: int | None

    @property
    def rounds_ratio(self) -> float | None:
        """Rounds needed over rounds that one who knew the noise would need."""
        if self.num_rounds is None or self.known_num_rounds is None:
            return None
        return self.num_rounds / self.known_num_rounds


def noise_of(visits: Sequence[Visit], control: Sequence[Visit]) -> Noise:
    """What a whole record says of its noise; needs at least two visits."""
    values = np.array([visit_log_ratio(visit) for visit in visits])
    own = np.array([visit_log_ratio(visit) for visit in control])
    offsets = estimate_offsets(own, _processes(control), values, _processes(visits))
    spread = float(trimmed_error(values)) * math.sqrt(len(values))
    return Noise(visit_sd=spread, offset_sd=offsets.sd)


def replay(
    visits: Sequence[Visit],
    control: Sequence[Visit],
    *,
    threshold: float = 0.02,
    noise: Noise | None = None,
) -> Replay:
    """Decide a record again, look by look.

    At each look only the control visits that had started by then are seen. `noise` is what the
    yardstick knows; it is taken from the record itself unless given, which a record of a few
    visits is too short for.
    """
    visits = [visit for visit in visits if visit.pairs]
    control = [visit for visit in control if visit.pairs]
    verdict: Verdict = "undecided"
    known_verdict: Verdict = "undecided"
    num: int | None = None
    known_num: int | None = None
    if noise is None and len(visits) >= NUM_VISITS[0]:
        noise = noise_of(visits, control)
    for look in NUM_VISITS:
        if look > len(visits) or (num is not None and known_num is not None):
            break
        seen = visits[:look]
        seen_control = [one for one in control if one.started_s <= seen[-1].started_s]
        if num is None:
            verdict = decide(seen, seen_control, threshold).verdict
            num = look if verdict != "undecided" else None
        if known_num is None and noise is not None and len(seen_control) >= MIN_CONTROL_VISITS:
            known_verdict = _decide_knowing(seen, noise, threshold)
            known_num = look if known_verdict != "undecided" else None
    return Replay(
        verdict=verdict,
        num_visits=num,
        num_rounds=_num_rounds(visits[:num]) if num is not None else None,
        known_verdict=known_verdict,
        known_num_visits=known_num,
        known_num_rounds=_num_rounds(visits[:known_num]) if known_num is not None else None,
    )


def _decide_knowing(visits: Sequence[Visit], noise: Noise, threshold: float) -> Verdict:
    values = np.array([visit_log_ratio(visit) for visit in visits])
    num_pairs = num_process_pairs(_processes(visits))
    floor = normal_quantile(0.975) * noise.offset_sd / math.sqrt(num_pairs)
    half = math.hypot(KNOWN_CRITICAL * noise.visit_sd / math.sqrt(len(values)), floor)
    return judge(float(trimmed_mean(values)), half, floor=floor, threshold=threshold)


def _processes(visits: Sequence[Visit]) -> list[tuple[int, int]]:
    return [(visit.baseline_process, visit.variant_process) for visit in visits]


def _num_rounds(visits: Sequence[Visit]) -> int:
    return 2 * sum(len(visit.pairs) for visit in visits)
