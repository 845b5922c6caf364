from __future__ import annotations

import dataclasses
import math

import pytest

from tests.study.filled import visits
from workbench.core.decision import Decision
from workbench.core.errors import StudyError
from workbench.core.measurement import ColdStart, Quality
from workbench.core.recipe import Recipe
from workbench.core.variant import RunOptions
from workbench.study.choice import best
from workbench.study.comparison import compare, one_off_s
from workbench.study.indirect import against
from workbench.study.store import Store
from workbench.study.table import cell


def test_rows_are_ordered_by_time_per_item_and_failures_stand_last(full: Store) -> None:
    comparison = compare(full)
    ratios = [r.decision.ratio for r in comparison.rows if r.decision and r.decision.ratio]
    assert ratios == sorted(ratios, reverse=True)
    states = [row.variant.state for row in comparison.rows]
    assert states[-4:] == ["failed", "failed", "stopped-early", "failed"]
    assert all(row.variant.role == "variant" for row in comparison.rows)


def test_the_ratio_is_of_time_per_item_whatever_the_batch(full: Store) -> None:
    row = compare(full).row(8)
    assert row.decision is not None
    assert row.decision.ratio == pytest.approx(2.6, rel=0.05)
    assert row.call is not None
    assert row.item_s is not None
    assert row.call.median_s.value == pytest.approx(8 * row.item_s.value, rel=0.1)


def test_a_row_of_another_batch_never_gets_a_bare_ratio(full: Store) -> None:
    comparison = compare(full)
    for number, batch in ((7, 2), (8, 8), (9, 32)):
        text = comparison.row(number).verdict_text
        assert "per item" in text
        assert text.endswith(f"batch {batch} vs 1")
    assert "batch" not in comparison.row(2).verdict_text


def test_a_verdict_before_its_time_is_called_provisional(full: Store) -> None:
    row = compare(full).row(10)
    assert row.verdict_text.endswith("provisional")
    assert cell(row, "verdict").mark == "~"
    full.clear_visits(0)
    without_control = compare(full)
    for row in without_control.rows:
        if row.decision and row.decision.ratio:
            assert row.decision.provisional
            assert row.verdict_text.count("provisional") == 1
            assert not row.verdict_text.startswith("undecided")
    assert without_control.floor is None or without_control.floor > 0


def test_what_the_control_shows_after_a_row_ended_leaves_its_verdict_alone(full: Store) -> None:
    """On another day processes of the baseline may be far apart; no row was measured then."""
    before = compare(full).row(2)
    assert before.decision is not None
    assert before.decision.verdict == "faster"
    for visit in visits(2.0, num_visits=12):
        started_s = visit.started_s + 86_400
        late = {"started_s": started_s, "baseline_process": 71, "variant_process": 72}
        full.add_visit(0, dataclasses.replace(visit, number=100 + visit.number, **late))
    after = compare(full)
    assert after.row(2).decision == before.decision
    # A row without enough of a control in its time takes what there is.
    full.clear_visits(0)
    for visit in visits(1.0, num_visits=12):
        full.add_visit(0, dataclasses.replace(visit, started_s=visit.started_s + 86_400))
    late_control = compare(full).row(2).decision
    assert late_control is not None
    assert not late_control.provisional


def test_slower_is_said_plainly(full: Store) -> None:
    """P11: as measured, with its interval, and in a word."""
    row = compare(full).row(5)
    assert row.decision is not None
    assert row.decision.verdict == "slower"
    assert row.verdict_text.startswith("1.8")
    assert "slower (" in row.verdict_text
    assert row.break_even == "never"


def test_break_even_weighs_the_cold_compile(full: Store) -> None:
    """P40: seconds that are paid once, over what a call gains."""
    comparison = compare(full)
    row = comparison.row(2)
    assert row.decision is not None
    assert row.decision.ratio is not None
    assert comparison.baseline.item_s is not None
    gain_s = comparison.baseline.item_s.value * (1 - 1 / row.decision.ratio)
    paid_s = (6.1 + 0.2 + 0.01) - (0.4 + 0.9 + 0.03)
    assert row.break_even_calls == math.ceil(paid_s / gain_s)
    # Undecided: nothing is won back for sure.
    assert comparison.row(4).break_even_calls is None


def test_a_compiling_first_call_is_counted_once() -> None:
    cold = ColdStart(build_s=1.0, compile_cold_s=30.0, load_s=2.0, first_call_s=3.0)
    assert one_off_s(cold) == pytest.approx(33.0)
    assert one_off_s(ColdStart(build_s=1.0, first_call_s=3.0)) == pytest.approx(4.0)
    assert one_off_s(ColdStart()) is None
    assert one_off_s(None) is None


def test_the_best_row_is_faster_decided_kept_and_as_asked(full: Store) -> None:
    choice = best(compare(full))
    assert choice.row is not None
    assert choice.row.number == 9


