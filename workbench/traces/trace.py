"""A trace: what one profile recorded, as columns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.core.json import Json
from workbench.traces.vocabulary import CATEGORIES, CODE_OF, DEVICE_WORK, Category

if TYPE_CHECKING:
    from rich.console import RenderableType

Format = Literal["kineto", "onnxruntime"]
# In a column of identifiers: the event has none.
ABSENT = -1


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A thread of the host or a stream of a device, as the file numbers and names it."""

    process: str
    thread: str
    process_name: str | None = None
    thread_name: str | None = None
    labels: str | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """A device as the profiler described it; None where the file does not say."""

    number: int
    name: str | None = None
    memory_bytes: int | None = None
    num_multiprocessors: int | None = None
    capability: tuple[int, int] | None = None
    warp_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryEvents:
    """Allocations and frees (negative bytes) that the profiler saw, in the file's order.

    Columns of one length. `allocated_bytes` and `reserved_bytes` are the allocator's totals
    afterwards; -1 in any column where the file does not say. `on_device` is False for the host.
    `lane` is the thread that it happened on.
    """

    time_ns: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    address: NDArray[np.int64]
    on_device: NDArray[np.bool_]
    device: NDArray[np.int32]
    lane: NDArray[np.int32]
    allocated_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """A column that few events have: `values[k]` is of row `rows[k]`; rows ascend."""

    rows: NDArray[np.uint32]
    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """The values of these rows; -1, or NaN in a column of floats, where one has none."""
        absent = np.nan if self.values.dtype.kind == "f" else ABSENT
        found = np.full(len(rows), absent, dtype=self.values.dtype)
        if len(self.rows) == 0:
            return found
        place = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        known = self.rows[place] == rows
        found[known] = self.values[place[known]]
        return found


class Place(NamedTuple):
    """Where a run of events stands in a file's unpacked content, in bytes."""

    first_ordinal: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """The file that a trace was read from, and where its events stand in it."""

    path: str
    num_bytes: int
    modified_ns: int
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file was read: what it held beside the events, and what was wrong with it."""

    num_events: int
    num_flows: int = 0
    num_marks: int = 0
    num_without_time: int = 0
    num_without_duration: int = 0
    num_negative_durations: int = 0
    num_empty: int = 0
    num_not_understood: int = 0
    num_mended: int = 0
    num_dropped: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether everything in the file was read as it stands."""
        return not (self.num_mended or self.num_dropped or self.num_without_time or self.notes)


@dataclass(frozen=True, kw_only=True, repr=False)
class Trace:
    """Events with a duration, as columns of one length in the file's order.

    `start_ns` counts from 1970 where the file says so, else from an origin of its own.
    `category` indexes `vocabulary.CATEGORIES`, `name` indexes `names`, `lane` indexes `lanes`.
    `device` and `stream` are given for work of a device and for calls that name one;
    `correlation` ties a launch to its kernels, `external` a launch to its operator. All of
    these are -1 where absent. `ordinal` counts all objects of the file's list, so that the rest
    of an event can be found again. Of an ONNX Runtime profile `name` is a node's type and `node`
    indexes `names` for the node's own; None elsewhere.

    What few events have is sparse: `num_bytes` of copies; `shape`, which indexes `shapes`, of
    operators whose operands were recorded; `occupancy` of kernels, in percent, as the profiler
    estimated it; `graph_node` of kernels in a replayed graph; `code` of generated kernels, the
    hash of their source, which indexes `names`.
    """

    format: Format
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    category: NDArray[np.uint8]
    name: NDArray[np.int32]
    lane: NDArray[np.int32]
    device: NDArray[np.int16]
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    external: NDArray[np.int64]
    ordinal: NDArray[np.uint32]
    num_bytes: Sparse
    shape: Sparse
    occupancy: Sparse
    graph_node: Sparse
    code: Sparse
    names: tuple[str, ...]
    shapes: tuple[str, ...]
    lanes: tuple[Lane, ...]
    memory: MemoryEvents
    devices: tuple[DeviceProperties, ...]
    reading: Reading
    source: Source | None = None
    node: NDArray[np.int32] | None = None
    header: dict[str, Json] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def title(self) -> str:
        """The file's name; the format where there is none."""
        return Path(self.source.path).name if self.source is not None else self.format

    def __repr__(self) -> str:
        return f"<Trace {self.title}: {len(self):,} events>"

    def __rich__(self) -> RenderableType:
        from workbench.traces.summary import summarise
        from workbench.traces.summary_tables import tables

        return tables(summarise(self, self.title))

    def _repr_html_(self) -> str:
        from workbench.traces.summary_tables import html

        return html(self.__rich__())

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """When each event ended."""
        return self.start_ns + self.duration_ns

    @property
    def num_stored_bytes(self) -> int:
        """What all columns take, those of memory included."""
        total = 0
        for holder in (self, self.memory):
            for one in fields(holder):
                value = getattr(holder, one.name)
                if isinstance(value, np.ndarray):
                    total += value.nbytes
                elif isinstance(value, Sparse):
                    total += value.rows.nbytes + value.values.nbytes
        return total

    def rows(self, *categories: Category) -> NDArray[np.intp]:
        """The events of these categories, in the file's order."""
        wanted = [CODE_OF[category] for category in categories]
        return np.flatnonzero(np.isin(self.category, wanted))

    @property
    def device_rows(self) -> NDArray[np.intp]:
        """Kernels, copies and fills."""
        return self.rows(*DEVICE_WORK)

    def counts(self) -> dict[Category, int]:
        """How many events there are of each category that occurs."""
        found = np.bincount(self.category, minlength=len(CATEGORIES))
        return {name: int(num) for name, num in zip(CATEGORIES, found, strict=True) if num}
