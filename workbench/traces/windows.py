"""When the steps of a trace were: one run of the model each, or one iteration of a training."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from workbench.traces.trace import Trace

_STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
_RUN = "model_run"


class Window(NamedTuple):
    """A step; `number` is None where the file marks none and this is the whole of it."""

    number: int | None
    start_ns: int
    end_ns: int

    @property
    def wall_ns(self) -> int:
        """How long it lasted."""
        return self.end_ns - self.start_ns


def windows(trace: Trace) -> list[Window]:
    """The steps that the profiler marked, the runs of an ONNX Runtime session, or the whole.

    Empty where there is nothing to see: neither work of a device nor an operator.
    """
    return _marked(trace) or _runs(trace) or _whole(trace)


def median_window(trace: Trace) -> Window | None:
    """The step of median time, the shorter of two; None where nothing is to be seen."""
    found = [window for window in windows(trace) if window.wall_ns > 0]
    found.sort(key=lambda window: window.wall_ns)
    return found[(len(found) - 1) // 2] if found else None


def _marked(trace: Trace) -> list[Window]:
    matches = [_STEP.match(name) for name in trace.names]
    number_of = np.array([-1 if match is None else int(match[1]) for match in matches])
    rows = trace.rows("annotation")
    if not len(number_of) or not len(rows):
        return []
    rows = rows[number_of[trace.name[rows]] >= 0]
    starts, durations = trace.start_ns[rows].tolist(), trace.duration_ns[rows].tolist()
    found: dict[int, Window] = {}
    for row, start, duration in zip(rows.tolist(), starts, durations, strict=True):
        number = int(number_of[trace.name[row]])
        before = found.get(number, Window(number, start, start + duration))
        end = max(before.end_ns, start + duration)
        found[number] = Window(number, min(before.start_ns, start), end)
    return [found[number] for number in sorted(found)]


def _runs(trace: Trace) -> list[Window]:
    if trace.format != "onnxruntime":
        return []
    rows = trace.rows("annotation")
    rows = rows[[trace.names[name] == _RUN for name in trace.name[rows]]]
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    starts, ends = trace.start_ns[rows].tolist(), trace.end_ns[rows].tolist()
    return [Window(n, *span) for n, span in enumerate(zip(starts, ends, strict=True))]


def _whole(trace: Trace) -> list[Window]:
    """From the first launch, or work, to the end of the last work; else all operators."""
    work = trace.device_rows
    if len(work):
        rows = np.concatenate((work, trace.rows("runtime", "driver")))
        return [Window(None, int(trace.start_ns[rows].min()), int(trace.end_ns[work].max()))]
    rows = trace.rows("operator")
    if len(rows) == 0:
        return []
    return [Window(None, int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max()))]