def test_of_the_goal_latency_a_larger_batch_does_not_lead(full: Store) -> None:
    comparison = compare(full, goal="latency")
    choice = best(comparison)
    assert choice.row is not None
    assert choice.row.number == 3
    calls = [r.call.median_s.value for r in comparison.rows if r.is_ranked and r.call]
    assert calls == sorted(calls)


def test_throughput_is_sought_under_a_limit_of_latency(full: Store) -> None:
    choice = best(compare(full, goal="throughput", latency_limit_s=0.02))
    assert choice.row is not None
    assert choice.row.number == 8, "batch 32 takes 42 ms a call"


def _only_rows_whose_quality_is(store: Store, status: str, value: float) -> None:
    for row in store.variants():
        if row.role == "variant" and row.quality and row.state == "done":
            quality = dataclasses.replace(row.quality, status=status, value=value)
            store.update(row.number, quality=quality)


def test_where_no_row_met_the_target_the_best_value_is_named(full: Store) -> None:
    """P69: "None met it; best 96.5 %"."""
    _only_rows_whose_quality_is(full, "lost", 0.958)
    quality = full.variant(3).quality
    assert quality is not None
    full.update(3, quality=dataclasses.replace(quality, value=0.965))
    choice = best(compare(full))
    assert choice.row is None
    assert choice.nearest is not None
    assert choice.nearest.number == 3
    assert choice.text.startswith("None met it; best 96.5 % top-1 agreement, of variant 3")


@pytest.mark.parametrize("status", ["unknown", "undecided", "lost"])
def test_a_row_of_unproven_quality_cannot_lead(full: Store, status: str) -> None:
    _only_rows_whose_quality_is(full, status, 0.99)
    assert best(compare(full)).row is None


def test_a_row_that_did_not_do_what_was_asked_cannot_lead(full: Store) -> None:
    """P12: not labelled int8 where nothing was quantized."""
    for row in full.variants():
        if row.evidence is not None and row.role == "variant":
            changed = dataclasses.replace(row.evidence, unmet=("int8: 0 of 4 layers",), labels=())
            full.update(row.number, evidence=changed)
    comparison = compare(full)
    assert best(comparison).row is None
    made = cell(comparison.row(3), "ran")
    assert made.text == "not as asked: int8: 0 of 4 layers"
    assert made.mark == "⚠"


def test_a_row_that_is_not_finite_is_not_ranked(full: Store) -> None:
    """P05."""
    full.update(3, quality=Quality(status="not_finite", metric="finite", value=0.5))
    comparison = compare(full)
    assert not comparison.row(3).is_ranked
    assert best(comparison).row is not comparison.row(3)
    assert cell(comparison.row(3), "quality").marked == "✕ not finite"


def test_no_rows_is_a_sentence(empty: Store) -> None:
    with pytest.raises(StudyError, match="no variant 1"):
        compare(empty)
    empty.add_variant(Recipe(), "baseline", RunOptions())
    choice = best(compare(empty))
    assert choice.row is None
    assert choice.text == "None met it; nothing has been measured yet."


def test_an_unknown_goal_and_an_unknown_baseline_are_named(full: Store) -> None:
    with pytest.raises(StudyError, match="time-per-item, latency, throughput"):
        compare(full, goal="fastest")  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="no variant 99"):
        compare(full, baseline=99)


def test_energy_that_was_not_read_is_never_zero(full: Store) -> None:
    """P76."""
    row = compare(full).row(2)
    made = cell(row, "energy")
    assert made.text == "unavailable"
    assert made.detail == "this machine has no RAPL counter"


def test_another_baseline_is_reached_through_the_common_one(full: Store) -> None:
    comparison = compare(full, baseline=2)
    decision = comparison.row(3).decision
    assert decision is not None
    assert decision.ratio == pytest.approx(2.35 / 1.41, rel=0.03)
    assert decision.verdict == "faster"
    first = comparison.row(1).decision
    assert first is not None
    assert first.verdict == "slower"
    assert first.ratio == pytest.approx(1 / 1.41, rel=0.03)
    assert comparison.row(10).decision is not None


def _decided(ratio: float, half: float) -> Decision:
    return Decision(
        verdict="undecided",
        provisional=False,
        num_visits=12,
        ratio=ratio,
        low=ratio * math.exp(-half),
        high=ratio * math.exp(half),
        floor=0.01,
    )


def test_an_indirect_interval_is_as_wide_as_both_together() -> None:
    found = against(_decided(2.0, 0.02), _decided(1.5, 0.03), is_root=False, threshold=0.02)
    assert found is not None
    assert found.ratio == pytest.approx(2.0 / 1.5)
    assert found.low == pytest.approx(2.0 / 1.5 * math.exp(-0.05))
    assert found.high == pytest.approx(2.0 / 1.5 * math.exp(0.05))
    assert found.verdict == "faster"
    near = against(_decided(1.02, 0.002), _decided(1.0, 0.002), is_root=False, threshold=0.02)
    assert near is not None
    assert near.verdict == "undecided", "the control's floor counts for both rows"
    assert against(_decided(1.0, 0.1), None, is_root=False, threshold=0.02) is None
