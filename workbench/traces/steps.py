"""Step by step: what the device did, and why it did nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.traces.host import calls_that_load, calls_that_wait
from workbench.traces.intervals import Times, clipped, covered, gaps, merged, shared
from workbench.traces.kernels import kernel_class
from workbench.traces.links import Links, link
from workbench.traces.trace import ABSENT, Trace
from workbench.traces.windows import windows
from workbench.traces.work import Work, device_work


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of one device. The times from `compute_ns` on add up to `wall_ns`.

    `number` is None where the file marks no steps and this is the whole of it. While several
    kinds of work run at once the time counts as the first of these: computing, communicating
    (`communication_ns` is what no computation hides), copying (`copy_ns`, likewise). Idle time
    ends with the next work: until that was launched the device waited for the host, which
    fetched data (`loading_ns`), was in a synchronising call, or had been in one when the device
    ran out of work and so could not be ahead of it (`synchronising_ns`), or was too slow
    (`host_bound_ns`); from then on it is `latency_ns`, of the launch or of something it depends
    on. Before work whose launch is not in the trace it is `unexplained_ns`.

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
    latency_ns: int
    unexplained_ns: int
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
        """When none did."""
        return self.wall_ns - self.busy_ns


def steps(trace: Trace, links: Links | None = None) -> tuple[Step, ...]:
    """Each step on each device that worked, in order."""
    links = links or link(trace)
    work = device_work(trace)
    marked = windows(trace)
    made = []
    for device in np.unique(trace.device[links.work]):
        side = _Device(trace, work, links, int(device))
        made += [side.step(number, start, end) for number, start, end in marked]
    return tuple(sorted(made, key=lambda one: (one.start_ns, one.device or 0)))


class _Device:
    """The work of one device, in the order of its starts."""

    def __init__(self, trace: Trace, work: Work, links: Links, device: int) -> None:
        self._trace = trace
        self._number = None if device == ABSENT else device
        mine = trace.device[links.work] == device
        rows, launch = links.work[mine], links.launch[mine]
        order = np.argsort(trace.start_ns[rows], kind="stable")
        self._rows = rows[order]
        launch = launch[order]
        self._starts, self._ends = work.starts[mine][order], work.ends[mine][order]
        is_collective = np.array([kernel_class(name) == "collective" for name in trace.names])
        self._is_copy = np.isin(self._rows, trace.rows("memcpy", "memset"))
        self._is_collective = ~self._is_copy & is_collective[trace.name[self._rows]]
        # A kernel that starts before its launch ends (the launch of another thread, or a skewed
        # clock) was not waited for.
        self._launched = np.where(launch == ABSENT, ABSENT, trace.end_ns[launch])
        self._waiting = _times(trace, calls_that_wait(trace))
        self._loading = _times(trace, calls_that_load(trace))

    def step(self, number: int | None, start: int, end: int) -> Step:
        inside = (self._ends > start) & (self._starts < end)
        copy, collective = inside & self._is_copy, inside & self._is_collective
        compute = inside & ~copy & ~collective
        compute_ns = self._covered(compute, start, end)
        with_collectives_ns = self._covered(compute | collective, start, end)
        busy_ns = self._covered(inside, start, end)
        idle = self._idle(start, end)
        begun = (self._starts >= start) & (self._starts < end)
        num_bytes = self._trace.num_bytes.of(self._rows[begun & self._is_copy])
        known = num_bytes[num_bytes != ABSENT]
        return Step(
            number=number,
            device=self._number,
            start_ns=start,
            wall_ns=end - start,
            compute_ns=compute_ns,
            communication_ns=with_collectives_ns - compute_ns,
            copy_ns=busy_ns - with_collectives_ns,
            **idle,
            num_kernels=int((begun & ~self._is_copy).sum()),
            num_copies=int((begun & self._is_copy).sum()),
            copied_bytes=int(known.sum()) if len(known) else None,
            all_communication_ns=self._covered(collective, start, end),
            all_copy_ns=self._covered(copy, start, end),
            queue_depth=self._queue_depth(begun, end - start),
        )

    def _queue_depth(self, begun: NDArray[np.bool_], wall_ns: int) -> float | None:
        """Mean number of launched pieces of work that had not begun yet."""
        linked = begun & (self._launched != ABSENT)
        if not linked.any() or wall_ns <= 0:
            return None
        waited = np.maximum(self._starts[linked] - self._launched[linked], 0)
        return float(waited.sum()) / wall_ns

    def _covered(self, chosen: NDArray[np.bool_], start: int, end: int) -> int:
        return covered(*clipped(self._starts[chosen], self._ends[chosen], start, end))

    def _idle(self, start: int, end: int) -> dict[str, int]:
        """Idle time by its cause."""
        begin, finish = gaps(self._starts, self._ends, start, end)
        # What ended the gap: the work that starts then, or the next one after the step.
        following = np.searchsorted(self._starts, finish)
        has_next = following < len(self._starts)
        launched = np.full(len(begin), ABSENT, dtype=np.int64)
        launched[has_next] = self._launched[following[has_next]]
        unexplained = has_next & (launched == ABSENT)
        # After the last work nothing was launched: the device waits for the host to the end.
        until = np.where(has_next, np.clip(launched, begin, finish), finish)
        until[unexplained] = begin[unexplained]
        kept = until > begin
        waited = begin[kept], until[kept]
        loading = clipped(*self._loading, start, end)
        # The first gap follows the end of the step before, in which every profiler waits.
        is_after_wait = (begin > start) & self._is_in_wait(begin)
        behind = begin[kept & is_after_wait], until[kept & is_after_wait]
        free = begin[kept & ~is_after_wait], until[kept & ~is_after_wait]
        waiting = clipped(*self._waiting, start, end)
        loading_ns = shared(*waited, *loading)
        # In a call that waits and does not load.
        waiting_ns = shared(*free, *_both(waiting, loading)) - shared(*free, *loading)
        behind_ns = int((behind[1] - behind[0]).sum()) - shared(*behind, *loading)
        waited_ns = int((waited[1] - waited[0]).sum())
        synchronising_ns = waiting_ns + behind_ns
        return {
            "loading_ns": loading_ns,
            "host_bound_ns": waited_ns - loading_ns - synchronising_ns,
            "synchronising_ns": synchronising_ns,
            "latency_ns": int((finish - until)[~unexplained].sum()),
            "unexplained_ns": int((finish - begin)[unexplained].sum()),
        }

    def _is_in_wait(self, moments: Times) -> NDArray[np.bool_]:
        """Whether the host was in a synchronising call at each of these moments."""
        starts, ends = merged(*self._waiting)
        if len(starts) == 0:
            return np.zeros(len(moments), dtype=np.bool_)
        place = np.searchsorted(starts, moments, side="right") - 1
        return (place >= 0) & (ends[place] >= moments)


def _times(trace: Trace, rows: NDArray[np.intp]) -> tuple[Times, Times]:
    return trace.start_ns[rows], trace.end_ns[rows]


def _both(some: tuple[Times, Times], others: tuple[Times, Times]) -> tuple[Times, Times]:
    return np.concatenate((some[0], others[0])), np.concatenate((some[1], others[1]))
