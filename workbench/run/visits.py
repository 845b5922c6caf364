"""One visit: pairs of rounds of the baseline and a variant, in random order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import psutil

from workbench.core.measurement import Pair, Round, Visit
from workbench.measure.rounds import calls_for
from workbench.run import protocol
from workbench.run.crew import Crew
from workbench.run.live import Live

NUM_PAIRS = 6
MIN_GAP_S = 2.0
# At least so long on a CPU: shorter rounds differ by twice as much (see ARCHITECTURE.md).
_ROUND_S = {"cpu": 0.05, "cuda": 0.1}
# A visit of a slow model takes fewer pairs rather than minutes.
_MAX_VISIT_S = 6.0
# After a pause the first calls find cold caches and a slow clock; they are not recorded.
_REWARM_S = 0.01


def make_visit(
    crew: Crew,
    baseline: Live,
    variant: Live,
    number: int,
    on_pair: Callable[[int, int], None] | None = None,
) -> Visit:
    """Measure one visit. Raises what `Crew.ask` raises; nothing of it is kept then."""
    sides = (baseline, variant)
    target_s = _ROUND_S[baseline.context.device.kind]
    num_calls = {side.number: calls_for(side.call_s, target_s) for side in sides}
    pair_s = sum(max(target_s, side.call_s) for side in sides)
    num_pairs = max(1, min(NUM_PAIRS, int(_MAX_VISIT_S / pair_s)))
    started_s = time.time()
    busy = _busy_seconds()
    clock_s = time.monotonic()
    for side in sides:
        if side.call_s < _REWARM_S:
            _round(crew, side, calls_for(side.call_s, _REWARM_S))
    pairs = []
    for index in range(num_pairs):
        # The order is random, so that whatever drifts favours neither side.
        first, second = random.sample(sides, 2)
        done = {side.number: _round(crew, side, num_calls[side.number]) for side in (first, second)}
        pairs.append(
            Pair(
                baseline=done[baseline.number],
                variant=done[variant.number],
                baseline_first=first is baseline,
            )
        )
        if on_pair is not None:
            on_pair(index + 1, num_pairs)
    for side in sides:
        rounds = [p.baseline if side is baseline else p.variant for p in pairs]
        side.call_s = float(np.median([r.wall_s / r.num_calls for r in rounds]))
    own_s = sum((p.baseline.cpu_s or 0.0) + (p.variant.cpu_s or 0.0) for p in pairs)
    return Visit(
        number=number,
        started_s=started_s,
        pairs=tuple(pairs),
        host_load=_load_of_others(busy, own_s, time.monotonic() - clock_s),
    )


def _round(crew: Crew, side: Live, num_calls: int) -> Round:
    answer = crew.ask(
        side.worker,
        protocol.Calls(num_calls=num_calls),
        stage="measure",
        limit_s=side.limit_s("measure"),
    )
    assert isinstance(answer, protocol.RoundDone)
    if side.rest_s:
        crew.pause(side.rest_s)
    return Round(
        num_calls=answer.num_calls,
        num_items=answer.num_items,
        wall_s=answer.wall_s,
        calls_s=np.frombuffer(answer.calls_s, dtype="<f8"),
        cpu_s=answer.cpu_s,
        num_switches=answer.num_switches,
        event_s=answer.event_s,
        sm_clock_mhz=answer.sm_clock_mhz,
        throttled=None if answer.throttled is None else tuple(answer.throttled),
    )


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(
        sum(times)
        - times.idle
        - getattr(times, "iowait", 0.0)
        - getattr(times, "guest", 0.0)
        - getattr(times, "guest_nice", 0.0)
    )


def _load_of_others(before: float, own_s: float, wall_s: float) -> float | None:
    """Share of all cores' time that was used by neither side of the visit."""
    cores = psutil.cpu_count() or 1
    if wall_s <= 0:
        return None
    others_s = _busy_seconds() - before - own_s
    return float(min(1.0, max(0.0, others_s / (wall_s * cores))))
