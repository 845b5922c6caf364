"""Trials: what is kept of visits, which batch comes next, what is decided again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import truth
from benchmarks.command import append_samples, read_samples
from benchmarks.oracle import pooled_noise, rounds_ratios, visits_again
from benchmarks.trials import STEP, Control, RawVisit, raw_visits, trials_of, true_ratio
from benchmarks.truth import Sample, next_batch
from benchmarks.truth_claims import process_noise, round_noise, visit_noise
from tests.benchmarks import made
from workbench.core.measurement import Pair, Round, Visit
from workbench.measure.verdict import visit_log_ratio, visit_mean_log_ratio


def test_a_record_gives_back_the_log_ratios_it_was_made_of():
    rng = np.random.default_rng(0)

    def round_(scale):
        calls = scale * rng.lognormal(0.0, 0.3, size=50)
        return Round(num_calls=50, num_items=100, wall_s=float(calls.sum()), calls_s=calls)

    pairs = tuple(
        Pair(baseline=round_(1.0), variant=round_(1.2), baseline_first=True) for _ in range(6)
    )
    visit = Visit(
        number=1, started_s=5.0, pairs=pairs, host_load=0.25, baseline_process=3, variant_process=4
    )
    (raw,) = raw_visits([visit])
    (again,) = visits_again([raw])
    assert visit_log_ratio(again) == pytest.approx(visit_log_ratio(visit), abs=STEP)
    assert visit_mean_log_ratio(again) == pytest.approx(visit_mean_log_ratio(visit), abs=STEP)
    assert (again.baseline_process, again.variant_process) == (3, 4)
    assert again.started_s == 5.0
    assert raw.host_load == 0.25
    wall_s = sum(p.baseline.wall_s + p.variant.wall_s for p in pairs)
    assert raw.own_s == pytest.approx(wall_s, abs=1e-6)


@pytest.mark.parametrize(("typical", "mean"), [(0.0, 0.0), (-0.3, 0.1), (0.2, -0.4), (0.1, 0.1)])
def test_typical_and_mean_may_disagree_in_a_record(typical, mean):
    raw = RawVisit(
        started_s=0.0,
        own_s=1.0,
        typical=(round(typical / STEP),),
        mean=(round(mean / STEP),),
        processes=(1, 2),
    )
    (visit,) = visits_again([raw])
    assert visit_log_ratio(visit) == pytest.approx(typical, abs=1e-9)
    assert visit_mean_log_ratio(visit) == pytest.approx(mean, abs=1e-9)


def test_samples_come_back_from_the_file_they_were_appended_to(tmp_path):
    path = tmp_path / "truth.jsonl"
    samples = made.truth_samples()[:3]
    append_samples(path, samples[:1])
    append_samples(path, samples[1:])
    assert read_samples(path, Sample) == samples


def test_a_trial_of_injected_work_is_false_where_it_says_same():
    assert made.trial(0, "busy", 0.05, verdict="same").is_false
    assert made.trial(0, "busy", 0.05, verdict_at_end="faster").is_false
    assert not made.trial(0, "busy", 0.05, verdict="undecided").is_false
    assert not made.trial(0, "busy", 0.0, verdict=None, verdict_at_end=None).is_false


def test_a_verdict_that_did_not_last_is_no_decision():
    assert made.trial(0, "busy", 0.3).decides_within(15.0)
    assert not made.trial(0, "busy", 0.3, verdict="undecided").decides_within(15.0)
    assert not made.trial(0, "busy", 0.3).decides_within(5.0)


def test_the_true_ratio_is_the_share_of_passes():
    assert true_ratio(0.05) == pytest.approx(20 / 21)
    assert true_ratio(0.0) == 1.0


def test_the_batch_that_is_furthest_behind_comes_next():
    samples: list[Sample] = []
    seen = []
    while (batch := next_batch(samples, truth.STATES, truth.FULL)) is not None:
        seen.append(batch)
        samples += [
            made.trial(0, batch.state, injected, setup=batch.setup, visits=())
            for injected in batch.injected
        ]
    for state in truth.STATES:
        assert len(trials_of(samples, state, 0.0)) == 100
        for injected in truth.INJECTED:
            assert len(trials_of(samples, state, injected)) == 30
        counts = [
            sum(t.setup == s and t.injected == 0 for t in trials_of(samples, state))
            for s in truth.SETUPS
        ]
        assert max(counts) - min(counts) <= truth.SAME_ROWS
    # Neither state nor kind waits until another is complete.
    assert len({(batch.state, any(batch.injected)) for batch in seen[:4]}) == 4
    assert all(len(batch.injected) <= truth.SAME_ROWS for batch in seen)


def test_only_missing_trials_are_run_again():
    samples = [s for s in made.truth_samples() if isinstance(s, truth.Trial)]
    assert next_batch(samples, truth.STATES, truth.FULL) is None
    lost = next(s for s in samples if s.injected == 0.1 and s.state == "busy")
    samples.remove(lost)
    batch = next_batch(samples, truth.STATES, truth.FULL)
    assert batch is not None
    assert (batch.state, batch.injected) == ("busy", (0.1,))
    assert next_batch(samples, ("as-is",), truth.FULL) is None


def _noisy(offset_sd: float, visit_sd: float, seed: int, injected: float = 0.0):
    rng = np.random.default_rng(seed)
    visits = []
    for process in range(10):
        offset = rng.normal(0.0, offset_sd)
        for index in range(4):
            middle = math.log(true_ratio(injected)) + offset + rng.normal(0.0, visit_sd)
            value = round(middle / STEP)
            visits.append(
                RawVisit(
                    started_s=float(4 * process + index),
                    own_s=0.6,
                    typical=(value,) * 6,
                    mean=(value,) * 6,
                    processes=(2 * process, 2 * process + 1),
                )
            )
    return tuple(visits)


def test_the_noise_of_visits_and_of_processes_is_told_apart():
    trials = [made.trial(0, "busy", 0.0, visits=_noisy(0.02, 0.01, seed)) for seed in range(40)]
    assert visit_noise(trials) == pytest.approx(0.01, rel=0.1)
    assert process_noise(trials) == pytest.approx(0.02, rel=0.15)
    assert process_noise(trials[:1]) is not None
    noise = pooled_noise(trials, [])
    assert noise is not None
    assert noise.visit_sd == pytest.approx(0.01, rel=0.15)
    assert noise.offset_sd == pytest.approx(0.02, rel=0.15)


def test_the_noise_of_a_round_is_a_pairs_over_the_root_of_two():
    rng = np.random.default_rng(0)
    visits = [tuple(round(v / STEP) for v in rng.normal(0.0, 0.03, size=6)) for _ in range(2000)]
    assert round_noise(visits) == pytest.approx(0.03 / math.sqrt(2), rel=0.05)
    assert round_noise([]) is None
    assert round_noise([(1,)]) is None


def test_a_decision_is_compared_with_one_that_knew_the_noise():
    trials = [
        made.trial(0, "busy", 0.1, batch="b", visits=_noisy(0.005, 0.02, seed, 0.1))
        for seed in range(5)
    ]
    control = Control(
        batch="b",
        code=made.CODE,
        state="busy",
        setup=trials[0].setup,
        visits=_noisy(0.005, 0.02, 9),
    )
    ratios = rounds_ratios([*trials, control])
    assert set(ratios) == {0.1}
    assert len(ratios[0.1]) == 5
    assert all(ratio >= 1 for ratio in ratios[0.1])
    assert rounds_ratios(trials) == {}


def test_a_row_that_waits_for_its_control_is_decided_when_that_has_shown_enough():
    """Seven visits, and a control whose sixth comes between the sixth and the seventh."""
    rng = np.random.default_rng(3)

    def visits(middle, times):
        values = [round((middle + rng.normal(0.0, 0.002)) / STEP) for _ in times]
        return tuple(
            RawVisit(
                started_s=time,
                own_s=0.6,
                typical=(value,) * 6,
                mean=(value,) * 6,
                processes=(10 * place // 20, 100 + 10 * place // 20),
            )
            for place, (time, value) in enumerate(zip(times, values, strict=True))
        )

    row = made.trial(0, "busy", 0.3, batch="b", visits=visits(math.log(true_ratio(0.3)), range(7)))
    same = made.trial(1, "busy", 0.0, batch="b", setup=row.setup, visits=visits(0.0, range(12)))
    control = Control(
        batch="b",
        code=made.CODE,
        state="busy",
        setup=row.setup,
        visits=visits(0.0, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]),
    )
    assert rounds_ratios([row, same, control])[0.3] == [1.0]
