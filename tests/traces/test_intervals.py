"""What spans of time cover together."""

from __future__ import annotations

import numpy as np

from tests.traces.oracle import busy
from workbench.traces.intervals import covered, merged, shared, without


def test_spans_that_touch_or_overlap_become_one() -> None:
    starts, ends = merged(np.array([5, 0, 2, 9, 12]), np.array([7, 2, 6, 9, 13]))
    assert starts.tolist() == [0, 12]
    assert ends.tolist() == [7, 13]


def test_a_long_span_hides_the_short_ones_inside() -> None:
    assert covered(np.array([0, 1, 3]), np.array([10, 2, 4])) == 10


def test_any_spans_cover_what_a_loop_says() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        starts = rng.integers(0, 200, 30)
        ends = starts + rng.integers(0, 12, 30)
        assert covered(starts, ends) == busy(list(zip(starts, ends, strict=True)))


def test_what_two_kinds_share() -> None:
    assert shared(np.array([0, 10]), np.array([5, 15]), np.array([4]), np.array([11])) == 2


def test_no_spans_cover_nothing() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert covered(none, none) == shared(none, none, none, none) == 0


def test_what_others_do_not_cover_is_left() -> None:
    spans = np.array([0, 20, 40]), np.array([10, 30, 50])
    others = np.array([5, 8, 22, 45]), np.array([9, 12, 24, 60])
    starts, ends = without(*spans, *others)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [
        (0, 5), (20, 22), (24, 30), (40, 45),
    ]  # fmt: skip
    none = np.array([], dtype=np.int64)
    assert [part.tolist() for part in without(*spans, none, none)] == [[0, 20, 40], [10, 30, 50]]
    assert without(none, none, *others)[0].tolist() == []
