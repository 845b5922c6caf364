"""One visit: pairs of rounds of the baseline and a variant, in random order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from workbench.core.errors import RunError
from workbench.core.measurement import Pair, Round, Visit
from workbench.devices.live import CpuTimes, cpu_times, load_of_others
from workbench.measure.rounds import calls_for
from workbench.run import protocol
from workbench.run.crew import Crew
from workbench.run.failures import RowStopped
from workbench.run.live import Live

NUM_PAIRS = 6
MIN_GAP_S = 2.0
# At least so long on a CPU: shorter rounds differ by twice as much (see ARCHITECTURE.md).
_ROUND_S = {"cpu": 0.05, "cuda": 0.1}
# A visit of a slow model takes fewer pairs rather than minutes.
_MAX_VISIT_S = 6.0
# After a pause the first calls find cold caches and a slow clock; they are not recorded.
_REWARM_S = 0.01
# A server that has just been warmed up need not be warmed again.
_STAYS_WARM_S = 0.05


class SideLost(RunError):
    """One side of a visit failed; `cause` is what its worker said or did."""

    def __init__(self, side: Live, cause: RunError) -> None:
        super().__init__(f"#{side.number}: {cause}")
        self.side = side
        self.cause = cause


def make_visit(crew: Crew, baseline: Live, variant: Live, number: int) -> Visit:
    """Measure one visit of two servers that are both alive, taking turns round by round.

    Raises SideLost or RowStopped; nothing of the visit is kept then.
    """
    sides = (baseline, variant)
    plan = _Plan(baseline, variant)
    started_s, before = time.time(), cpu_times()
    for side in random.sample(sides, 2):
        _rewarm(crew, side)
    pairs = []
    for _ in range(plan.num_pairs):
        # The order is random, so that whatever drifts favours neither side.
        first, second = random.sample(sides, 2)
        done = {s.number: _round(crew, s, plan.num_calls[s.number]) for s in (first, second)}
        pairs.append(
            Pair(
                baseline=done[baseline.number],
                variant=done[variant.number],
                baseline_first=first is baseline,
            )
        )
    return _visit(number, started_s, pairs, sides, before)


def make_alternating_visit(
    crew: Crew,
    baseline: Live,
    variant: Live,
    number: int,
    awake: Callable[[Live], AbstractContextManager[None]],
) -> Visit:
    """The same where only one server fits at a time: all rounds of one side, then the other.

    `awake(side)` holds a side's server alive. The pairs are further apart in time than in
    `make_visit`, so more of the machine's drift is in them; the interval shows it.
    """
    sides = (baseline, variant)
    plan = _Plan(baseline, variant)
    started_s, before = time.time(), cpu_times()
    first, second = random.sample(sides, 2)
    rounds: dict[int, list[Round]] = {}
    for side in (first, second):
        with awake(side):
            _rewarm(crew, side)
            calls = plan.num_calls[side.number]
            rounds[side.number] = [_round(crew, side, calls) for _ in range(plan.num_pairs)]
    pairs = [
        Pair(baseline=ours, variant=theirs, baseline_first=first is baseline)
        for ours, theirs in zip(rounds[baseline.number], rounds[variant.number], strict=True)
    ]
    return _visit(number, started_s, pairs, sides, before)


def ratio_now(crew: Crew, baseline: Live, variant: Live) -> float:
    """The baseline's time an item over the variant's, by the median of three calls each.

    Raises SideLost or RowStopped.
    """
    item_s = {
        side.number: float(np.median(_round(crew, side, 3).calls_s)) / side.num_items
        for side in (variant, baseline)
    }
    return item_s[baseline.number] / item_s[variant.number]


class _Plan:
    """How many calls make a round of each side, and how many pairs a visit."""

    def __init__(self, baseline: Live, variant: Live) -> None:
        sides = (baseline, variant)
        target_s = _ROUND_S[baseline.context.device.kind]
        self.num_calls = {side.number: calls_for(side.call_s, target_s) for side in sides}
        pair_s = sum(max(target_s, side.call_s) for side in sides)
        self.num_pairs = max(1, min(NUM_PAIRS, int(_MAX_VISIT_S / pair_s)))


def _rewarm(crew: Crew, side: Live) -> None:
    is_warm = time.monotonic() - side.called_s < _STAYS_WARM_S
    if side.call_s < _REWARM_S and not is_warm:
        _round(crew, side, calls_for(side.call_s, _REWARM_S))


def _visit(
    number: int, started_s: float, pairs: list[Pair], sides: tuple[Live, Live], before: CpuTimes
) -> Visit:
    baseline, variant = sides
    for side, rounds in (
        (baseline, [pair.baseline for pair in pairs]),
        (variant, [pair.variant for pair in pairs]),
    ):
        side.call_s = float(np.median([r.wall_s / r.num_calls for r in rounds]))
    own_s = sum((p.baseline.cpu_s or 0.0) + (p.variant.cpu_s or 0.0) for p in pairs)
    return Visit(
        number=number,
        started_s=started_s,
        pairs=tuple(pairs),
        host_load=load_of_others(before, cpu_times(), own_s),
        baseline_process=baseline.process,
        variant_process=variant.process,
    )


def _round(crew: Crew, side: Live, num_calls: int) -> Round:
    try:
        answer = crew.ask(
            side.server,
            protocol.Calls(num_calls=num_calls),
            stage="measure",
            limit_s=side.limit_s("measure"),
        )
    except RowStopped:
        raise
    except RunError as error:
        raise SideLost(side, error) from error
    assert isinstance(answer, protocol.RoundDone)
    side.called_s = time.monotonic()
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
