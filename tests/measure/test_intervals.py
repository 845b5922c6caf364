"""Intervals against published examples and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.measure.intervals import (
    clopper_pearson,
    effective_number,
    mean_interval,
    median_interval,
    paired_difference,
    rows_for_wilson,
    share_interval,
    wilson,
)


def test_wilson_is_the_published_example() -> None:
    """81 of 263: R. G. Newcombe, Statistics in Medicine 17 (1998) 857-872, table I."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_clopper_pearson_is_the_published_example() -> None:
    assert clopper_pearson(81, 263) == pytest.approx((0.2527, 0.3676), abs=5e-5)
    assert clopper_pearson(0, 10) == pytest.approx((0.0, 1 - 0.025**0.1))


def test_agreement_within_one_per_cent_needs_381_rows() -> None:
    assert rows_for_wilson(0.01) == 381
    assert wilson(381, 381)[0] >= 0.99
    assert wilson(380, 380)[0] < 0.99


def test_a_paired_difference_is_the_published_example() -> None:
    """Method 10 on 36, 12, 2, 0 gives 0.0569 to 0.3404: Newcombe's table of pairs."""
    assert paired_difference(36, 2, 12, 0) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-5)


def test_a_paired_difference_turns_round_with_its_sides() -> None:
    value, low, high = paired_difference(20, 2, 12, 16)
    assert paired_difference(20, 12, 2, 16) == pytest.approx((-value, -high, -low))


def test_pairs_that_move_together_are_known_better_than_two_samples() -> None:
    together = paired_difference(90, 0, 2, 8)
    apart = paired_difference(46, 44, 46, 8)
    assert together[2] - together[1] < apart[2] - apart[1]


def test_rows_that_all_agree_count_as_one_trial_each() -> None:
    assert share_interval(np.ones(381)) == pytest.approx((1.0, *wilson(381, 381)))


def test_tokens_of_one_row_are_not_independent() -> None:
    """Half of the rows right and half wrong in every token: as many trials as rows."""
    extreme = np.array([1.0, 0.0] * 50)
    assert effective_number(extreme) == pytest.approx(100, rel=0.02)
    # The same share, spread evenly within rows, amounts to more.
    assert effective_number(np.array([0.45, 0.55] * 50)) > 5_000


def test_a_mean_has_students_interval() -> None:
    values = np.array([1.0, 2, 3, 4, 5])
    half = 2.7764 * values.std(ddof=1) / 5**0.5
    assert mean_interval(values) == pytest.approx((3, 3 - half, 3 + half), abs=1e-3)


@pytest.mark.parametrize(("num", "expected"), [(6, (1, 6)), (9, (2, 8)), (20, (6, 15))])
def test_a_median_lies_between_order_statistics(num: int, expected: tuple[int, int]) -> None:
    """The classical table: from 6 on the extremes, from 9 the second, at 20 the sixth."""
    assert median_interval(np.arange(1, num + 1)) == expected


def test_of_five_values_the_median_has_no_interval() -> None:
    assert median_interval([1, 2, 3, 4, 5]) is None
