"""From visits to a verdict.

The visit is the unit. Its log ratio is the median, over its pairs, of the log of the baseline's
typical item time over the variant's, where a round's *typical* item time is the mean of its
fastest four fifths of calls. Chosen with A-against-A recordings (a CNN on torch, one on ONNX
Runtime; a shared two-core machine as it was, and with a busy process beside): standard
deviation of a visit of six pairs, trimmed as `workbench.measure.location` does,

    calls of a round       pairs of a visit   torch    + busy   ONNX Runtime   + busy
    mean                   mean               0.274    0.134    0.111          0.177
    mean                   median             0.106    0.060    0.067          0.082
    median                 median             0.011    0.012    0.006          0.009
    fastest four fifths    median             0.013    0.010    0.009          0.007

so a verdict on means needs forty times the visits. What others do to the machine hits a few
calls of a round, hard. But a variant's own rare slow calls would be overlooked with them, so a
second interval counts every call (the round's mean); where the two intervals do not even touch,
the slow calls are no accident and the verdict rests on the mean.

The interval at a planned look (`workbench.measure.looks`) is

    trimmed mean of the visits ± sqrt((critical × its standard error)² + floor²)

with the floor of `workbench.measure.offsets`. *Faster* and *slower* need all of it beyond the
threshold and beyond the floor, *same* all of it within the threshold: since the floor is part
of the interval, a floor above the threshold leaves *same* out of reach until more processes
have run. There is no verdict before the control has six visits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from workbench.core.decision import Decision, Verdict
from workbench.core.measurement import Pair, Round, Visit
from workbench.measure.location import trimmed_error, trimmed_mean
from workbench.measure.looks import LOOKS, last_look, next_look
from workbench.measure.offsets import Process, estimate_offsets, num_process_pairs

TYPICAL_SHARE = 0.8
MIN_CONTROL_VISITS = 6
# Call times that add up to less than this of their round are times to submit, not to finish.
MIN_ACCOUNTED_SHARE = 0.8

# Visits never change, and a verdict is asked for after each: their calls are sorted once.
_known_ratios: WeakKeyDictionary[Visit, tuple[float, float]] = WeakKeyDictionary()


def timed_calls(one: Round) -> NDArray[np.float64]:
    """The round's call times in seconds; empty where only their submission was timed.

    A call that returns before its work is done (a GPU without events) leaves times that do
    not add up to the round.
    """
    accounted_s = float(one.calls_s.mean()) * one.num_calls if len(one.calls_s) else 0.0
    return one.calls_s if accounted_s >= MIN_ACCOUNTED_SHARE * one.wall_s else one.calls_s[:0]


def typical_item_s(one: Round) -> float:
    """Seconds an item of an undisturbed call: the mean of the fastest four fifths of calls.

    The mean of the whole round where its calls were not timed.
    """
    calls_s = timed_calls(one)
    if len(calls_s) == 0:
        return one.item_s
    fastest = np.sort(calls_s)[: math.ceil(TYPICAL_SHARE * len(calls_s))]
    return float(fastest.mean()) * one.num_calls / one.num_items


def pair_log_ratio(pair: Pair) -> float:
    """Log of the baseline's typical item time over the variant's."""
    return math.log(typical_item_s(pair.baseline) / typical_item_s(pair.variant))


def visit_log_ratio(visit: Visit) -> float:
    """Median over the pairs of the log ratio of typical item times."""
    return _visit_log_ratios(visit)[0]


def visit_mean_log_ratio(visit: Visit) -> float:
    """Median over the pairs of the log ratio of the rounds' means: every call counts."""
    return _visit_log_ratios(visit)[1]


def _visit_log_ratios(visit: Visit) -> tuple[float, float]:
    found = _known_ratios.get(visit)
    if found is None:
        means = [math.log(pair.baseline.item_s / pair.variant.item_s) for pair in visit.pairs]
        typical = [pair_log_ratio(pair) for pair in visit.pairs]
        found = _known_ratios[visit] = (median(typical), median(means))
    return found


def decide(visits: Sequence[Visit], control: Sequence[Visit], threshold: float = 0.02) -> Decision:
    """The verdict on a variant after `visits`, against the baseline's own `control` visits.

    `threshold` is a share: 0.02 asks for 2 %. Cheap enough to be called after every visit.
    """
    visits = [visit for visit in visits if visit.pairs]
    control = [visit for visit in control if visit.pairs]
    processes = [(v.baseline_process, v.variant_process) for v in visits]
    control_processes = [(v.baseline_process, v.variant_process) for v in control]
    if len(visits) == 1:
        return _one_visit(visits[0], threshold)

    def by(statistic: Callable[[Visit], float]) -> Decision:
        return decide_log_ratios(
            [statistic(visit) for visit in visits],
            [statistic(visit) for visit in control],
            threshold=threshold,
            processes=processes,
            control_processes=control_processes,
        )

    typical = by(visit_log_ratio)
    if typical.low is None or typical.high is None or typical.ratio is None:
        return typical
    by_mean = by(visit_mean_log_ratio)
    assert by_mean.low is not None
    assert by_mean.high is not None
    if by_mean.low <= typical.high and typical.low <= by_mean.high:
        return typical
    return replace(
        by_mean,
        reason=f"every call counted, since some calls are always slow: "
        f"the fastest four fifths alone give {typical.ratio:.2f}×"
        + (f"; {by_mean.reason}" if by_mean.reason else ""),
    )


