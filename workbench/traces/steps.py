"""Step by step: what the device did, and why it did nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from workbench.traces.host import calls_that_load, calls_that_wait
from workbench.traces.intervals import Times, clipped, covered, gaps, merged, shared, without
from workbench.traces.kernels import kernel_class
from workbench.traces.links import Links, link
from workbench.traces.trace import ABSENT, Trace
from workbench.traces.windows import windows
from workbench.traces.work import Work, device_work

_STREAM_WAITS = "Stream Wait Event"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of one device. The times from `compute_ns` on add up to `wall_ns`.

    `number` is None where the file marks no steps and this is the whole of it. While several
    kinds of work run at once the time counts as the first of these: computing, communicating
    (`communication_ns` is what no computation hides), copying (`copy_ns`, likewise). Idle time
    ends with the next work: until that was launched the device waited for the host, which
    fetched data (`loading_ns`), was in a synchronising call, or had been in one when the device
    ran out of work and so could not be ahead of it (`synchronising_ns`), or was too slow
    (`host_bound_ns`); from then on it is `dependency_ns` where its stream had been told to wait
    for another one, else `latency_ns`. Time in which the profiler says that it was busy itself is
    `overhead_ns` and none of these. Before work whose launch is not in the trace it is
    `unexplained_ns`.

    `queue_depth` is how much launched work waited for its turn, on average over the step: below
    one the host is hardly ahead of the device. None where no work has its launch in the trace.
    """

    number: int | None
    device: int | None
    start_ns: int
    wall_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    loading_ns: int
    host_bound_ns: int
    synchronising_ns: int
    dependency_ns: int
    latency_ns: int
    unexplained_ns: int
    overhead_ns: int
    num_kernels: int
    num_copies: int
    copied_bytes: int | None
    all_communication_ns: int
    all_copy_ns: int
    queue_depth: float | None

    @property
    def busy_ns(self) -> int:
        """When any stream worked."""
        return self.compute_ns + self.communication_ns + self.copy_ns

    @property
    def idle_ns(self) -> int:
        """When none did, and the profiler had nothing to do either."""
        return self.wall_ns - self.busy_ns - self.overhead_ns


def steps(trace: Trace, links: Links | None = None) -> tuple[Step, ...]:
    """Each step on each device that worked, in order."""
    links = links or link(trace)
    work = device_work(trace)
    marked = windows(trace)
    made = []
    for number in np.unique(trace.device[links.work]):
        device = _Device(trace, work, links, int(number))
        made += [device.work_in(start, end).step(number) for number, start, end in marked]
    return tuple(sorted(made, key=lambda one: (one.start_ns, one.device or 0)))


def waits_for_host(trace: Trace, device: int | None, start: int, end: int) -> tuple[Times, Times]:
    """When a device had nothing to do between two moments because nothing had been launched."""
    number = ABSENT if device is None else device
    found = _Device(trace, device_work(trace), link(trace), number).work_in(start, end)
    begin, until, _, _ = found.gaps()
    kept = until > begin
    return begin[kept], until[kept]


