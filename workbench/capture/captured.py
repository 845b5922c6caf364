"""What a capture leaves: a file, what it holds, and how much recording slowed the model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from workbench.core.errors import RunError

# TensorBoard's plugin lists files of this name: worker, a moment, and this ending.
TORCH_ENDING = ".pt.trace.json.gz"
OTHER_ENDING = ".trace.json.gz"
STEP = "ProfilerStep#{}"
# A recording must end: models whose call takes long are recorded fewer times.
_LONGEST_S = 30.0
MOST_ITERATIONS = 1000
# Before a call's time is known, and for as long it is taken: a core that rested is slow at first.
_WARM_S, _UNRECORDED_S = 0.15, 0.25
_NUM_UNRECORDED = 5


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A profile of some calls. Seconds are medians of one call, with and without recording.

    `snapshot` is the allocator's memory snapshot beside the trace, on a GPU.
    """

    path: Path
    num_iterations: int
    call_s: float
    recorded_call_s: float
    snapshot: Path | None = None


def file_name(name: str, ending: str) -> str:
    """The name of a recording of a variant, made now."""
    return f"{name}.{time.time_ns()}{ending}"


Span = Callable[[str], AbstractContextManager[Any]]


class Calls:
    """A pipeline's call on one set of inputs after the other, timed one by one."""

    def __init__(self, pipeline: Any, placed: list[Any]) -> None:
        self._pipeline = pipeline
        self._inputs: Iterator[Any] = cycle(placed)

    def once(self) -> float:
        """Seconds of one call until its work is done."""
        placed = next(self._inputs)
        begun = time.perf_counter()
        self._run(placed)
        return time.perf_counter() - begun

    def _run(self, placed: Any) -> None:
        self._pipeline.call(placed)
        self._pipeline.synchronize()

    def unrecorded_s(self) -> float:
        """The median of some calls after the first ones, which may compile and try out."""
        self.once()
        self._for_a_while(_WARM_S, 1)
        return statistics.median(self._for_a_while(_UNRECORDED_S, _NUM_UNRECORDED))

    def _for_a_while(self, wanted_s: float, least: int) -> list[float]:
        """Seconds of each call for so long, and of so many as do not take too long."""
        seconds: list[float] = []
        begun = time.perf_counter()
        while (passed_s := time.perf_counter() - begun) < _LONGEST_S and (
            passed_s < wanted_s or len(seconds) < least
        ):
            seconds.append(self.once())
        return seconds


class Requests(Calls):
    """Whole requests of a model that brings its own processing, each part in its span."""

    def __init__(self, pipeline: Any, raw: Any, span: Span) -> None:
        super().__init__(pipeline, [raw])
        self._span = span

    def _run(self, placed: Any) -> None:
        pipeline = self._pipeline
        with self._span("preprocess"):
            inputs = pipeline.preprocess(placed)
        with self._span("copy in"):
            ready = pipeline.place(inputs)
            pipeline.synchronize()
        with self._span("model"):
            found = pipeline.call(ready)
            pipeline.synchronize()
        with self._span("copy out"):
            outputs = pipeline.fetch(found)
        if pipeline.postprocess is not None:
            with self._span("postprocess"):
                pipeline.postprocess(outputs)


def num_to_record(iterations: int, call_s: float) -> int:
    """As many calls as asked for, a thousand, or as many as take half a minute; at least one."""
    if iterations < 1:
        raise RunError(f"a profile needs 1 iteration or more, not {iterations}.")
    return max(1, min(iterations, MOST_ITERATIONS, int(_LONGEST_S / max(call_s, 1e-9))))


def record_steps(calls: Calls, num: int, mark: Callable[[int], Any] | None = None) -> list[float]:
    """Call this many times, each inside its mark; returns the seconds of each.

    Fewer where recording makes them take over half a minute.
    """
    seconds: list[float] = []
    until_s = time.perf_counter() + _LONGEST_S
    for number in range(num):
        if seconds and time.perf_counter() > until_s:
            break
        if mark is None:
            seconds.append(calls.once())
            continue
        with mark(number):
            seconds.append(calls.once())
    return seconds
