"""Raw rounds and what was measured beside them. Summaries are computed when read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One uninterrupted run of calls in one worker.

    `wall_s` is the whole round, synchronised at both ends; `calls_s` the wall time of each
    call in seconds, shape (num_calls,), thinned above 10,000. `cpu_s` is the process's CPU
    time, `num_switches` its involuntary context switches. On a GPU `event_s` is the time by
    CUDA events. What was not read is None.
    """

    num_calls: int
    num_items: int
    wall_s: float
    calls_s: NDArray[np.float64]
    cpu_s: float | None = None
    num_switches: int | None = None
    event_s: float | None = None
    sm_clock_mhz: float | None = None
    throttled: tuple[str, ...] | None = None

    @property
    def item_s(self) -> float:
        """Seconds an item: the mean of the round."""
        return self.wall_s / self.num_items


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """A baseline round and a variant round next to each other, in random order."""

    baseline: Round
    variant: Round
    baseline_first: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Visit:
    """Pairs measured in one go: the unit of every interval.

    `started_s` is the wall clock (seconds since the epoch); `host_load` the share of the
    machine's CPU time that others used meanwhile, None where it was not read.
    `baseline_process` and `variant_process` number the processes that ran it: equal numbers
    are the same process. Two processes of one recipe differ by about a percent for as long
    as they live, so a verdict needs to know which visits shared one.
    """

    number: int
    started_s: float
    pairs: tuple[Pair, ...]
    host_load: float | None = None
    baseline_process: int = 0
    variant_process: int = 0


@dataclass(frozen=True, kw_only=True)
class MemoryReading:
    """Bytes, by kind; what was not read is None, never 0.

    `host_peak_bytes` is the peak resident set above the level after the engine's import.
    The allocator's peak and the device's difference in use are two figures on purpose.
    """

    host_peak_bytes: int | None = None
    host_start_bytes: int | None = None
    allocator_peak_bytes: int | None = None
    allocator_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EnergyReading:
    """Energy of the device in a window of its own, idle power subtracted.

    `joules_per_1000_items` is None where `source` is "unavailable"; then `reason` says why.
    """

    source: str
    joules_per_1000_items: float | None = None
    idle_watts: float | None = None
    window_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ColdStart:
    """Seconds of what is paid once; each a column of its own, None where it did not happen."""

    build_s: float | None = None
    compile_cold_s: float | None = None
    compile_cached_s: float | None = None
    load_s: float | None = None
    first_call_s: float | None = None
    copy_in_s: float | None = None
    copy_out_s: float | None = None
    preprocess_s: float | None = None
    postprocess_s: float | None = None
    num_warmup: int | None = None
    warmup_stable: bool | None = None
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How a variant's outputs compare with the baseline's.

    `status` is "kept", "lost", "undecided", "unknown" (no real inputs, or too few),
    "not_finite" or "mismatch". `value` with its 95 % interval is of `metric`; `num_rows` is
    how many rows it rests on; `tolerance` is the bound that "kept" must clear.
    """

    status: str
    metric: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    num_rows: int = 0
    tolerance: float | None = None
    max_abs_error: float | None = None
    details: dict[str, float] = field(default_factory=dict)
    worst_rows: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
