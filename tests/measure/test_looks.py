"""The planned looks keep their promise, on Gaussian visits and on others."""

from __future__ import annotations

import pytest

from workbench.measure import looks
from workbench.measure.looks import LOOKS, NUM_VISITS, derive, last_look, miss_rate, next_look


def test_there_is_no_look_before_six_visits() -> None:
    assert last_look(5) is None
    first = last_look(6)
    assert first is not None
    assert first.num_visits == 6


def test_between_two_looks_the_last_one_holds() -> None:
    assert last_look(16) == last_look(13)
    assert last_look(10_000) == LOOKS[-1]


def test_the_next_look_is_named() -> None:
    look = next_look(6)
    assert look is not None
    assert look.num_visits == 8
    assert next_look(400) is None


@pytest.mark.slow
def test_the_table_is_the_one_that_is_derived() -> None:
    assert tuple(look.num_visits for look in LOOKS) == NUM_VISITS
    again = derive(20_000, seed=7)
    for look, other in zip(LOOKS, again, strict=True):
        assert look.critical == pytest.approx(other.critical, rel=0.05)


@pytest.mark.slow
def test_who_knows_the_noise_needs_the_same_at_every_look() -> None:
    known = derive(20_000, seed=7, known_error=True)
    assert all(look.critical == pytest.approx(2.76, rel=0.02) for look in known)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "at_most"),
    [
        (looks.gaussian, 0.055),
        (looks.heavy_tailed, 0.055),
        (looks.disturbed, 0.055),
        (looks.in_bursts, 0.055),
        (looks.in_two_states, 0.09),
        (looks.correlated, 0.10),
    ],
)
def test_any_look_misses_as_rarely_as_is_said(draw: looks.Draw, at_most: float) -> None:
    assert miss_rate(draw, 5_000, seed=3) <= at_most
