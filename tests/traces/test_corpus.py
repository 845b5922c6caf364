"""Real traces add up to what the oracle says, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.corpus import KINETO, ROOT, each_kineto_file, needs_corpus
from tests.traces.oracle import DEVICE_WORK, totals
from workbench.core.errors import UnsupportedFormatError
from workbench.traces.events import EventStream
from workbench.traces.links import link
from workbench.traces.opening import open_trace
from workbench.traces.tables import device_times
from workbench.traces.trace import Trace

GOLDEN = Path(__file__).with_name("golden.json")


def read_totals(trace: Trace) -> dict[str, Any]:
    """The oracle's totals, from the columns."""
    by_category = {
        name: [num, int(trace.duration_ns[trace.rows(name)].sum())]
        for name, num in sorted(trace.counts().items())
    }
    by_name: dict[str, dict[str, list[int]]] = {}
    for kind in DEVICE_WORK:
        rows = trace.rows(kind)
        sums: dict[str, list[int]] = {}
        for name in np.unique(trace.name[rows]):
            mine = rows[trace.name[rows] == name]
            sums[trace.names[name]] = [len(mine), int(trace.duration_ns[mine].sum())]
        by_name[kind] = sums
    busy = {str(one.device): one.busy_ns for one in device_times(trace)}
    memory = trace.memory
    return {
        "num_objects": trace.reading.num_events,
        "num_flows": trace.reading.num_flows,
        "first_ns": int(trace.start_ns.min()),
        "last_ns": int(trace.end_ns.max()),
        "by_category": by_category,
        "by_name": by_name,
        "busy_ns": busy,
        "num_unlinked": link(trace).num_unlinked,
        "memory": {
            "num": len(memory),
            "sum_bytes": int(memory.num_bytes.sum()),
            "peak_bytes": max(0, int(memory.allocated_bytes.max(initial=0))),
        },
    }


@each_kineto_file()
def test_totals_are_the_oracles(path: Path) -> None:
    expected = totals(path)
    trace = open_trace(path)
    assert read_totals(trace) == expected
    assert trace.reading.is_whole
    golden = json.loads(GOLDEN.read_text())[path.name]
    assert {key: expected[key] for key in golden} == golden


@each_kineto_file(at_most_bytes=100_000)
def test_where_blocks_are_cut_changes_nothing(path: Path) -> None:
    text = gzip.decompress(path.read_bytes())
    whole = [event for events in EventStream([text]) for event in events]
    for size in (1_999, 50_021):
        blocks = [text[start : start + size] for start in range(0, len(text), size)]
        stream = EventStream(blocks)
        assert [event for events in stream for event in events] == whole
        assert stream.faults.num_dropped == stream.faults.num_mended == 0


FAULTS = {
    "fault_truncated_mid_event.json": (1027, 0, 1),
    "fault_truncated.json.gz": (1566, 0, 1),
    "fault_unescaped_quote.json": (2550, 0, 1),
    "fault_control_char.json": (2551, 3, 0),
    "fault_bad_utf8.json": (2551, 3, 0),
    "fault_backslash.json": (2551, 3, 0),
    "fault_trailing_empty_event.json": (2552, 0, 0),
}


@needs_corpus
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_whole_in_a_damaged_file_is_read(name: str) -> None:
    """Each was made from one trace of 2551 objects: three renamed, one broken, or one added."""
    num_read, num_mended, num_dropped = FAULTS[name]
    reading = open_trace(ROOT / "faults" / name).reading
    assert reading.num_events == num_read
    assert reading.num_mended == num_mended
    assert reading.num_dropped == num_dropped
    assert reading.is_whole == (num_mended + num_dropped == 0)
    assert bool(reading.notes) == (num_dropped > 0)


@needs_corpus
def test_an_empty_file_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"fault_empty\.json is empty"):
        open_trace(ROOT / "faults" / "fault_empty.json")


def write_golden() -> None:
    """`python -m tests.traces.test_corpus`, where the corpus or the oracle has grown."""
    kept = ("num_objects", "num_flows", "by_category", "busy_ns", "num_unlinked", "memory")
    found = {path.name: totals(path) for path in KINETO}
    chosen = {name: {key: one[key] for key in kept} for name, one in found.items()}
    GOLDEN.write_text(json.dumps(chosen, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
