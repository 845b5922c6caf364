"""What two processes of one recipe may differ by."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.measure.location import student_quantile
from workbench.measure.offsets import (
    PRIOR_DEGREES,
    PRIOR_SD,
    Offsets,
    Process,
    estimate_offsets,
    num_process_pairs,
)

NONE = np.array([])


def spread_over(num_pairs: int, num_visits: int) -> list[Process]:
    return [(pair, pair) for pair in range(num_pairs) for _ in range(num_visits)]


def test_without_any_control_the_prior_stands() -> None:
    found = estimate_offsets(NONE, [], NONE, [])
    assert found == Offsets(sd=PRIOR_SD, degrees=PRIOR_DEGREES)


def test_offsets_without_noise_are_pooled_with_the_prior() -> None:
    control = np.repeat([0.02, -0.02, 0.01], 4)
    found = estimate_offsets(control, spread_over(3, 4), NONE, [])
    expected = (3 * 0.01**2 + 0.02**2 + 0.02**2 + 0.01**2) / 6
    assert found.degrees == 6
    assert found.sd == pytest.approx(expected**0.5)


def test_noise_of_the_visits_is_not_taken_for_an_offset() -> None:
    rng = np.random.default_rng(0)
    control = rng.normal(0, 0.05, 200)
    found = estimate_offsets(control, spread_over(20, 10), NONE, [])
    # Each group's mean is off by 1.6 % from noise alone.
    assert found.sd < 0.009


def test_real_offsets_are_found_under_noise() -> None:
    rng = np.random.default_rng(0)
    control = np.repeat(rng.normal(0, 0.03, 20), 10) + rng.normal(0, 0.03, 200)
    found = estimate_offsets(control, spread_over(20, 10), NONE, [])
    assert found.sd == pytest.approx(0.028, rel=0.25)


def test_a_variants_own_processes_count_around_their_mean() -> None:
    values = np.repeat([0.50, 0.56], 4)
    found = estimate_offsets(NONE, [], values, spread_over(2, 4))
    assert found.degrees == PRIOR_DEGREES + 1
    assert found.sd == pytest.approx(((3 * 0.01**2 + 2 * 0.03**2) / 4) ** 0.5)


def test_a_group_of_two_visits_is_no_witness() -> None:
    found = estimate_offsets(np.array([0.5, 0.5]), [(1, 1), (1, 1)], NONE, [])
    assert found.degrees == PRIOR_DEGREES


def test_the_bound_narrows_with_the_pairs_of_processes() -> None:
    offsets = Offsets(sd=0.01, degrees=9)
    assert offsets.bound(1) == pytest.approx(student_quantile(0.975, 9) * 0.01)
    assert offsets.bound(4) == pytest.approx(offsets.bound(1) / 2)


def test_a_side_that_never_restarts_keeps_half_of_the_offset() -> None:
    assert num_process_pairs([(0, 0)] * 8) == pytest.approx(1)
    assert num_process_pairs(spread_over(4, 5)) == pytest.approx(4)
    one_sided = [(0, variant) for variant in range(1000)]
    assert num_process_pairs(one_sided) == pytest.approx(2, rel=0.01)


def test_uneven_shares_amount_to_fewer_processes() -> None:
    assert num_process_pairs([(0, 0)] * 9 + [(1, 1)]) == pytest.approx(100 / 82)
