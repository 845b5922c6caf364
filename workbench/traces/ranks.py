"""Several ranks of one job: when each waited for the others.

A collective lasts on each rank from when that rank came to it until the last one has; what the
fastest passage took is the communication, the rest is waiting. Clocks of machines differ, so
ranks are put on one line of time by the ends of the collectives, which all of them share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import LoadError
from workbench.traces.kernels import kernel_class
from workbench.traces.numbers import whole_number
from workbench.traces.trace import Trace

# Clocks drift, and a collective lets its ranks go within microseconds.
_APART_NS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank: what its collectives took, and how much of that was waiting for peers.

    `offset_ns` is what its clock shows more than the first rank's; `late_ns` how long after the
    first to come it came to a collective, on average.
    """

    rank: int
    num_collectives: int
    total_ns: int
    waiting_ns: int
    offset_ns: int
    late_ns: float


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """All ranks, by number. `communication_ns` is what the collectives take without waiting."""

    rows: tuple[RankRow, ...]
    communication_ns: int

    @property
    def slowest(self) -> int:
        """The rank that the others wait for most: it waits least itself."""
        return min(self.rows, key=lambda row: (row.waiting_ns, row.rank)).rank


def rank_of(trace: Trace) -> int | None:
    """The rank that a trace says it is of; None where it does not."""
    described = trace.header.get("distributedInfo")
    return whole_number(described.get("rank")) if isinstance(described, dict) else None


def compare_ranks(traces: Mapping[int, Trace]) -> Ranks:
    """Compare the traces of two or more ranks of one job, by their numbers.

    The n-th call of a collective on one rank is the n-th of that name on all. Raises LoadError
    where there are none in common.
    """
    found = {rank: _collectives(trace) for rank, trace in sorted(traces.items())}
    names = set.intersection(*(set(one) for one in found.values())) if found else set()
    starts: dict[int, list[NDArray[np.int64]]] = {rank: [] for rank in found}
    ends: dict[int, list[NDArray[np.int64]]] = {rank: [] for rank in found}
    for name in sorted(names):
        num = min(len(one[name][0]) for one in found.values())
        for rank, one in found.items():
            starts[rank].append(one[name][0][:num])
            ends[rank].append(one[name][1][:num])
    if len(found) < 2 or not names:
        raise LoadError(
            f"{len(found)} ranks have no collective in common: nothing tells when they waited."
        )
    start = np.stack([np.concatenate(starts[rank]) for rank in found])
    end = np.stack([np.concatenate(ends[rank]) for rank in found])
    offsets = np.median(end - end[0], axis=1).astype(np.int64)
    # The last to come sets all of them free at once.
    apart = np.abs(end - offsets[:, None] - end[0]).max(axis=0)
    if np.median(apart) > _APART_NS:
        raise LoadError(
            "the collectives of these ranks do not end together: they are of different groups "
            "of ranks, or the traces of different moments."
        )
    durations = end - start
    least = durations.min(axis=0)
    came = start - offsets[:, None]
    late = (came - came.min(axis=0)).mean(axis=1)
    return Ranks(
        rows=tuple(
            RankRow(
                rank=rank,
                num_collectives=durations.shape[1],
                total_ns=int(durations[place].sum()),
                waiting_ns=int((durations[place] - least).sum()),
                offset_ns=int(offsets[place]),
                late_ns=float(late[place]),
            )
            for place, rank in enumerate(found)
        ),
        communication_ns=int(least.sum()),
    )


def _collectives(trace: Trace) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Starts and ends of each collective of a trace, by name, in order."""
    rows = trace.rows("kernel")
    is_collective = np.array([kernel_class(name) == "collective" for name in trace.names])
    rows = rows[is_collective[trace.name[rows]]] if len(rows) else rows
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    found = {}
    for name in np.unique(trace.name[rows]):
        mine = rows[trace.name[rows] == name]
        found[trace.names[name]] = (trace.start_ns[mine], trace.end_ns[mine])
    return found
