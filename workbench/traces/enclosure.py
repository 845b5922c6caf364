"""Which event of a thread happened inside which: parents, depth and self time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.traces.trace import ABSENT, Trace
from workbench.traces.vocabulary import CODE_OF, Category

# What a thread of the host does. Spans, synchronisations and overhead lie across others.
HOST: tuple[Category, ...] = ("operator", "annotation", "python", "runtime", "driver")


# Levels that are nested a level at a time; what is deeper (a recursion of Python) one by one.
_DEEPEST = 300
_LONGEST_LINE = 2.0**62


@dataclass(frozen=True, kw_only=True)
class Enclosure:
    """How the host's events nest. `rows` are theirs; the other columns have one entry a row.

    `parent` is the row of the trace that encloses it most closely on its thread, or -1; `depth`
    counts those around it. `self_ns` is its time without its children's. An event that outlasts
    its parent, as clocks make some do, counts only until the parent's end: `num_clipped` did.
    """

    rows: NDArray[np.intp]
    parent: NDArray[np.intp]
    depth: NDArray[np.int32]
    self_ns: NDArray[np.int64]
    num_clipped: int


def enclose(trace: Trace, *categories: Category) -> Enclosure:
    """Nest events thread by thread, of these categories (the host's unless given).

    An event begins inside another where it starts before the other's end; of two that start at
    once the longer is outside, and of two alike the one that the file names first.
    """
    rows = trace.rows(*(categories or HOST))
    parents = np.full(len(rows), ABSENT, dtype=np.intp)
    depths = np.zeros(len(rows), dtype=np.int32)
    if len(rows) == 0:
        none = np.zeros(0, dtype=np.int64)
        return Enclosure(rows=rows, parent=parents, depth=depths, self_ns=none, num_clipped=0)
    starts, ends = trace.start_ns[rows], trace.end_ns[rows]
    order = np.lexsort((-ends, starts, trace.lane[rows]))
    line = _Line(trace.lane[rows][order], starts[order], ends[order])
    begin, finish = line.begin, line.finish
    durations = ends - starts
    children_ns = np.zeros(len(rows), dtype=np.int64)
    left = np.arange(len(rows))
    num_clipped = depth = 0
    while len(left):
        if depth == _DEEPEST:
            num_clipped += _nest_one_by_one(left, order, begin, finish, parents, depths)
            break
        outer = _outermost(begin[left], finish[left])
        depths[order[left[outer]]] = depth
        around = left[np.maximum.accumulate(np.where(outer, np.arange(len(left)), 0))]
        inner = ~outer
        inside, around, left = left[inner], around[inner], left[inner]
        parents[order[inside]] = order[around]
        too_long = finish[inside] > finish[around]
        num_clipped += int(too_long.sum())
        finish[inside] = np.minimum(finish[inside], finish[around])
        depth += 1
    # All deeper levels have overwritten the parent that an outer one gave.
    has_parent = parents != ABSENT
    position = np.empty(len(rows), dtype=np.intp)
    position[order] = np.arange(len(rows))
    lengths = line.lengths()[position]
    np.add.at(children_ns, parents[has_parent], lengths[has_parent])
    self_ns = np.maximum(np.minimum(durations, lengths) - children_ns, 0)
    parents[has_parent] = rows[parents[has_parent]]
    return Enclosure(
        rows=rows, parent=parents, depth=depths, self_ns=self_ns, num_clipped=num_clipped
    )


class _Line:
    """Threads one after the other on a single line, so that all are nested at once.

    Positions are nanoseconds; where times lie too far apart for that (another epoch on some
    threads), places in the order of all times.
    """

    def __init__(
        self, lanes: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        firsts = np.flatnonzero(np.concatenate(([True], lanes[1:] != lanes[:-1])))
        sizes = np.diff(np.append(firsts, len(lanes)))
        origins = starts[firsts]
        lengths = np.maximum.reduceat(ends, firsts) - origins + 1
        self._times: NDArray[np.int64] | None = None
        if float(lengths.astype(np.float64).sum()) >= _LONGEST_LINE:
            self._times = times = np.unique(np.concatenate((starts, ends)))
            starts, ends = np.searchsorted(times, starts), np.searchsorted(times, ends)
            origins = np.zeros(len(firsts), dtype=np.int64)
            lengths = np.full(len(firsts), len(times))
        offsets = np.concatenate(([0], np.cumsum(lengths[:-1])))
        moved = np.repeat(offsets - origins, sizes)
        self.begin, self.finish = starts + moved, ends + moved

    def lengths(self) -> NDArray[np.int64]:
        """Nanoseconds of each span, with the ends that they have now."""
        if self._times is None:
            return self.finish - self.begin
        times, num = self._times, len(self._times)
        found: NDArray[np.int64] = times[self.finish % num] - times[self.begin % num]
        return found


def _nest_one_by_one(
    left: NDArray[np.intp],
    order: NDArray[np.intp],
    begin: NDArray[np.int64],
    finish: NDArray[np.int64],
    parents: NDArray[np.intp],
    depths: NDArray[np.int32],
) -> int:
    """Nest what lies deeper than levels are worth a pass each; returns how many are clipped."""
    stack: list[int] = []
    num_clipped = 0
    for one in left.tolist():
        outer = int(parents[order[one]])
        while stack and finish[stack[-1]] <= begin[one]:
            stack.pop()
        if stack:
            outer = int(order[stack[-1]])
            if finish[one] > finish[stack[-1]]:
                finish[one] = finish[stack[-1]]
                num_clipped += 1
        parents[order[one]] = outer
        depths[order[one]] = depths[outer] + 1
        stack.append(one)
    return num_clipped


def _outermost(begin: NDArray[np.int64], finish: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of spans in order of their begin lie in no other: each after the last one's end."""
    following = np.searchsorted(begin, finish)
    after = np.maximum(following, np.arange(1, len(begin) + 1)).tolist()
    chosen, place = [], 0
    while place < len(after):
        chosen.append(place)
        place = after[place]
    outer = np.zeros(len(begin), dtype=np.bool_)
    outer[chosen] = True
    return outer


def nearest(
    trace: Trace, enclosure: Enclosure, rows: NDArray[np.intp], category: Category
) -> NDArray[np.intp]:
    """For each of these rows of the host the closest event of a category around it, or -1.

    Itself where it is of that category.
    """
    parent = np.full(len(trace), ABSENT, dtype=np.intp)
    parent[enclosure.rows] = enclosure.parent
    found = np.array(rows, dtype=np.intp)
    wanted = CODE_OF[category]
    while True:
        climbing = np.flatnonzero(found != ABSENT)
        climbing = climbing[trace.category[found[climbing]] != wanted]
        if len(climbing) == 0:
            return found
        found[climbing] = parent[found[climbing]]
