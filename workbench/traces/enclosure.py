"""Which event of a thread happened inside which: parents, depth and self time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.traces.trace import ABSENT, Trace
from workbench.traces.vocabulary import CODE_OF, Category

# What a thread of the host does. Spans, synchronisations and overhead lie across others.
HOST: tuple[Category, ...] = ("operator", "annotation", "python", "runtime", "driver")


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
    # Threads one after the other on a single line of time.
    lanes = trace.lane[rows][order].astype(np.int64)
    origin, span = starts.min(), ends.max() - starts.min() + 1
    offset = lanes * span - origin
    begin, finish = starts[order] + offset, ends[order] + offset
    durations = ends - starts
    children_ns = np.zeros(len(rows), dtype=np.int64)
    left = np.arange(len(rows))
    num_clipped = depth = 0
    while len(left):
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
    lengths = (finish - begin)[position]
    np.add.at(children_ns, parents[has_parent], lengths[has_parent])
    self_ns = np.maximum(np.minimum(durations, lengths) - children_ns, 0)
    parents[has_parent] = rows[parents[has_parent]]
    return Enclosure(
        rows=rows, parent=parents, depth=depths, self_ns=self_ns, num_clipped=num_clipped
    )


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
