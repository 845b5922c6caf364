"""The work of devices as spans of time.

A stream works through what it is given in order, so a kernel has ended when the next one on its
stream begins. Profilers of AMD devices record some that seem to last longer; in the time that a
device was busy they count until then. Kernels of one launch are left alone: a replayed graph
may run several at once, and all bear its stream's number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.traces.trace import ABSENT, Trace


@dataclass(frozen=True, kw_only=True)
class Work:
    """Kernels, copies and fills; one entry each, in the file's order.

    `ends` are clipped where the next launch on the same stream began earlier; `is_clipped` says
    which.
    """

    rows: NDArray[np.intp]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    is_clipped: NDArray[np.bool_]


def device_work(trace: Trace) -> Work:
    """All work of all devices."""
    rows = trace.device_rows
    starts, ends = trace.start_ns[rows], trace.end_ns[rows]
    device, stream = trace.device[rows], trace.stream[rows]
    launch = trace.correlation[rows]
    order = np.lexsort((ends, starts, stream, device))
    this, following = order[:-1], order[1:]
    is_next = (
        (device[this] == device[following])
        & (stream[this] == stream[following])
        & (stream[this] != ABSENT)
        & ((launch[this] != launch[following]) | (launch[this] == ABSENT))
        & (starts[following] < ends[this])
    )
    ends[this[is_next]] = starts[following[is_next]]
    is_clipped = np.zeros(len(rows), dtype=np.bool_)
    is_clipped[this[is_next]] = True
    return Work(rows=rows, starts=starts, ends=ends, is_clipped=is_clipped)
