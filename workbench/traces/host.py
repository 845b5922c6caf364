"""What the host did in each step: load data, wait for a device, run operators, and the rest."""

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

_STEP = "ProfilerStep#"
_LOADING = re.compile(r"^enumerate\(DataLoader\)|^DataLoader.{0,200}__next__")
_BACKWARD = re.compile(r"^autograd::engine")
# Calls in which the host waits for the device, by the names of CUDA, its driver and HIP. Copies
# that are not asynchronous wait too: on ROCm every `.item()` and `.cpu()` is one.
_WAITING = re.compile(
    r"^((cuda|cu|hip)\w*Synchronize(_ptsz)?|(cuda|hip)Memcpy(WithStream|DtoH|HtoD)?|"
    r"cuMemcpy(DtoH|HtoD)(_v2)?)$"
)


@dataclass(frozen=True, kw_only=True)
class HostStep:
    """A step of the host. The times after `wall_ns` add up to it.

    While one lies in another the first of these counts: the thread that drives the model loads
    data (`loading_ns`) or waits for the device in a synchronising call (`waiting_ns`); it, or one
    that runs a backward pass for it, is in operators and launches (`operators_ns`); the profiler
    is busy itself (`overhead_ns`); what is left is Python between them (`python_ns`).
    """

    number: int | None
    wall_ns: int
    loading_ns: int
    waiting_ns: int
    operators_ns: int
    overhead_ns: int
    python_ns: int


def calls_that_load(trace: Trace) -> NDArray[np.intp]:
    """The rows in which the host fetches the next batch of data."""
    return _named(trace, _LOADING, "annotation", "operator", "python")


def calls_that_wait(trace: Trace) -> NDArray[np.intp]:
    """The rows in which the host waits for a device."""
    return _named(trace, _WAITING, "runtime", "driver")


def host_steps(trace: Trace) -> tuple[HostStep, ...]:
    """Each step of the host, in order; empty without operators."""
    host = _Host(trace)
    found = (host.step(window) for window in windows(trace))
    return tuple(step for step in found if step is not None)


def host_step(trace: Trace, window: Window) -> HostStep | None:
    """One of them; None where no operator ran in it."""
    return _Host(trace).step(window)


class _Host:
    """Spans of the host by kind, merged once for all steps."""

    def __init__(self, trace: Trace) -> None:
        rows = trace.rows("operator", "runtime", "driver")
        driving = _driving_lane(trace, rows)
        backward = _named(trace, _BACKWARD, "operator")
        lanes = np.unique(np.append(trace.lane[backward], driving))
        loading, waiting = calls_that_load(trace), calls_that_wait(trace)
        self._kinds = (
            _spans(trace, loading[trace.lane[loading] == driving]),
            _spans(trace, waiting[trace.lane[waiting] == driving]),
            _spans(trace, rows[np.isin(trace.lane[rows], lanes)]),
            _spans(trace, trace.rows("overhead")),
        )

    def step(self, window: Window) -> HostStep | None:
        starts: list[Times] = []
        ends: list[Times] = []
        reached = [0]
        for kind in self._kinds:
            begin, finish = _within(*kind, window)
            starts.append(begin)
            ends.append(finish)
            reached.append(covered(np.concatenate(starts), np.concatenate(ends)))
        loading_ns, waiting_ns, operators_ns, overhead_ns = (
            high - low for low, high in pairwise(reached)
        )
        if not loading_ns + waiting_ns + operators_ns:
            return None
        return HostStep(
            number=window.number,
            wall_ns=window.wall_ns,
            loading_ns=loading_ns,
            waiting_ns=waiting_ns,
            operators_ns=operators_ns,
            overhead_ns=overhead_ns,
            python_ns=window.wall_ns - reached[-1],
        )


def _driving_lane(trace: Trace, rows: NDArray[np.intp]) -> int:
    """The thread on which steps are marked, or else the one with most operators and launches."""
    if len(rows) == 0:
        return -1
    is_mark = np.array([name.startswith(_STEP) for name in trace.names], dtype=np.bool_)
    marks = trace.rows("annotation")
    marks = marks[is_mark[trace.name[marks]]]
    lanes = trace.lane[marks] if len(marks) else trace.lane[rows]
    return int(np.bincount(lanes).argmax())


def _spans(trace: Trace, rows: NDArray[np.intp]) -> tuple[Times, Times]:
    return merged(trace.start_ns[rows], trace.start_ns[rows] + trace.duration_ns[rows])


def _within(starts: Times, ends: Times, window: Window) -> tuple[Times, Times]:
    """Of merged spans those of a window."""
    low = int(np.searchsorted(ends, window.start_ns, side="right"))
    high = int(np.searchsorted(starts, window.end_ns))
    return clipped(starts[low:high], ends[low:high], window.start_ns, window.end_ns)


def _named(trace: Trace, pattern: re.Pattern[str], *categories: Category) -> NDArray[np.intp]:
    matches = np.array([bool(pattern.search(name)) for name in trace.names], dtype=np.bool_)
    rows = trace.rows(*categories)
    return rows[matches[trace.name[rows]]]
