"""Verdicts on fixed and on simulated visits. Nothing here is timed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.measure.made_visits import made_round, made_visit, visits_of
from workbench.core.measurement import Pair, Visit
from workbench.measure.location import student_quantile, trimmed_error
from workbench.measure.looks import LOOKS, NUM_VISITS
from workbench.measure.verdict import (
    decide,
    decide_log_ratios,
    num_more_visits,
    typical_item_s,
    visit_log_ratio,
    visit_mean_log_ratio,
)

QUIET = [0.004, -0.004, 0.002, -0.002, 0.003, -0.003]


def control(num_pairs: int = 8) -> list[Visit]:
    """Quiet control visits, six for each of some pairs of processes."""
    return visits_of(QUIET * num_pairs, visits_per_process=6)


def around(middle: float, num: int) -> list[float]:
    return [middle + QUIET[n % 6] for n in range(num)]


def test_disturbed_calls_are_no_part_of_a_typical_one() -> None:
    calm = made_round(0.001, calls_s=[0.001] * 8 + [0.050, 0.080])
    assert typical_item_s(calm) == pytest.approx(0.001)
    assert calm.item_s == pytest.approx(0.0138)


def test_a_typical_call_is_the_mean_of_the_fastest_four_fifths() -> None:
    calls = [0.001, 0.002, 0.003, 0.004, 0.005]
    assert typical_item_s(made_round(0, calls_s=calls)) == pytest.approx(0.0025)
    assert typical_item_s(made_round(0, calls_s=[0.003], items_per_call=3)) == pytest.approx(0.001)


def test_times_to_submit_are_not_times_to_finish() -> None:
    """P23: calls that return early do not account for their round."""
    launched = replace(made_round(0, calls_s=[0.00001] * 100), wall_s=0.1)
    assert typical_item_s(launched) == pytest.approx(0.001)


def test_a_visit_is_the_median_of_its_pairs() -> None:
    visit = made_visit(1, [(0.002, 0.001), (0.002, 0.001), (0.001, 0.013)])
    assert visit_log_ratio(visit) == pytest.approx(math.log(2))


def test_only_equal_work_is_compared() -> None:
    """A call of eight items in four times the time is twice as fast, an item each."""
    pair = Pair(
        baseline=made_round(0, calls_s=[0.001] * 10),
        variant=made_round(0, calls_s=[0.004] * 10, items_per_call=8),
        baseline_first=True,
    )
    visit = Visit(number=1, started_s=0.0, pairs=(pair,))
    assert visit_log_ratio(visit) == pytest.approx(math.log(2))
    assert visit_mean_log_ratio(visit) == pytest.approx(math.log(2))


def test_nothing_measured_has_no_ratio() -> None:
    decision = decide([], control())
    assert (decision.ratio, decision.verdict, decision.provisional) == (None, "undecided", True)


def test_one_visit_is_provisional_with_the_spread_of_its_pairs() -> None:
    visit = made_visit(1, [(0.002, 0.001), (0.004, 0.001), (0.001, 0.001)])
    decision = decide([visit], control())
    assert decision.provisional
    assert decision.verdict == "undecided"
    assert decision.ratio == pytest.approx(2)
    assert decision.spread == pytest.approx(math.log(2))
    assert decision.low is decision.high is None
    assert decision.num_more_visits == 5


def test_five_visits_are_provisional_however_clear() -> None:
    decision = decide(visits_of([1.0] * 5), control())
    assert decision.provisional
    assert decision.verdict == "undecided"
    assert decision.text == "about 2.72× as fast, provisional"


def test_without_a_control_there_is_no_verdict() -> None:
    decision = decide(visits_of(around(1.0, 50)), [])
    assert decision.verdict == "undecided"
    assert decision.provisional
    assert "no control yet" in decision.reason
    assert decision.low is not None
    assert decide(visits_of(around(1.0, 50)), control()[:5]).provisional


def test_faster_and_slower_are_said_plainly() -> None:
    faster = decide(visits_of(around(math.log(1.41), 20)), control())
    assert (faster.verdict, faster.provisional) == ("faster", False)
    assert faster.text.startswith("1.41× as fast (")
    slower = decide(visits_of(around(-math.log(1.82), 20)), control())
    assert slower.verdict == "slower"
    assert slower.text.startswith("1.82× slower (")


def test_same_needs_more_than_one_pair_of_processes() -> None:
    values = around(0.0, 60)
    alone = decide(visits_of(values), control(num_pairs=1))
    assert alone.verdict == "undecided"
    assert "fresh processes" in alone.reason
    assert num_more_visits(alone) is None
    spread = decide(visits_of(values, visits_per_process=6), control(num_pairs=1))
    assert spread.verdict == "same"
    assert spread.text == "same within 2 %"
    # A control of many processes that hardly differ shows the same.
    assert decide(visits_of(values), control(num_pairs=8)).verdict == "same"


def test_the_interval_is_made_as_documented() -> None:
    values = np.array(around(0.3, 13))
    decision = decide_log_ratios(values, QUIET)
    look = next(look for look in LOOKS if look.num_visits == 13)
    # One group of control visits around zero, its noise larger than its mean: the prior's sum
    # of squares over one more degree of freedom.
    floor = student_quantile(0.975, 4) * math.sqrt(3 * 0.01**2 / 4)
    half = math.hypot(look.critical * float(trimmed_error(values)), floor)
    assert decision.floor == pytest.approx(floor)
    assert decision.low is not None
    assert decision.high is not None
    assert decision.ratio is not None
    assert math.log(decision.high / decision.ratio) == pytest.approx(half)
    assert math.log(decision.ratio / decision.low) == pytest.approx(half)


def test_between_looks_the_last_looks_interval_holds() -> None:
    at_look = decide_log_ratios(around(0.3, 13), QUIET)
    later = decide_log_ratios([*around(0.3, 13), 9.0, -9.0, 9.0], QUIET)
    assert (later.low, later.high) == (at_look.low, at_look.high)
    assert later.num_visits == 16


def test_the_threshold_is_the_users() -> None:
    values = around(math.log(1.10), 20)
    assert decide_log_ratios(values, QUIET).verdict == "faster"
    assert decide_log_ratios(values, QUIET, threshold=0.2).verdict == "same"


def test_an_effect_below_the_controls_floor_is_no_verdict() -> None:
    loud = np.repeat([0.10, -0.12, 0.09, -0.11], 6)
    processes = [(pair, pair) for pair in range(4) for _ in range(6)]
    values = around(math.log(1.15), 20)
    decision = decide_log_ratios(values, loud, control_processes=processes)
    assert decision.verdict == "undecided"
    assert decision.floor is not None
    assert decision.floor > math.log(1.15)
    assert decide_log_ratios(values, QUIET).verdict == "faster"


def test_undecided_says_how_many_visits_would_decide() -> None:
    values = math.log(1.12) + 20 * np.array(QUIET * 70)
    decision = decide_log_ratios(values[:8], QUIET * 4)
    more = num_more_visits(decision)
    assert more is not None
    assert 8 + more in NUM_VISITS
    assert str(more) in decision.reason
    assert decide_log_ratios(values[: (8 + more) * 2], QUIET * 4).verdict == "faster"


def test_hopeless_noise_is_said() -> None:
    decision = decide_log_ratios([3.0, -3.0] * 15, QUIET * 4)
    assert num_more_visits(decision) is None
    assert "400 visits would not" in decision.reason


def test_calls_that_are_always_slow_are_counted() -> None:
    """One call in ten takes eleven times as long, in every round: the ratio says so."""
    visits = [
        Visit(
            number=number,
            started_s=0.0,
            pairs=(
                Pair(
                    baseline=made_round(0, calls_s=[0.001] * 20),
                    variant=made_round(0, calls_s=[0.001] * 18 + [0.011] * 2),
                    baseline_first=True,
                ),
            )
            * 3,
        )
        for number in range(1, 9)
    ]
    decision = decide(visits, control())
    assert decision.verdict == "slower"
    assert decision.ratio == pytest.approx(0.5)
    assert "every call counted" in decision.reason


def jittered_visit(rng: np.random.Generator, number: int, slowdown: float = 1.0) -> Visit:
    def one(factor: float) -> list[float]:
        return list(0.001 * factor * (1 + rng.uniform(0, 0.3, 50)))

    return Visit(
        number=number,
        started_s=float(number),
        pairs=tuple(
            Pair(
                baseline=made_round(0, calls_s=one(1.0)),
                variant=made_round(0, calls_s=one(slowdown)),
                baseline_first=bool(rng.integers(2)),
            )
            for _ in range(6)
        ),
        baseline_process=number // 8,
        variant_process=number // 8,
    )


@pytest.mark.slow
def test_the_same_model_twice_is_not_faster() -> None:
    """P27: 20 trials of A against A with jitter U(0, 30 %): false "faster" at most 5 %.

    The interval is there, and "same" is a verdict that is reached.
    """
    rng = np.random.default_rng(27)
    verdicts = []
    for _ in range(20):
        visits = [jittered_visit(rng, n) for n in range(60)]
        own = [jittered_visit(rng, n) for n in range(60)]
        decisions = [decide(visits[:n], own[:n]) for n in NUM_VISITS if n <= 60]
        decided = [d for d in decisions if d.verdict != "undecided"]
        verdicts.append((decided or decisions)[0 if decided else -1])
    assert sum(d.verdict == "faster" for d in verdicts) <= 1
    assert sum(d.verdict == "slower" for d in verdicts) <= 1
    assert sum(d.verdict == "same" for d in verdicts) >= 18
    assert all(d.low is not None and d.low <= 1 <= (d.high or 0) for d in verdicts)


def test_jitter_does_not_hide_a_slowdown() -> None:
    rng = np.random.default_rng(27)
    visits = [jittered_visit(rng, n, slowdown=1.1) for n in range(22)]
    own = [jittered_visit(rng, n) for n in range(22)]
    decision = decide(visits, own)
    assert decision.verdict == "slower"
    assert decision.low is not None
    assert decision.high is not None
    assert decision.low < 1 / 1.1 < decision.high


def simulated(
    rng: np.random.Generator, effect: float, visit_sd: float, offset_sd: float, num: int
) -> tuple[str, bool]:
    """The verdict reached within `num` visits, and whether its interval covers the truth.

    Fresh processes every ten visits, on both sides and in the control.
    """
    processes = [(n // 10, n // 10) for n in range(num)]

    def draw(middle: float) -> np.ndarray:
        offsets = rng.normal(0, offset_sd, num // 10 + 1)
        return middle + rng.normal(0, visit_sd, num) + offsets[[a for a, _ in processes]]

    values, own = draw(effect), draw(0.0)
    decision = None
    for look in NUM_VISITS:
        if look > num:
            break
        decision = decide_log_ratios(
            values[:look],
            own[:look],
            processes=processes[:look],
            control_processes=processes[:look],
        )
        if decision.verdict != "undecided":
            break
    assert decision is not None
    assert decision.low is not None
    assert decision.high is not None
    return decision.verdict, decision.low <= math.exp(effect) <= decision.high


@pytest.mark.slow
@pytest.mark.parametrize(("visit_sd", "offset_sd"), [(0.02, 0.003), (0.02, 0.01), (0.05, 0.01)])
def test_noise_is_not_read_as_an_effect(visit_sd: float, offset_sd: float) -> None:
    rng = np.random.default_rng(1)
    trials = [simulated(rng, 0.0, visit_sd, offset_sd, 100) for _ in range(100)]
    assert sum(verdict in ("faster", "slower") for verdict, _ in trials) <= 1
    assert sum(covers for _, covers in trials) >= 95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slowdown", "num_visits", "at_least"), [(1.3, 20, 95), (1.1, 60, 80), (1.05, 170, 80)]
)
@pytest.mark.parametrize("visit_sd", [0.02, 0.04])
def test_an_effect_is_decided_within_its_visits(
    slowdown: float, num_visits: int, at_least: int, visit_sd: float
) -> None:
    """The noise recorded for a visit of six pairs, and twice that; 1 % between processes."""
    rng = np.random.default_rng(2)
    trials = [simulated(rng, -math.log(slowdown), visit_sd, 0.01, num_visits) for _ in range(100)]
    assert sum(verdict == "slower" for verdict, _ in trials) >= at_least
    assert sum(covers for _, covers in trials) >= 93
