"""What the host's thread did in each step: load, wait, compute or launch, and the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from workbench.traces.intervals import Times, clipped, covered, merged
from workbench.traces.trace import Trace
from workbench.traces.vocabulary import Category
from workbench.traces.windows import Window, windows

_LOADING = re.compile(r"^enumerate\(DataLoader\)|DataLoader.*__next__")
# Calls in which the host waits for the device, by the names of CUDA, its driver and HIP.
_WAITING = re.compile(r"^(cuda|cu|hip)\w*Synchronize(_ptsz)?$")


@dataclass(frozen=True, kw_only=True)
class HostStep:
    """A step of the thread that drives the model. The times after `wall_ns` add up to it.

    While one lies in another the first of these counts: loading data (`loading_ns`), waiting for
    the device in a synchronising call (`waiting_ns`), in operators and launches
    (`operators_ns`); what is left is Python between them (`python_ns`).
    """

    number: int | None
    wall_ns: int
    loading_ns: int
    waiting_ns: int
    operators_ns: int
    python_ns: int


def calls_that_load(trace: Trace) -> NDArray[np.intp]:
    """The rows in which the host fetches the next batch of data."""
    return _named(trace, _LOADING, "annotation", "operator", "python")


def calls_that_wait(trace: Trace) -> NDArray[np.intp]:
    """The rows in which the host waits for a device."""
    return _named(trace, _WAITING, "runtime", "driver")


def host_steps(trace: Trace) -> tuple[HostStep, ...]:
    """Each step of the thread with most operators in it, in order; empty without operators."""
    found = (host_step(trace, window) for window in windows(trace))
    return tuple(step for step in found if step is not None)


def host_step(trace: Trace, window: Window) -> HostStep | None:
    """One of them; None where no operator ran in it."""
    rows = trace.rows("operator", "runtime", "driver")
    inside = (trace.end_ns[rows] > window.start_ns) & (trace.start_ns[rows] < window.end_ns)
    lanes = trace.lane[rows[inside]]
    if len(lanes) == 0:
        return None
    lane = int(np.bincount(lanes).argmax())
    starts: list[Times] = []
    ends: list[Times] = []
    reached = [0]
    for kind in (calls_that_load(trace), calls_that_wait(trace), rows):
        mine = kind[trace.lane[kind] == lane]
        begin, finish = merged(
            *clipped(trace.start_ns[mine], trace.end_ns[mine], window.start_ns, window.end_ns)
        )
        starts.append(begin)
        ends.append(finish)
        reached.append(covered(np.concatenate(starts), np.concatenate(ends)))
    loading_ns, waiting_ns, operators_ns = (high - low for low, high in pairwise(reached))
    return HostStep(
        number=window.number,
        wall_ns=window.wall_ns,
        loading_ns=loading_ns,
        waiting_ns=waiting_ns,
        operators_ns=operators_ns,
        python_ns=window.wall_ns - reached[-1],
    )


def _named(trace: Trace, pattern: re.Pattern[str], *categories: Category) -> NDArray[np.intp]:
    matches = np.array([bool(pattern.search(name)) for name in trace.names], dtype=np.bool_)
    rows = trace.rows(*categories)
    return rows[matches[trace.name[rows]]]
