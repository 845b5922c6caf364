"""The robust mean and the distributions, against values from tables and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.measure.location import (
    beta_cdf,
    beta_quantile,
    normal_quantile,
    num_cut,
    student_cdf,
    student_quantile,
    trimmed_error,
    trimmed_mean,
)


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [(0.975, 1, 12.7062), (0.975, 5, 2.5706), (0.995, 10, 3.1693), (0.95, 30, 1.6973)],
)
def test_students_quantiles_are_the_tables(
    probability: float, degrees: float, expected: float
) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(expected, abs=1e-4)


def test_student_of_many_degrees_is_normal() -> None:
    assert student_quantile(0.975, 1e6) == pytest.approx(normal_quantile(0.975), abs=1e-4)
    assert student_cdf(0.0, 7) == pytest.approx(0.5)


def test_the_beta_function_has_its_closed_forms() -> None:
    assert beta_cdf(0.3, 1, 1) == pytest.approx(0.3)
    assert beta_cdf(0.3, 1, 4) == pytest.approx(1 - 0.7**4)
    assert beta_cdf(0.9, 5, 1) == pytest.approx(0.9**5)
    assert beta_quantile(0.05, 1, 200) == pytest.approx(1 - 0.95 ** (1 / 200))
    # Symmetric, and large enough to need many terms of the fraction.
    assert beta_cdf(0.5, 4000, 4000) == pytest.approx(0.5)
    assert beta_cdf(0.0, 2, 2) == 0.0
    assert beta_cdf(1.0, 2, 2) == 1.0


def test_a_fifth_of_what_exceeds_five_is_cut() -> None:
    assert [num_cut(n) for n in (2, 6, 9, 10, 17, 100)] == [0, 0, 0, 1, 2, 19]


def test_one_wild_visit_in_ten_does_not_move_the_mean() -> None:
    values = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 1e9])
    assert trimmed_mean(values) == pytest.approx(np.mean([2, 3, 4, 5, 6, 7, 8, 9]))
    winsorised = np.array([2.0, 2, 3, 4, 5, 6, 7, 8, 9, 9])
    expected = winsorised.std(ddof=1) / (0.8 * 10**0.5)
    assert trimmed_error(values) == pytest.approx(expected)


def test_of_six_visits_none_is_cut() -> None:
    values = np.array([1.0, 2, 3, 4, 5, 9])
    assert trimmed_mean(values) == pytest.approx(4.0)
    assert trimmed_error(values) == pytest.approx(values.std(ddof=1) / 6**0.5)


def test_sequences_are_treated_one_by_one() -> None:
    values = np.random.default_rng(0).normal(size=(3, 20))
    assert trimmed_mean(values).tolist() == [float(trimmed_mean(row)) for row in values]
    assert trimmed_error(values).tolist() == [float(trimmed_error(row)) for row in values]
