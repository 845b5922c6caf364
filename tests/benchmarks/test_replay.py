"""Records decided again."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.replay import Noise, noise_of, replay
from tests.measure.made_visits import visits_of

QUIET = [0.004, -0.004, 0.002, -0.002, 0.003, -0.003]


def test_a_clear_effect_is_decided_at_the_first_look_by_both() -> None:
    record = visits_of([0.3 + value for value in QUIET * 3])
    found = replay(record, visits_of(QUIET * 3), noise=Noise(visit_sd=0.003, offset_sd=0.01))
    assert (found.verdict, found.num_visits, found.num_rounds) == ("faster", 6, 36)
    assert (found.known_verdict, found.known_num_visits) == ("faster", 6)
    assert found.rounds_ratio == pytest.approx(1.0)


def test_control_visits_of_later_are_not_seen() -> None:
    record = visits_of([0.3 + value for value in QUIET * 3])
    late = visits_of([0.0] * 10 + QUIET * 3)[10:]
    found = replay(record, late)
    # The sixth control visit starts with the sixteenth of the record.
    assert found.num_visits == 17


def test_an_undecided_record_needs_no_number() -> None:
    found = replay(visits_of(QUIET * 2), visits_of(QUIET * 2))
    assert found.verdict == "undecided"
    assert found.num_visits is None
    assert found.rounds_ratio is None


def test_a_record_below_the_first_look_is_undecided() -> None:
    assert replay(visits_of([0.5] * 5), visits_of(QUIET)).num_visits is None


def test_the_noise_of_a_record_is_found_again() -> None:
    rng = np.random.default_rng(0)
    noise = noise_of(visits_of(rng.normal(0.1, 0.03, 100)), visits_of(rng.normal(0, 0.03, 100)))
    assert noise.visit_sd == pytest.approx(0.03, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("slowdown", [1.05, 1.1, 1.3])
@pytest.mark.parametrize("visit_sd", [0.015, 0.03])
def test_not_knowing_the_noise_costs_at_most_twice_the_rounds(
    slowdown: float, visit_sd: float
) -> None:
    rng = np.random.default_rng(4)
    needed = known = 0
    for _ in range(25):
        offsets = np.repeat(rng.normal(0, 0.01, (2, 17)), 10, axis=1)
        noise = rng.normal(0, visit_sd, (2, 170))
        record = visits_of(-np.log(slowdown) + noise[0] + offsets[0], visits_per_process=10)
        own = visits_of(noise[1] + offsets[1], visits_per_process=10)
        found = replay(record, own, noise=Noise(visit_sd=visit_sd, offset_sd=0.01))
        needed += found.num_rounds or 0
        known += found.known_num_rounds or 0
    assert known > 0
    assert needed <= 2 * known
