"""Where the time of a trace went: kernels, their classes, and operators."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.traces.enclosure import Enclosure, enclose, nearest
from workbench.traces.grouping import grouped
from workbench.traces.intervals import covered
from workbench.traces.kernels import KernelClass, kernel_class, short_name
from workbench.traces.links import Links, link, origins
from workbench.traces.trace import ABSENT, Trace
from workbench.traces.vocabulary import CATEGORIES, Category
from workbench.traces.work import device_work


@dataclass(frozen=True, kw_only=True)
class DeviceTime:
    """How long a device worked.

    `busy_ns` is when at least one stream did; `work_ns` adds up all work, so it is more where
    streams overlap. `span_ns` goes from the first work to the end of the last. `num_clipped`
    were recorded as lasting beyond the next launch on their stream, and count until then.
    """

    device: int | None
    num: int
    work_ns: int
    busy_ns: int
    span_ns: int
    num_clipped: int


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """All calls of one kernel (or kind of copy). `share` is of the device's work, 0 to 1.

    `occupancy` is the mean over time of what the profiler estimated, 0 to 1; `num_bytes` what
    copies and fills moved. None where that is not recorded.
    """

    name: str
    short: str
    kind: KernelClass
    category: Category
    num: int
    total_ns: int
    least_ns: int
    most_ns: int
    share: float
    occupancy: float | None
    num_bytes: int | None

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second that were moved."""
        return self.num_bytes * 1e9 / self.total_ns if self.num_bytes and self.total_ns else None


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """All calls of one operator, or of one with one set of operands.

    `shape` is the text of those (`f32[8, 64]`); None where they are not recorded, or where the
    row is of all of them.

    `host_ns` is the time of its calls, `self_ns` without the operators, frames and launches
    inside. `device_self_ns` is work that it launched itself, `device_ns` with what the operators
    inside it launched. Of operators inside one of their own name only the outer counts in
    `host_ns` and `device_ns`.
    """

    name: str
    shape: str | None
    num: int
    host_ns: int
    self_ns: int
    device_ns: int
    device_self_ns: int


def device_times(trace: Trace) -> tuple[DeviceTime, ...]:
    """Busy time of each device that worked, in the order of their numbers."""
    work = device_work(trace)
    numbers = trace.device[work.rows]
    found = []
    for device in np.unique(numbers):
        mine = numbers == device
        starts, ends = work.starts[mine], work.ends[mine]
        found.append(
            DeviceTime(
                device=None if device == ABSENT else int(device),
                num=len(starts),
                work_ns=int(trace.duration_ns[work.rows[mine]].sum()),
                busy_ns=covered(starts, ends),
                span_ns=int(ends.max() - starts.min()),
                num_clipped=int(work.is_clipped[mine].sum()),
            )
        )
    return tuple(found)


def kernel_rows(trace: Trace) -> tuple[KernelRow, ...]:
    """Kernels, copies and fills by name, the longest in total first."""
    rows = trace.device_rows
    num_categories = len(CATEGORIES)
    keys = trace.name[rows].astype(np.int64) * num_categories + trace.category[rows]
    sums = grouped(keys, trace.duration_ns[rows])
    all_ns = int(sums.total.sum())
    made = []
    columns = (sums.key, sums.num, sums.total, sums.least, sums.most)
    for key, num, total, least, most, occupancy, num_bytes in zip(
        *(column.tolist() for column in columns),
        _occupancies(trace, rows, keys, sums.key),
        _moved(trace, rows, keys, sums.key),
        strict=True,
    ):
        number, code = divmod(key, num_categories)
        name, category = trace.names[number], CATEGORIES[code]
        made.append(
            KernelRow(
                name=name,
                short=short_name(name) if category == "kernel" else name,
                kind=kernel_class(name) if category == "kernel" else "copy",
                category=category,
                num=num,
                total_ns=total,
                least_ns=least,
                most_ns=most,
                share=total / all_ns if all_ns else 0.0,
                occupancy=occupancy,
                num_bytes=num_bytes,
            )
        )
    return tuple(sorted(made, key=lambda row: (-row.total_ns, row.name)))


def _occupancies(
    trace: Trace, rows: NDArray[np.intp], keys: NDArray[np.int64], wanted: NDArray[np.int64]
) -> list[float | None]:
    """For each wanted key the mean occupancy over the time of its rows, 0 to 1."""
    found = trace.occupancy.of(rows).astype(np.float64) / 100
    known = ~np.isnan(found)
    place = np.searchsorted(wanted, keys[known])
    weight = trace.duration_ns[rows[known]].astype(np.float64)
    weights = np.bincount(place, weight, minlength=len(wanted))
    sums = np.bincount(place, found[known] * weight, minlength=len(wanted))
    return [
        float(total / each) if each else None for total, each in zip(sums, weights, strict=True)
    ]


