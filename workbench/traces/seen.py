"""The step of a trace that the rules look at: on the device, on the host, and as pieces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import TooLargeError
from workbench.traces.enclosure import Enclosure, enclose
from workbench.traces.host import HostStep, calls_that_wait, host_step
from workbench.traces.intervals import Times
from workbench.traces.links import Links, link
from workbench.traces.pieces import Sequence, sequence
from workbench.traces.steps import Step, steps
from workbench.traces.trace import ABSENT, Trace
from workbench.traces.windows import Window, median_window
from workbench.traces.work import device_work

# A call of the host that takes so much of a step is no launch among others.
_SLOW_CALL = 0.25


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The step of median time. `slowest` is the row and the time of a call that takes much of it.

    `device` is None without work of one, `host` without operators, `steps` where there are too
    many pieces to look at each. `rows`, `starts` and `ends` are the device's work, as far as it
    lies in the step. `recording_ns` is what recording added to the step, as far as that is known.
    """

    trace: Trace
    window: Window
    steps: Sequence | None
    device: Step | None
    host: HostStep | None
    slowest: tuple[int, int] | None
    rows: NDArray[np.intp]
    starts: Times
    ends: Times
    recording_ns: int = 0

    def unrecorded(self, host_ns: int) -> tuple[int, float]:
        """What is left of the host's own time without recording, and its share of such a step."""
        left_ns = max(0, host_ns - self.recording_ns)
        return left_ns, left_ns / max(1, self.wall_ns - self.recording_ns)

    @property
    def wall_ns(self) -> int:
        return self.window.wall_ns

    @property
    def capability(self) -> tuple[int, int] | None:
        number = self.device.device if self.device else None
        for one in self.trace.devices:
            if number is None or one.number == number:
                return one.capability
        return None


def look(
    trace: Trace,
    slowdown: float | None = None,
    links: Links | None = None,
    enclosure: Enclosure | None = None,
    found: tuple[Step, ...] | None = None,
) -> Seen | None:
    """What is to be seen of a trace; None where it has no step.

    `slowdown` is how many times as long a step takes while it is recorded, where that is known;
    the others are what was computed of the trace already.
    """
    window = median_window(trace)
    if window is None:
        return None
    links, enclosure = links or link(trace), enclosure or enclose(trace)
    found = steps(trace, links) if found is None else found
    these = [one for one in found if one.start_ns == window.start_ns]
    # Where several devices work, the one that works most.
    device = max(these, key=lambda one: one.busy_ns, default=None)
    work = device_work(trace)
    inside = (work.ends > window.start_ns) & (work.starts < window.end_ns)
    number = ABSENT if device is None or device.device is None else device.device
    inside &= trace.device[work.rows] == number
    try:
        pieces = sequence(trace, window, links, enclosure)
    except TooLargeError:
        pieces = None
    return Seen(
        trace=trace,
        window=window,
        steps=pieces,
        device=device,
        host=host_step(trace, window),
        slowest=_slowest_call(trace, window, enclosure),
        rows=work.rows[inside],
        starts=np.maximum(work.starts[inside], window.start_ns),
        ends=np.minimum(work.ends[inside], window.end_ns),
        recording_ns=int(window.wall_ns * (1 - 1 / slowdown)) if slowdown and slowdown > 1 else 0,
    )


def _slowest_call(trace: Trace, window: Window, enclosure: Enclosure) -> tuple[int, int] | None:
    """The call of the host that takes a quarter of a step or more by itself, and its time."""
    rows = enclosure.rows
    chosen = np.isin(rows, trace.rows("operator", "runtime", "driver"))
    chosen &= ~np.isin(rows, calls_that_wait(trace))
    chosen &= (trace.start_ns[rows] >= window.start_ns) & (trace.end_ns[rows] <= window.end_ns)
    if not chosen.any():
        return None
    place = int(np.where(chosen, enclosure.self_ns, -1).argmax())
    ns = int(enclosure.self_ns[place])
    return (int(rows[place]), ns) if ns >= _SLOW_CALL * window.wall_ns else None
