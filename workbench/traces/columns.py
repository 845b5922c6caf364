"""From events as they are written to the columns of a trace."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.json import Json
from workbench.traces.described import Operands
from workbench.traces.events import Arguments, Event, Faults
from workbench.traces.numbers import nanoseconds, whole_number
from workbench.traces.trace import (
    ABSENT,
    DeviceProperties,
    Lane,
    MemoryEvents,
    Reading,
    Source,
    Sparse,
    Trace,
)
from workbench.traces.values import (
    Growing,
    Numbering,
    as_text,
    real_numbers,
    renumbered,
    whole_numbers,
    whole_or_absent,
)
from workbench.traces.vocabulary import (
    CODE_OF,
    DEVICE_WORK,
    ONNXRUNTIME_CATEGORIES,
    category_of,
)

_COLUMNS: dict[str, type[np.generic]] = {
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "category": np.uint8,
    "name": np.int32,
    "lane": np.int32,
    "device": np.int16,
    "stream": np.int64,
    "correlation": np.int64,
    "external": np.int64,
    "ordinal": np.uint32,
    "node": np.int32,
}
_SPARSE_COLUMNS: dict[str, type[np.generic]] = {
    "num_bytes": np.int64,
    "shape": np.int32,
    "occupancy": np.float32,
    "graph_node": np.int64,
    "code": np.int32,
}
_MEMORY_COLUMNS: dict[str, type[np.generic]] = {
    "time_ns": np.int64,
    "num_bytes": np.int64,
    "address": np.int64,
    "on_device": np.bool_,
    "device": np.int32,
    "lane": np.int32,
    "allocated_bytes": np.int64,
    "reserved_bytes": np.int64,
}
# The counts of a Reading that are taken here.
_COUNTED = (
    "events",
    "flows",
    "marks",
    "without_time",
    "without_duration",
    "negative_durations",
    "empty",
    "not_understood",
)
_NO_ARGUMENTS = Arguments()
_MEMORY = "[memory]"
_NODE_TIME = "_kernel_time"
_FENCES = ("_fence_before", "_fence_after")
# Files of 2021 write these spans as operators.
_SPANS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")
_COPY = re.compile(r"^Memcpy|^Memset")
# Beyond these nanoseconds (127 and 3 years) sums of times would not fit their type.
_LATEST_NS = 4 * 10**18
_LONGEST_NS = 10**17
_FLOWS = frozenset("stf")
_DEVICE_CODES = np.array([CODE_OF[name] for name in DEVICE_WORK], dtype=np.uint8)
_LARGEST_DEVICE = np.iinfo(np.int16).max


class Columns:
    """Takes events block by block; `trace` makes the Trace."""

    def __init__(self) -> None:
        self._columns = {name: Growing(kind) for name, kind in _COLUMNS.items()}
        self._memory = {name: Growing(kind) for name, kind in _MEMORY_COLUMNS.items()}
        self._sparse = {
            name: (Growing(np.uint32), Growing(kind)) for name, kind in _SPARSE_COLUMNS.items()
        }
        self._num_rows = 0
        # By what the file writes, of whatever type.
        self._names = Numbering()
        self._categories = Numbering()
        self._lanes = Numbering()
        self._operands = Operands()
        self._labels: dict[tuple[str, str, str | None], str] = {}
        self._num = dict.fromkeys(_COUNTED, 0)

    def add(self, events: list[Event]) -> None:
        """Take the next events of the file."""
        is_complete = np.array([event.ph == "X" for event in events], dtype=np.bool_)
        ordinals = np.flatnonzero(is_complete) + self._num["events"]
        self._num["events"] += len(events)
        if is_complete.any():
            self._add_complete([event for event in events if event.ph == "X"], ordinals)
        if not is_complete.all():
            self._add_others([event for event in events if event.ph != "X"])

    def _add_complete(self, events: list[Event], ordinals: NDArray[np.intp]) -> None:
        start_ns, has_start = nanoseconds([event.ts for event in events])
        has_start &= np.abs(start_ns) <= _LATEST_NS
        if not has_start.all():
            self._num["without_time"] += int((~has_start).sum())
            kept = [event for event, known in zip(events, has_start, strict=True) if known]
            if kept:
                self._add_complete(kept, ordinals[has_start])
            return
        duration_ns, has_duration = nanoseconds([event.dur for event in events])
        has_duration &= duration_ns <= _LONGEST_NS
        duration_ns[~has_duration] = 0
        self._num["without_duration"] += int((~has_duration).sum())
        self._num["negative_durations"] += int((duration_ns < 0).sum())
        written = self._categories.of([event.cat for event in events])
        codes = [CODE_OF[category_of(as_text(cat))] for cat in self._categories]
        category = np.array(codes, dtype=np.uint8)[written]
        arguments = [event.args or _NO_ARGUMENTS for event in events]
        names = self._names.of([event.name for event in events])
        nodes = np.full(len(events), ABSENT)
        for place, one in enumerate(arguments if self._is_onnxruntime else ()):
            # Kernels of a device bear their operator's type too, and keep their name.
            if isinstance(one.op_name, str) and category[place] == CODE_OF["operator"]:
                name = as_text(events[place].name)
                if name.endswith(_FENCES):
                    # The waits around a node are written as nodes of its type.
                    category[place] = CODE_OF["other"]
                node = name.removesuffix(_NODE_TIME)
                names[place], nodes[place] = self._names[one.op_name], self._names[node]
        external = whole_numbers([a.external for a in arguments])
        external_old = whole_numbers([a.external_old for a in arguments])
        device = whole_numbers([a.device for a in arguments])
        stream = whole_numbers([a.stream for a in arguments])
        # Files of 2021 number the device as the process and the stream as the thread.
        on_device = np.isin(category, _DEVICE_CODES)
        numbered = () if self._is_onnxruntime else ((device, "pid"), (stream, "tid"))
        for column, key in numbered:
            for row in np.flatnonzero(on_device & (column == ABSENT)):
                column[row] = whole_or_absent(getattr(events[row], key))
        device[(device < 0) | (device > _LARGEST_DEVICE)] = ABSENT
        found: dict[str, NDArray[Any]] = {
            "start_ns": start_ns,
            "duration_ns": np.maximum(duration_ns, 0),
            "category": category,
            "name": names,
            "lane": self._lanes.of([(event.pid, event.tid) for event in events]),
            "device": device,
            "stream": stream,
            "correlation": whole_numbers([a.correlation for a in arguments]),
            "external": np.where(external == ABSENT, external_old, external),
            "ordinal": ordinals,
            "node": nodes,
        }
        for name, grown in self._columns.items():
            grown.append(found[name])
        self._add_sparse("num_bytes", whole_numbers([a.num_bytes for a in arguments]))
        self._add_sparse("shape", self._operands.numbers(arguments, names, self._names))
        self._add_sparse("occupancy", real_numbers([a.occupancy for a in arguments]))
        self._add_sparse("graph_node", whole_numbers([a.graph_node for a in arguments]))
        self._add_sparse("code", self._numbers_of_code(arguments))
        self._num_rows += len(events)

    def _add_sparse(self, name: str, values: NDArray[Any]) -> None:
        kind = _SPARSE_COLUMNS[name]
        if values.dtype.kind == "f":
            known = ~np.isnan(values)
        else:
            # Casting to the column's type and back tells what does not fit.
            known = (values != ABSENT) & (values.astype(kind) == values)
        rows = np.flatnonzero(known)
        if len(rows):
            places, kept = self._sparse[name]
            places.append(rows + self._num_rows)
            kept.append(values[rows])

    def _numbers_of_code(self, arguments: list[Arguments]) -> NDArray[np.int64]:
        """What the hash of each event's generated code is numbered as among the names."""
        numbers = np.full(len(arguments), ABSENT, dtype=np.int64)
        for place, one in enumerate(arguments):
            if isinstance(one.kernel_hash, str) and one.kernel_hash:
                numbers[place] = self._names[one.kernel_hash]
        return numbers

    @property
    def _is_onnxruntime(self) -> bool:
        return not ONNXRUNTIME_CATEGORIES.isdisjoint(self._categories)

    def _add_others(self, events: list[Event]) -> None:
        memory = []
        for event in events:
            kind = event.ph
            if not isinstance(kind, str | None):
                self._num["not_understood"] += 1
            elif kind in _FLOWS:
                self._num["flows"] += 1
            elif kind in ("i", "I") and event.name == _MEMORY:
                memory.append(event)
            elif kind in ("i", "I"):
                self._num["marks"] += 1
            elif kind == "M":
                self._num["marks"] += 1
                self._add_label(event)
            elif kind is None and event.name is None:
                self._num["empty"] += 1
            else:
                self._num["not_understood"] += 1
        if memory:
            self._add_memory(memory)

    def _add_label(self, event: Event) -> None:
        """A name of a process or of a thread."""
        if event.args is None or not isinstance(event.name, str):
            return
        said = event.args.labels if event.name == "process_labels" else event.args.label
        if not isinstance(said, str) or not said:
            return
        thread = as_text(event.tid) if event.name == "thread_name" else None
        self._labels[event.name, as_text(event.pid), thread] = said

    def _add_memory(self, events: list[Event]) -> None:
        time_ns, has_time = nanoseconds([event.ts for event in events])
        has_time &= np.abs(time_ns) <= _LATEST_NS
        self._num["without_time"] += int((~has_time).sum())
        sizes = [_signed_size(event) for event in events]
        has_size = np.array([size is not None for size in sizes], dtype=np.bool_)
        rows = np.flatnonzero(has_time & has_size)
        arguments = [events[row].args or _NO_ARGUMENTS for row in rows]
        found: dict[str, NDArray[Any]] = {
            "time_ns": time_ns[rows],
            "num_bytes": np.array([sizes[row] for row in rows], dtype=np.int64),
            "address": whole_numbers([a.address for a in arguments]),
            # c10::DeviceType: 0 is the CPU.
            "on_device": whole_numbers([a.device_type for a in arguments]) > 0,
            "device": whole_numbers([a.device_id for a in arguments]),
            "lane": self._lanes.of([(events[row].pid, events[row].tid) for row in rows]),
            "allocated_bytes": whole_numbers([a.allocated for a in arguments]),
            "reserved_bytes": whole_numbers([a.reserved for a in arguments]),
        }
        for name, column in self._memory.items():
            column.append(found[name])

    def trace(self, header: dict[str, Json], faults: Faults, source: Source | None = None) -> Trace:
        """Everything taken so far, with the file's other keys and where it was read from."""
        columns: dict[str, Any] = {name: one.taken() for name, one in self._columns.items()}
        memory = {name: one.taken() for name, one in self._memory.items()}
        base_ns = whole_number(header.get("baseTimeNanoseconds")) or 0
        if abs(base_ns) > _LATEST_NS // 2:
            faults.notes.append(f"baseTimeNanoseconds is {base_ns}, which no clock shows: left out")
            base_ns = 0
        columns["start_ns"] += base_ns
        memory["time_ns"] += base_ns
        node = columns.pop("node")
        sparse: dict[str, Any] = {
            name: Sparse(rows=rows.taken(), values=values.taken())
            for name, (rows, values) in self._sparse.items()
        }
        shapes, sparse["shape"] = self._operands.texts(sparse["shape"])
        names, text_of = renumbered(self._names, as_text)
        lanes, lane_of = renumbered(self._lanes, _lane)
        columns["name"] = text_of[columns["name"]]
        code = sparse["code"]
        sparse["code"] = Sparse(rows=code.rows, values=text_of[code.values])
        columns["category"] = self._by_name(columns["category"], columns["name"], names)
        columns["lane"] = lane_of[columns["lane"]]
        memory["lane"] = lane_of[memory["lane"]]
        return Trace(
            format="onnxruntime" if self._is_onnxruntime else "kineto",
            **columns,
            **sparse,
            node=np.where(node == ABSENT, ABSENT, text_of[node]) if self._is_onnxruntime else None,
            names=tuple(names),
            shapes=shapes,
            lanes=tuple(self._named(*lane) for lane in lanes),
            memory=MemoryEvents(**memory),
            devices=_devices(header.get("deviceProperties")),
            reading=Reading(
                **{f"num_{name}": num for name, num in self._num.items()},
                num_mended=faults.num_mended,
                num_dropped=faults.num_dropped,
                notes=tuple(faults.notes),
            ),
            source=source,
            header={key: value for key, value in header.items() if key != "deviceProperties"},
        )

    def _by_name(
        self, category: NDArray[np.uint8], name: NDArray[np.int32], names: list[str]
    ) -> NDArray[np.uint8]:
        """The categories, put right where only an event's name says what it is."""
        is_span = np.array([text.startswith(_SPANS) for text in names], dtype=np.bool_)
        wrong = (category == CODE_OF["operator"]) & is_span[name] if len(names) else is_span
        category[wrong] = CODE_OF["annotation"]
        if self._is_onnxruntime:
            is_copy = np.array([bool(_COPY.match(text)) for text in names], dtype=np.bool_)
            category[(category == CODE_OF["kernel"]) & is_copy[name]] = CODE_OF["memcpy"]
        return category

    def _named(self, process: str, thread: str) -> Lane:
        return Lane(
            process=process,
            thread=thread,
            process_name=self._labels.get(("process_name", process, None)),
            thread_name=self._labels.get(("thread_name", process, thread)),
            labels=self._labels.get(("process_labels", process, None)),
        )


def _signed_size(event: Event) -> int | None:
    """The bytes that a memory event adds or takes away; None where it does not say."""
    if event.args is None or event.args.block_bytes is ABSENT:
        return None
    return whole_number(event.args.block_bytes)


def _lane(pair: tuple[Any, Any]) -> tuple[str, str]:
    return as_text(pair[0]), as_text(pair[1])


def _devices(described: Json) -> tuple[DeviceProperties, ...]:
    if not isinstance(described, list):
        return ()
    found = []
    for one in described:
        if not isinstance(one, dict):
            continue
        number = whole_number(one.get("id"))
        if number is None:
            continue
        major, minor = whole_number(one.get("computeMajor")), whole_number(one.get("computeMinor"))
        name = one.get("name")
        found.append(
            DeviceProperties(
                number=number,
                name=name if isinstance(name, str) and name else None,
                memory_bytes=whole_number(one.get("totalGlobalMem")),
                num_multiprocessors=whole_number(one.get("numSms")),
                capability=None if major is None or minor is None else (major, minor),
                warp_size=whole_number(one.get("warpSize")),
            )
        )
    return tuple(found)