def _moved(
    trace: Trace, rows: NDArray[np.intp], keys: NDArray[np.int64], wanted: NDArray[np.int64]
) -> list[int | None]:
    """For each wanted key the bytes that its rows moved."""
    found = trace.num_bytes.of(rows)
    known = found != ABSENT
    sums = grouped(keys[known], found[known])
    moved = dict(zip(sums.key.tolist(), sums.total.tolist(), strict=True))
    return [moved.get(key) for key in wanted.tolist()]


def class_times(rows: tuple[KernelRow, ...]) -> dict[KernelClass, int]:
    """Nanoseconds of each class of kernels, the longest first."""
    sums: dict[KernelClass, int] = defaultdict(int)
    for row in rows:
        sums[row.kind] += row.total_ns
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def operator_rows(
    trace: Trace,
    links: Links | None = None,
    enclosure: Enclosure | None = None,
    *,
    by_shape: bool = False,
) -> tuple[OperatorRow, ...]:
    """Operators by name, those with the longest device time first, then by their own time.

    With `by_shape` by name and operands.
    """
    links = links or link(trace)
    enclosure = enclosure or enclose(trace)
    chosen = np.isin(enclosure.rows, trace.rows("operator"))
    rows = enclosure.rows[chosen]
    if len(rows) == 0:
        return ()
    shapes = trace.shape.of(rows).astype(np.int64) if by_shape else np.full(len(rows), ABSENT)
    num_shapes = len(trace.shapes) + 1
    kinds, kind = np.unique(
        trace.name[rows].astype(np.int64) * num_shapes + shapes + 1, return_inverse=True
    )
    kind_of = np.full(len(trace), ABSENT, dtype=np.int64)
    kind_of[rows] = kind
    calls = grouped(kind, enclosure.self_ns[chosen])
    host_ns = np.zeros(len(kinds), dtype=np.int64)
    outer = ~_inside_its_own_kind(kind_of, enclosure, rows, trace)
    np.add.at(host_ns, kind[outer], trace.duration_ns[rows[outer]])
    own_ns, all_ns = _device_ns(trace, links, enclosure, kind_of, len(kinds))
    made = []
    for number, (num, self_ns) in enumerate(
        zip(calls.num.tolist(), calls.total.tolist(), strict=True)
    ):
        name, shape = divmod(int(kinds[number]), num_shapes)
        made.append(
            OperatorRow(
                name=trace.names[name],
                shape=trace.shapes[shape - 1] if shape else None,
                num=num,
                host_ns=int(host_ns[number]),
                self_ns=self_ns,
                device_ns=int(all_ns[number]),
                device_self_ns=int(own_ns[number]),
            )
        )
    return tuple(sorted(made, key=lambda r: (-r.device_self_ns, -r.self_ns, r.name, r.shape or "")))


def _operator_above(trace: Trace, enclosure: Enclosure) -> NDArray[np.intp]:
    """For each row of the trace the closest operator around it, itself left out, or -1."""
    above = np.full(len(trace), ABSENT, dtype=np.intp)
    parents = enclosure.parent.copy()
    inside = np.flatnonzero(parents != ABSENT)
    parents[inside] = nearest(trace, enclosure, parents[inside], "operator")
    above[enclosure.rows] = parents
    return above


def _inside_its_own_kind(
    kind_of: NDArray[np.int64], enclosure: Enclosure, rows: NDArray[np.intp], trace: Trace
) -> NDArray[np.bool_]:
    """Whether an operator of the same kind lies around each of these operators."""
    above = _operator_above(trace, enclosure)
    found = np.zeros(len(rows), dtype=np.bool_)
    around = above[rows]
    while True:
        climbing = np.flatnonzero((around != ABSENT) & ~found)
        if len(climbing) == 0:
            return found
        found[climbing] = kind_of[around[climbing]] == kind_of[rows[climbing]]
        around[climbing] = above[around[climbing]]


def _device_ns(
    trace: Trace,
    links: Links,
    enclosure: Enclosure,
    kind_of: NDArray[np.int64],
    num_kinds: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Device time by the kind of the launching operator, and by all kinds around the launch."""
    own_ns = np.zeros(num_kinds, dtype=np.int64)
    all_ns = np.zeros(num_kinds, dtype=np.int64)
    operator = origins(trace, links, enclosure).operator
    known = operator != ABSENT
    work, operator = links.work[known], operator[known]
    np.add.at(own_ns, kind_of[operator], trace.duration_ns[work])
    above = _operator_above(trace, enclosure)
    pairs = []
    index = np.arange(len(work))
    while len(index):
        pairs.append(index * num_kinds + kind_of[operator])
        operator = above[operator]
        index, operator = index[operator != ABSENT], operator[operator != ABSENT]
    if pairs:
        # Once a kind, however often it lies around a launch.
        index, kinds = np.divmod(np.unique(np.concatenate(pairs)), num_kinds)
        np.add.at(all_ns, kinds, trace.duration_ns[work[index]])
    return own_ns, all_ns
