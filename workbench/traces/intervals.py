"""Spans of time as arrays of starts and ends: what they cover together, and what they share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


def merged(starts: Times, ends: Times) -> tuple[Times, Times]:
    """The same time as spans that neither touch nor overlap, in order. Empty spans vanish."""
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    if len(starts) == 0:
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reach = np.maximum.accumulate(ends[order])
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return starts[opens], reach[closes]


def covered(starts: Times, ends: Times) -> int:
    """How long at least one of the spans lasts."""
    starts, ends = merged(starts, ends)
    return int((ends - starts).sum())


def shared(starts: Times, ends: Times, other_starts: Times, other_ends: Times) -> int:
    """How long spans of both kinds last at once."""
    both = covered(np.concatenate((starts, other_starts)), np.concatenate((ends, other_ends)))
    return covered(starts, ends) + covered(other_starts, other_ends) - both


def clipped(starts: Times, ends: Times, low: int, high: int) -> tuple[Times, Times]:
    """What of the spans lies between two moments."""
    starts, ends = np.maximum(starts, low), np.minimum(ends, high)
    kept = ends > starts
    return starts[kept], ends[kept]


def gaps(starts: Times, ends: Times, low: int, high: int) -> tuple[Times, Times]:
    """What of the time between two moments no span covers."""
    starts, ends = merged(*clipped(starts, ends, low, high))
    begin = np.concatenate(([low], ends))
    finish = np.concatenate((starts, [high]))
    kept = finish > begin
    return begin[kept], finish[kept]


def without(
    starts: Times, ends: Times, other_starts: Times, other_ends: Times
) -> tuple[Times, Times]:
    """What of the spans no other covers. The spans neither touch nor overlap, and are in order."""
    begin, finish = merged(other_starts, other_ends)
    if len(begin) == 0 or len(starts) == 0:
        return starts, ends
    low, high = int(starts[0]), int(ends[-1])
    free_begin, free_finish = gaps(begin, finish, low, high)
    # Each span is cut at every other's edges; of the pieces those count that lie in a free part.
    edges = np.unique(np.concatenate((starts, ends, free_begin, free_finish)))
    left, right = edges[:-1], edges[1:]
    kept = _covers(starts, ends, left) & _covers(free_begin, free_finish, left)
    return left[kept], right[kept]


def _covers(starts: Times, ends: Times, moments: Times) -> NDArray[np.bool_]:
    """Whether one of the spans, which are apart and in order, runs at each moment."""
    if len(starts) == 0:
        return np.zeros(len(moments), dtype=np.bool_)
    place = np.searchsorted(starts, moments, side="right") - 1
    return (place >= 0) & (ends[place] > moments)