def decide_log_ratios(
    values: Sequence[float] | NDArray[np.float64],
    control: Sequence[float] | NDArray[np.float64],
    *,
    threshold: float = 0.02,
    processes: Sequence[Process] | None = None,
    control_processes: Sequence[Process] | None = None,
) -> Decision:
    """The verdict on log ratios, one per visit.

    `processes` are the (baseline, variant) processes of each visit; without them, all visits
    count as one pair of processes.
    """
    values = np.asarray(values, dtype=np.float64)
    control = np.asarray(control, dtype=np.float64)
    processes = processes if processes is not None else [(0, 0)] * len(values)
    if control_processes is None:
        control_processes = [(0, 0)] * len(control)
    if len(values) == 0:
        return _provisional(values, threshold, "not measured yet")
    look = last_look(len(values))
    if look is None:
        first = LOOKS[0].num_visits
        return _provisional(values, threshold, f"{len(values)} of {first} visits")
    # Between two looks the last look's interval holds.
    seen = values[: look.num_visits]
    seen_processes = processes[: look.num_visits]
    offsets = estimate_offsets(control, control_processes, seen, seen_processes)
    num_pairs = num_process_pairs(seen_processes)
    floor = offsets.bound(num_pairs)
    middle = float(trimmed_mean(seen))
    error = float(trimmed_error(seen))
    half = math.hypot(look.critical * error, floor)
    decision = Decision(
        verdict="undecided",
        provisional=True,
        num_visits=len(values),
        ratio=math.exp(middle),
        low=math.exp(middle - half),
        high=math.exp(middle + half),
        floor=floor,
        spread=error * math.sqrt(look.num_visits),
        threshold=threshold,
        num_processes=num_pairs,
    )
    if len(control) < MIN_CONTROL_VISITS:
        seen_control = f"{len(control)} of {MIN_CONTROL_VISITS} visits"
        return replace(decision, reason=f"no control yet ({seen_control})")
    verdict = judge(middle, half, floor=floor, threshold=threshold)
    if verdict != "undecided":
        return replace(decision, verdict=verdict, provisional=False)
    reason, more = _what_is_missing(decision)
    return replace(decision, provisional=False, reason=reason, num_more_visits=more)


def num_more_visits(decision: Decision) -> int | None:
    """Roughly how many more visits a verdict takes at the present spread; see `Decision`."""
    if decision.verdict != "undecided":
        return None
    if decision.num_visits < LOOKS[0].num_visits:
        return LOOKS[0].num_visits - decision.num_visits
    return decision.num_more_visits


def judge(middle: float, half: float, *, floor: float, threshold: float) -> Verdict:
    """The verdict on an interval of log ratios, `middle` ± `half`."""
    bound = math.log1p(threshold)
    beyond = max(bound, floor)
    if middle - half > beyond:
        return "faster"
    if middle + half < -beyond:
        return "slower"
    if -bound <= middle - half and middle + half <= bound:
        return "same"
    return "undecided"


def _what_is_missing(decision: Decision) -> tuple[str, int | None]:
    """What a verdict waits for, in words, and how many more visits would bring it.

    Supposes that the visits go on like this: the same ratio and spread, and fresh processes as
    often as there were until now.
    """
    assert decision.ratio is not None
    assert decision.spread is not None
    assert decision.floor is not None
    middle = math.log(decision.ratio)
    restarts = (decision.num_processes or 1) > 1
    look = next_look(decision.num_visits)
    error, floor = 0.0, decision.floor
    while look is not None:
        error = look.critical * decision.spread / math.sqrt(look.num_visits)
        if restarts:
            floor = decision.floor * math.sqrt(decision.num_visits / look.num_visits)
        half = math.hypot(error, floor)
        if judge(middle, half, floor=floor, threshold=decision.threshold) != "undecided":
            more = look.num_visits - decision.num_visits
            return f"about {more} more visits would decide", more
        look = next_look(look.num_visits)
    if error > floor:
        return f"{LOOKS[-1].num_visits} visits would not decide it at this noise", None
    return (
        f"two processes of one recipe may differ by {math.expm1(decision.floor) * 100:.1f} % "
        "here; fresh processes would narrow it, more visits of these will not"
    ), None


def _provisional(values: NDArray[np.float64], threshold: float, reason: str) -> Decision:
    return Decision(
        verdict="undecided",
        provisional=True,
        num_visits=len(values),
        ratio=math.exp(float(np.median(values))) if len(values) else None,
        spread=float(values.std(ddof=1)) if len(values) > 1 else None,
        threshold=threshold,
        reason=reason,
        num_more_visits=LOOKS[0].num_visits - len(values),
    )


def _one_visit(visit: Visit, threshold: float) -> Decision:
    pairs = np.array([pair_log_ratio(pair) for pair in visit.pairs])
    decision = _provisional(pairs[:1], threshold, f"1 of {LOOKS[0].num_visits} visits")
    return replace(
        decision,
        ratio=math.exp(float(np.median(pairs))),
        spread=float(pairs.std(ddof=1)) if len(pairs) > 1 else None,
    )
