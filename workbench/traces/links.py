"""Which launch a kernel came from, and which operator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.traces.enclosure import Enclosure, nearest
from workbench.traces.trace import ABSENT, Trace
from workbench.traces.vocabulary import LAUNCHES


@dataclass(frozen=True, kw_only=True)
class Links:
    """`launch` is, for each row of `work`, the row of the host's call it came from, or -1.

    A call may own many kernels: a replayed graph owns hundreds. `num_before_launch` began
    before their launch did, because the two clocks are not quite one; what waits for a launch
    is clamped to it.
    """

    work: NDArray[np.intp]
    launch: NDArray[np.intp]
    num_before_launch: int

    @property
    def num_unlinked(self) -> int:
        """Work of a device without a launch in this trace; it counts as work all the same."""
        return int((self.launch == ABSENT).sum())


@dataclass(frozen=True, kw_only=True)
class Origins:
    """`operator` is, for each row of `Links.work`, the row of the operator it came from, or -1.

    That is the closest one around its launch; without such a one, the operator of its external
    id. `num_disagreeing` have both, and the second does not enclose the launch.
    """

    operator: NDArray[np.intp]
    num_disagreeing: int


def link(trace: Trace) -> Links:
    """Tie the device's work to the calls that launched it, by correlation.

    Where a runtime call and the driver call inside it carry one number, the runtime's is taken:
    it is the one that an operator made.
    """
    work = trace.device_rows
    calls = np.concatenate([trace.rows(kind) for kind in reversed(LAUNCHES)])
    calls = calls[trace.correlation[calls] != ABSENT]
    # Stable, so that of equal numbers the last one, a runtime call, stands last.
    launch = _last_with(trace.correlation, calls, trace.correlation[work])
    known = launch != ABSENT
    early = trace.start_ns[work[known]] < trace.start_ns[launch[known]]
    return Links(work=work, launch=launch, num_before_launch=int(early.sum()))


def origins(trace: Trace, links: Links, enclosure: Enclosure) -> Origins:
    """The operator that each piece of the device's work came from."""
    operator = np.full(len(links.work), ABSENT, dtype=np.intp)
    linked = links.launch != ABSENT
    operator[linked] = nearest(trace, enclosure, links.launch[linked], "operator")
    rows = trace.rows("operator")
    rows = rows[trace.external[rows] != ABSENT]
    named = _last_with(trace.external, rows, trace.external[links.work])
    both = np.flatnonzero(linked & (operator != ABSENT) & (named != ABSENT))
    start = trace.start_ns[links.launch[both]]
    encloses = (
        (trace.lane[named[both]] == trace.lane[links.launch[both]])
        & (trace.start_ns[named[both]] <= start)
        & (start <= trace.end_ns[named[both]])
    )
    operator = np.where(operator == ABSENT, named, operator)
    return Origins(operator=operator, num_disagreeing=int((~encloses).sum()))


def _last_with(
    numbers: NDArray[np.int64], rows: NDArray[np.intp], wanted: NDArray[np.int64]
) -> NDArray[np.intp]:
    """For each number the last of these rows that bears it, or -1; -1 is no number."""
    found = np.full(len(wanted), ABSENT, dtype=np.intp)
    if len(rows) == 0:
        return found
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    borne = numbers[rows]
    place = np.searchsorted(borne, wanted, side="right") - 1
    known = (place >= 0) & (wanted != ABSENT)
    known[known] = borne[place[known]] == wanted[known]
    found[known] = rows[place[known]]
    return found
