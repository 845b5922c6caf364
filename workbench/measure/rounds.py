"""Rounds of calls in one worker: what is timed, how often, and from when on."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.core.measurement import Round

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows has none; switches are then not recorded.
    resource = None

# A round keeps at most this many call times; beyond, every k-th call is timed.
MAX_CALL_SAMPLES = 10_000
# Recording an event costs some microseconds of the queue, a clock reading a tenth of one.
MAX_EVENT_SAMPLES = 256
# A call may be this much faster than those before it and still count as warmed up: rounds of
# a warm model differ by 12 % (standard deviation) on a machine that others use too.
STABLE_GAIN = 0.12
MIN_WARMUP_CALLS = 7
MIN_WINDOW_CALLS = 3
WINDOW_S = 0.01
MIN_COPIES = 5


class Runnable(Protocol):
    """What a round needs of a pipeline.

    A pipeline on a GPU may also offer `record_event() -> event` and
    `elapsed_s(earlier, later) -> float`; rounds then keep times by events too.
    """

    @property
    def place(self) -> Callable[[dict[str, Any]], Any]: ...

    @property
    def call(self) -> Callable[[Any], Any]: ...

    @property
    def synchronize(self) -> Callable[[], None]: ...

    @property
    def fetch(self) -> Callable[[Any], Mapping[str, Any]]: ...


@dataclass(frozen=True, kw_only=True)
class DeviceClocks:
    """What a GPU said of itself during a round; None where it did not say."""

    sm_clock_mhz: float | None = None
    throttled: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Calls before the first round.

    `first_call_s` is the very first; `call_s` the median of the last window, whose calls
    are `calls_s`. `is_stable` is False where `max_s` ended it while calls still got faster.
    """

    first_call_s: float
    num_calls: int
    is_stable: bool
    call_s: float
    calls_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Median seconds of placing one call's inputs and of fetching its outputs."""

    copy_in_s: float
    copy_out_s: float


def calls_for(call_s: float, target_s: float) -> int:
    """How many calls of `call_s` fill a round of at least `target_s`; at least one."""
    if call_s <= 0:
        return MAX_CALL_SAMPLES
    return max(1, math.ceil(target_s / call_s))


def run_round(
    pipeline: Runnable,
    placed: Sequence[Any],
    *,
    num_calls: int,
    items_per_call: int,
    clock: Callable[[], int] = time.perf_counter_ns,
    cpu_clock: Callable[[], int] = time.process_time_ns,
    read_clocks: Callable[[], DeviceClocks] | None = None,
) -> Round:
    """Call `num_calls` times, rotating through `placed`, and time it.

    The device is synchronised before the first and after the last call; `wall_s` spans both
    ends. Clocks give nanoseconds. `calls_s` are wall times, or where the pipeline records
    events the times between them, since a call on a GPU returns before its work is done.
    At most 10,000 calls (256 with events) are timed one by one, evenly spread; `wall_s`
    covers all of them. Python's garbage collector rests meanwhile.
    """
    assert num_calls > 0
    assert items_per_call > 0
    assert len(placed) > 0
    record_event: Callable[[], Any] | None = getattr(pipeline, "record_event", None)
    elapsed_s: Callable[[Any, Any], float] | None = getattr(pipeline, "elapsed_s", None)
    events: list[Any] = []
    with _no_garbage_collection():
        pipeline.synchronize()
        switches = _num_switches()
        cpu_start = cpu_clock()
        start = clock()
        if record_event is not None and elapsed_s is not None:
            first = record_event()
            events = _call_with_events(pipeline.call, placed, num_calls, record_event)
            last = record_event()
            pipeline.synchronize()
            wall_s = (clock() - start) * 1e-9
        else:
            stamps = _call_with_clock(pipeline.call, placed, num_calls, clock)
            pipeline.synchronize()
            wall_s = (clock() - start) * 1e-9
        cpu_s = (cpu_clock() - cpu_start) * 1e-9
        num_switches = _difference(_num_switches(), switches)
    event_s: float | None = None
    calls_s: NDArray[np.float64]
    if elapsed_s is not None and events:
        event_s = elapsed_s(first, last)
        pairs = zip(events[::2], events[1::2], strict=True)
        calls_s = np.array([elapsed_s(a, b) for a, b in pairs], dtype=np.float64)
    else:
        calls_s = np.asarray((stamps[1::2] - stamps[::2]) * 1e-9, dtype=np.float64)
    # Read after the clock has stopped: a query to the driver takes about a millisecond, and
    # clocks do not fall that fast.
    clocks = read_clocks() if read_clocks is not None else DeviceClocks()
    return Round(
        num_calls=num_calls,
        num_items=num_calls * items_per_call,
        wall_s=wall_s,
        calls_s=calls_s,
        cpu_s=cpu_s,
        num_switches=num_switches,
        event_s=event_s,
        sm_clock_mhz=clocks.sm_clock_mhz,
        throttled=clocks.throttled,
    )


