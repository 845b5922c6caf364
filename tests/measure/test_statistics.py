"""Summaries and tails on fixed samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.measure.made_visits import made_round, made_visit
from workbench.core.measurement import Pair, Visit
from workbench.measure.statistics import break_even_calls, summarise


def visit_with(number: int, calls_s: list[float]) -> Visit:
    one = made_round(0, calls_s=calls_s)
    return Visit(
        number=number,
        started_s=0.0,
        pairs=(Pair(baseline=made_round(0.5), variant=one, baseline_first=True),),
    )


def test_no_visits_have_no_summary() -> None:
    assert summarise([], "variant") is None


def test_the_median_call_and_its_interval_are_over_visits() -> None:
    visits = [made_visit(n, [(1.0, 0.001 * n)]) for n in range(1, 10)]
    latency = summarise(visits, "variant")
    assert latency is not None
    assert latency.median_s == pytest.approx(0.005)
    # Nine visits: the second lowest and highest bound the median at 95 %.
    assert (latency.low_s, latency.high_s) == pytest.approx((0.002, 0.008))
    assert latency.num_visits == 9
    assert latency.num_samples == 90


def test_both_sides_are_told_apart() -> None:
    baseline = summarise([made_visit(1, [(0.002, 0.001)])], "baseline")
    assert baseline is not None
    assert baseline.median_s == pytest.approx(0.002)


def test_few_visits_have_no_interval() -> None:
    latency = summarise([made_visit(n, [(1.0, 0.001)]) for n in range(5)], "variant")
    assert latency is not None
    assert latency.low_s is None
    assert latency.item_low_s is None


def test_item_time_divides_by_the_batch() -> None:
    pair = Pair(
        baseline=made_round(1.0),
        variant=made_round(0, calls_s=[0.008] * 5, items_per_call=4),
        baseline_first=True,
    )
    latency = summarise([Visit(number=1, started_s=0.0, pairs=(pair,))], "variant")
    assert latency is not None
    assert latency.median_s == pytest.approx(0.008)
    assert latency.item_s == pytest.approx(0.002)


def test_the_mean_counts_calls_that_the_typical_item_leaves_out() -> None:
    latency = summarise([visit_with(1, [0.001] * 9 + [0.011])], "variant")
    assert latency is not None
    assert latency.item_s == pytest.approx(0.001)
    assert latency.mean_item_s == pytest.approx(0.002)


def test_tails_are_absent_below_their_samples() -> None:
    few = summarise([visit_with(n, [0.001] * 18) for n in range(3)], "variant")
    assert few is not None
    assert few.num_samples == 54
    assert few.p95 is None
    some = summarise([visit_with(n, [0.001] * 99) for n in range(3)], "variant")
    assert some is not None
    assert some.num_samples == 297
    assert some.p95 is not None
    assert some.p99 is None
    enough = summarise([visit_with(n, [0.001] * 100) for n in range(3)], "variant")
    assert enough is not None
    assert enough.p99 is not None


def test_a_tail_has_an_interval_around_it() -> None:
    rng = np.random.default_rng(0)
    visits = [visit_with(n, list(rng.exponential(0.001, 1000))) for n in range(10)]
    latency = summarise(visits, "variant")
    assert latency is not None
    tail = latency.p99
    assert tail is not None
    assert tail.high_s is not None
    # The 99th percentile of an exponential is log(100) means.
    assert tail.low_s < 0.001 * np.log(100) < tail.high_s
    assert tail.low_s < tail.value_s < tail.high_s


def test_a_tail_beyond_the_samples_is_not_bounded_above() -> None:
    rng = np.random.default_rng(0)
    visits = [visit_with(n, list(rng.exponential(0.001, 100))) for n in range(3)]
    latency = summarise(visits, "variant")
    assert latency is not None
    assert latency.p99 is not None
    assert latency.p99.high_s is None


def test_slow_calls_in_one_visit_widen_the_tails_interval() -> None:
    """300 slow calls in one visit tell less about the tail than 30 in each of ten."""
    together = [visit_with(n, [0.001] * 900 + [0.01 if n == 0 else 0.001] * 100) for n in range(10)]
    spread = [visit_with(n, [0.001] * 990 + [0.01] * 10) for n in range(10)]
    first, second = summarise(together, "variant"), summarise(spread, "variant")
    assert first is not None
    assert second is not None
    assert first.p99 is not None
    assert second.p95 is not None
    assert first.p99.high_s is None
    assert second.p95.high_s == pytest.approx(0.001)


def test_launches_are_not_latencies() -> None:
    """P23: calls that return at once make no median and no tail; the round's mean stands."""
    launched = replace(made_round(0, calls_s=[0.00001] * 400), wall_s=0.4)
    pair = Pair(baseline=launched, variant=launched, baseline_first=True)
    visits = [Visit(number=n, started_s=0.0, pairs=(pair,)) for n in range(4)]
    latency = summarise(visits, "variant")
    assert latency is not None
    assert latency.median_s == pytest.approx(0.001)
    assert latency.p99 is None
    assert latency.num_samples == 0


@pytest.mark.parametrize(
    ("cost_s", "before_s", "after_s", "expected"),
    [
        (10.0, 0.003, 0.001, 5000),
        (1.0, 0.0013, 0.001, 3334),
        (0.0, 0.003, 0.001, 0),
        (-2.0, 0.003, 0.001, 0),
        (10.0, 0.001, 0.001, None),
        (10.0, 0.001, 0.002, None),
        (-1.0, 0.001, 0.002, None),
    ],
)
def test_break_even(cost_s: float, before_s: float, after_s: float, expected: int | None) -> None:
    """P40: how many calls pay for a compile; None where none ever do."""
    assert break_even_calls(cost_s, before_s, after_s) == expected
