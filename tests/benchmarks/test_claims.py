"""Claims: what holds, what does not, and what is absent."""

from __future__ import annotations

import math

import pytest

from benchmarks.claims import all_hold, at_least, at_most, binomial_upper, complete, not_held


def test_a_claim_holds_on_the_right_side_of_its_bound():
    assert at_most("a", 0.5, 0.5).holds
    assert not at_most("a", 0.51, 0.5).holds
    assert at_least("a", 0.5, 0.5).holds
    assert not at_least("a", 0.49, 0.5).holds


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_no_figure_never_holds(value):
    for claim in (at_most("a", value, 1.0), at_least("a", value, -1.0)):
        assert not claim.holds
        assert claim.value is None
        assert claim.note == "not measured"


def test_an_absent_claim_is_listed_and_does_not_hold():
    claims = complete([at_most("b", 0.0, 1.0)], ("a", "b"))
    assert [claim.name for claim in claims] == ["a", "b"]
    assert [claim.holds for claim in claims] == [False, True]
    assert not all_hold(claims)


def test_no_claim_at_all_does_not_hold():
    assert not all_hold([])


def test_a_claim_that_rests_on_too_little_keeps_its_figure():
    claim = not_held(at_most("a", 0.1, 1.0, note="1 of 10"), "too few")
    assert not claim.holds
    assert claim.value == 0.1
    assert claim.note == "too few; 1 of 10"


def test_four_false_verdicts_of_two_hundred_are_the_most_that_five_percent_allows():
    # Exact binomial bounds, as tables of Clopper and Pearson have them.
    assert binomial_upper(4, 200) == pytest.approx(0.04518, abs=5e-5)
    assert binomial_upper(5, 200) == pytest.approx(0.05184, abs=5e-5)
    assert binomial_upper(0, 59) == pytest.approx(1 - 0.05 ** (1 / 59), abs=1e-9)
    assert binomial_upper(3, 3) == 1.0
    assert binomial_upper(0, 0) is None