def _call_with_clock(
    call: Callable[[Any], Any], placed: Sequence[Any], num_calls: int, clock: Callable[[], int]
) -> NDArray[np.int64]:
    """Stamps before and after each timed call, interleaved, in nanoseconds."""
    stride = math.ceil(num_calls / MAX_CALL_SAMPLES)
    num_samples = num_calls // stride
    stamps = np.zeros(2 * num_samples, dtype=np.int64)
    # Writing through a memoryview takes a third of the time of numpy's item assignment.
    view = stamps.data
    inputs = cycle(placed)
    if stride == 1:
        index = 0
        for arguments in islice(inputs, num_calls):
            view[index] = clock()
            call(arguments)
            view[index + 1] = clock()
            index += 2
        return stamps
    for index in range(0, 2 * num_samples, 2):
        arguments = next(inputs)
        view[index] = clock()
        call(arguments)
        view[index + 1] = clock()
        for arguments in islice(inputs, stride - 1):
            call(arguments)
    for arguments in islice(inputs, num_calls - num_samples * stride):
        call(arguments)
    return stamps


def _call_with_events(
    call: Callable[[Any], Any],
    placed: Sequence[Any],
    num_calls: int,
    record_event: Callable[[], Any],
) -> list[Any]:
    """Events before and after each timed call, interleaved."""
    stride = math.ceil(num_calls / MAX_EVENT_SAMPLES)
    inputs = cycle(placed)
    events: list[Any] = []
    for number, arguments in enumerate(islice(inputs, num_calls)):
        if number % stride:
            call(arguments)
            continue
        events.append(record_event())
        call(arguments)
        events.append(record_event())
    return events


def warm_up(
    pipeline: Runnable,
    placed: Sequence[Any],
    *,
    max_s: float = 10.0,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> WarmUp:
    """Call until calls no longer get faster, for at most about `max_s` seconds.

    Each call is synchronised. The first is neither counted towards `max_s` nor taken for a
    warm one: it may compile for minutes. Calls after the first are grouped into windows of at least
    10 ms and three calls; it is stable when, after at least seven calls and one with every
    input, the newest window's median is no more than 12 % below the lowest of the two windows
    before. Raises whatever the pipeline raises.
    """
    calls = _timed_calls(pipeline, placed, clock)
    first_call_s = next(calls)
    spent_s = 0.0
    num_calls = 1
    min_calls = max(MIN_WARMUP_CALLS, len(placed))
    medians: list[float] = []
    window: list[float] = []
    is_stable = False
    while not window or (spent_s < max_s and not is_stable):
        window = []
        while len(window) < MIN_WINDOW_CALLS or sum(window) < WINDOW_S:
            window.append(next(calls))
            spent_s += window[-1]
            num_calls += 1
            if spent_s >= max_s:
                break
        medians.append(median(window))
        if len(medians) >= 3 and num_calls >= min_calls:
            is_stable = medians[-1] >= (1 - STABLE_GAIN) * min(medians[-3:-1])
    return WarmUp(
        first_call_s=first_call_s,
        num_calls=num_calls,
        is_stable=is_stable,
        call_s=median(window),
        calls_s=tuple(window),
    )


def _timed_calls(
    pipeline: Runnable, placed: Sequence[Any], clock: Callable[[], int]
) -> Iterator[float]:
    for arguments in cycle(placed):
        start = clock()
        pipeline.call(arguments)
        pipeline.synchronize()
        yield (clock() - start) * 1e-9


def time_copies(
    pipeline: Runnable,
    inputs: Sequence[dict[str, Any]],
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Copies:
    """Time `place` and `fetch` by themselves, synchronised, over at least five copies."""
    copies_in: list[float] = []
    copies_out: list[float] = []
    for arrays in islice(cycle(inputs), max(MIN_COPIES, len(inputs))):
        start = clock()
        placed = pipeline.place(arrays)
        pipeline.synchronize()
        copies_in.append((clock() - start) * 1e-9)
        raw = pipeline.call(placed)
        pipeline.synchronize()
        start = clock()
        pipeline.fetch(raw)
        copies_out.append((clock() - start) * 1e-9)
    return Copies(copy_in_s=median(copies_in), copy_out_s=median(copies_out))


@dataclass(frozen=True, kw_only=True)
class Processing:
    """Median seconds of preprocessing one raw example and of postprocessing its outputs.

    None for a half that the model does not bring.
    """

    preprocess_s: float | None
    postprocess_s: float | None


def time_processing(
    pipeline: Any, raw: Any, *, clock: Callable[[], int] = time.perf_counter_ns
) -> Processing:
    """Time `preprocess(raw)` and `postprocess(outputs)` by themselves, over five requests."""
    before: list[float] = []
    after: list[float] = []
    for _ in range(MIN_COPIES):
        start = clock()
        inputs = pipeline.preprocess(raw)
        before.append((clock() - start) * 1e-9)
        if pipeline.postprocess is not None:
            outputs = pipeline.predict(inputs)
            start = clock()
            pipeline.postprocess(outputs)
            after.append((clock() - start) * 1e-9)
    return Processing(preprocess_s=median(before), postprocess_s=median(after) if after else None)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _num_switches() -> int | None:
    if resource is None:
        return None
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