class _Device:
    """The work of one device, in the order of its starts, and what the host did beside it."""

    def __init__(self, trace: Trace, work: Work, links: Links, device: int) -> None:
        mine = trace.device[links.work] == device
        rows, launch = links.work[mine], links.launch[mine]
        order = np.argsort(trace.start_ns[rows], kind="stable")
        rows, launch = rows[order], launch[order]
        is_copy = np.isin(rows, trace.rows("memcpy", "memset"))
        is_collective = np.array([kernel_class(name) == "collective" for name in trace.names])
        self._all = _Work(
            device=None if device == ABSENT else device,
            span=(0, 0),
            starts=work.starts[mine][order],
            ends=work.ends[mine][order],
            # A kernel that starts before its launch ends (the launch of another thread, or a
            # skewed clock) was not waited for.
            launched=np.where(launch == ABSENT, ABSENT, _ends(trace, launch)),
            is_copy=is_copy,
            is_dependent=_follows_a_wait(trace, rows, launch),
            is_collective=~is_copy & is_collective[trace.name[rows]],
            num_bytes=trace.num_bytes.of(rows),
            waiting=merged(*_times(trace, calls_that_wait(trace))),
            loading=merged(*_times(trace, calls_that_load(trace))),
            overhead=merged(*_times(trace, trace.rows("overhead"))),
        )
        self._reach = np.maximum.accumulate(self._all.ends) if len(rows) else self._all.ends

    def work_in(self, start: int, end: int) -> _Work:
        """What can matter to the time between two moments, and the next work after it."""
        low = int(np.searchsorted(self._reach, start, side="right"))
        high = int(np.searchsorted(self._all.starts, end)) + 1
        part = slice(min(low, high), high)
        whole = self._all
        return replace(
            whole,
            span=(start, end),
            starts=whole.starts[part],
            ends=whole.ends[part],
            launched=whole.launched[part],
            is_copy=whole.is_copy[part],
            is_dependent=whole.is_dependent[part],
            is_collective=whole.is_collective[part],
            num_bytes=whole.num_bytes[part],
        )


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Columns of one length: work of a device, in the order of its starts.

    `span` is the time that is asked about; `waiting`, `loading` and the profiler's `overhead` are
    of the host. `is_dependent` work had to wait for another stream.
    """

    device: int | None
    span: tuple[int, int]
    starts: Times
    ends: Times
    launched: Times
    is_copy: NDArray[np.bool_]
    is_dependent: NDArray[np.bool_]
    is_collective: NDArray[np.bool_]
    num_bytes: NDArray[np.int64]
    waiting: tuple[Times, Times]
    loading: tuple[Times, Times]
    overhead: tuple[Times, Times]

    def step(self, number: int | None) -> Step:
        start, end = self.span
        inside = (self.ends > start) & (self.starts < end)
        copy, collective = inside & self.is_copy, inside & self.is_collective
        compute = inside & ~copy & ~collective
        compute_ns = self._covered(compute)
        with_collectives_ns = self._covered(compute | collective)
        busy_ns = self._covered(inside)
        begun = (self.starts >= start) & (self.starts < end)
        num_bytes = self.num_bytes[begun & self.is_copy]
        known = num_bytes[num_bytes != ABSENT]
        return Step(
            number=number,
            device=self.device,
            start_ns=start,
            wall_ns=end - start,
            compute_ns=compute_ns,
            communication_ns=with_collectives_ns - compute_ns,
            copy_ns=busy_ns - with_collectives_ns,
            **self._idle(),
            num_kernels=int((begun & ~self.is_copy).sum()),
            num_copies=int((begun & self.is_copy).sum()),
            copied_bytes=int(known.sum()) if len(known) else None,
            all_communication_ns=self._covered(collective),
            all_copy_ns=self._covered(copy),
            queue_depth=self._queue_depth(begun),
        )

    def _covered(self, chosen: NDArray[np.bool_]) -> int:
        return covered(*clipped(self.starts[chosen], self.ends[chosen], *self.span))

    def _queue_depth(self, begun: NDArray[np.bool_]) -> float | None:
        """Mean number of launched pieces of work that had not begun yet."""
        linked = begun & (self.launched != ABSENT)
        wall_ns = self.span[1] - self.span[0]
        if not linked.any() or wall_ns <= 0:
            return None
        waited = np.maximum(self.starts[linked] - self.launched[linked], 0)
        return float(waited.sum()) / wall_ns

    def gaps(self) -> tuple[Times, Times, Times, NDArray[np.bool_]]:
        """Gaps between work: when each begins, until when it waits for a launch, and its end.

        Where the launch of what follows is not in the trace nothing is known of the wait, and
        the second is -1. The last says whether what follows had to wait for another stream.
        """
        begin, finish = gaps(self.starts, self.ends, *self.span)
        # What ended the gap: the work that starts then, or the next one after the step.
        following = np.searchsorted(self.starts, finish)
        has_next = following < len(self.starts)
        launched = np.full(len(begin), ABSENT, dtype=np.int64)
        launched[has_next] = self.launched[following[has_next]]
        # After the last work nothing was launched: the device waits for the host to the end.
        until = np.where(has_next, np.clip(launched, begin, finish), finish)
        until[has_next & (launched == ABSENT)] = ABSENT
        is_dependent = np.zeros(len(begin), dtype=np.bool_)
        is_dependent[has_next] = self.is_dependent[following[has_next]]
        return begin, until, finish, is_dependent

    def _idle(self) -> dict[str, int]:
        """Idle time by its cause."""
        begin, until, finish, is_dependent = self.gaps()
        overhead = clipped(*self.overhead, *self.span)
        unexplained = until == ABSENT
        kept = until > begin
        # The first gap follows the end of the step before, in which every profiler waits.
        is_after_wait = (begin > self.span[0]) & self._is_in_wait(begin)
        behind, free = (
            without(begin[chosen], until[chosen], *overhead)
            for chosen in (kept & is_after_wait, kept & ~is_after_wait)
        )
        loading, waiting = clipped(*self.loading, *self.span), clipped(*self.waiting, *self.span)
        loading_ns = shared(*behind, *loading) + shared(*free, *loading)
        # In a call that waits and does not load.
        waiting_ns = shared(*free, *_both(waiting, loading)) - shared(*free, *loading)
        behind_ns = _length(*behind) - shared(*behind, *loading)
        launched = np.maximum(until, begin)
        is_late = ~unexplained & (finish > launched)
        dependency_ns, latency_ns = (
            _length(*without(launched[chosen], finish[chosen], *overhead))
            for chosen in (is_late & is_dependent, is_late & ~is_dependent)
        )
        return {
            "loading_ns": loading_ns,
            "host_bound_ns": _length(*behind)
            + _length(*free)
            - loading_ns
            - waiting_ns
            - behind_ns,
            "synchronising_ns": waiting_ns + behind_ns,
            "dependency_ns": dependency_ns,
            "latency_ns": latency_ns,
            "unexplained_ns": _length(*without(begin[unexplained], finish[unexplained], *overhead)),
            "overhead_ns": shared(begin, finish, *overhead),
        }

    def _is_in_wait(self, moments: Times) -> NDArray[np.bool_]:
        """Whether the host was in a synchronising call at each of these moments."""
        starts, ends = self.waiting
        if len(starts) == 0:
            return np.zeros(len(moments), dtype=np.bool_)
        place = np.searchsorted(starts, moments, side="right") - 1
        return (place >= 0) & (ends[place] >= moments)


def _follows_a_wait(
    trace: Trace, rows: NDArray[np.intp], launch: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Whether each piece of work was launched after its stream was told to wait for another.

    CUPTI records that as an event of synchronisation on the waiting stream.
    """
    found = np.zeros(len(rows), dtype=np.bool_)
    waits = trace.rows("sync")
    is_wait = np.array([name == _STREAM_WAITS for name in trace.names], dtype=np.bool_)
    waits = waits[is_wait[trace.name[waits]]]
    linked = np.flatnonzero(launch != ABSENT)
    for stream in np.unique(trace.stream[waits]):
        told = np.sort(trace.start_ns[waits[trace.stream[waits] == stream]])
        mine = linked[trace.stream[rows[linked]] == stream]
        launched = trace.start_ns[launch[mine]]
        order = np.argsort(launched, kind="stable")
        num_told = np.searchsorted(told, launched[order], side="right")
        found[mine[order]] = np.diff(num_told, prepend=0) > 0
    return found


def _length(starts: Times, ends: Times) -> int:
    return int((ends - starts).sum())


def _ends(trace: Trace, rows: NDArray[np.intp]) -> Times:
    return trace.start_ns[rows] + trace.duration_ns[rows]


def _times(trace: Trace, rows: NDArray[np.intp]) -> tuple[Times, Times]:
    return trace.start_ns[rows], _ends(trace, rows)


def _both(some: tuple[Times, Times], others: tuple[Times, Times]) -> tuple[Times, Times]:
    return np.concatenate((some[0], others[0])), np.concatenate((some[1], others[1]))
