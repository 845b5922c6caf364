"""What a file is shows its content; what is wrong with it is counted."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import numpy as np
import pytest

from tests.traces.generator import BASE_NS, complete, kernel, launch, write
from workbench.core.errors import LoadError, UnsupportedFormatError
from workbench.traces.blocks import Blocks
from workbench.traces.opening import open_trace
from workbench.traces.trace import Trace


def test_times_start_at_the_files_base(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel("k", 1.5, 2.25)], baseTimeNanoseconds=BASE_NS)
    trace = open_trace(path)
    assert trace.start_ns.tolist() == [BASE_NS + 1_500]
    assert trace.duration_ns.tolist() == [2_250]
    assert trace.header["baseTimeNanoseconds"] == BASE_NS


def test_a_base_that_stands_after_the_events_counts_too(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = json.dumps([kernel("k", 1, 2)])
    path.write_text(f'{{"traceEvents": {events}, "baseTimeNanoseconds": {BASE_NS}}}')
    assert open_trace(path).start_ns.tolist() == [BASE_NS + 1_000]


def test_a_bare_list_and_a_gzipped_file_open_whatever_they_are_called(tmp_path: Path) -> None:
    events = [launch(0, 1, correlation=1), kernel("k", 2, 3, correlation=1)]
    bare = tmp_path / "a.txt"
    bare.write_text(json.dumps(events))
    packed = tmp_path / "b.json"
    packed.write_bytes(gzip.compress(bare.read_bytes()))
    for path in (bare, packed):
        trace = open_trace(path)
        assert trace.counts() == {"runtime": 1, "kernel": 1}
        assert trace.reading.is_whole


def test_old_and_new_names_of_categories_are_one(tmp_path: Path) -> None:
    old = [complete(cat, cat, 0, 1) for cat in ("Operator", "Runtime", "Kernel", "Memcpy")]
    new = [complete(cat, cat, 0, 1) for cat in ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy")]
    counts = [open_trace(write(tmp_path / "t.json", events)).counts() for events in (old, new)]
    assert counts[0] == counts[1]
    assert list(counts[0].values()) == [1, 1, 1, 1]


def test_in_old_files_process_and_thread_are_device_and_stream(tmp_path: Path) -> None:
    old = complete("Kernel", "k", 0, 1, pid=3, tid="20")
    trace = open_trace(write(tmp_path / "t.json", [old]))
    assert (trace.device.tolist(), trace.stream.tolist()) == ([3], [20])


def test_times_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "as strings", "1.5", "2"),
        complete("cpu_op", "negative", 3, -4),
        complete("cpu_op", "zero", 5, 0),
        complete("cpu_op", "no duration", 6, 1),
        complete("cpu_op", "no start", 7, 1),
    ]
    del events[3]["dur"]
    events[4]["ts"] = None
    trace = open_trace(write(tmp_path / "t.json", events))
    assert [trace.names[name] for name in trace.name] == [event["name"] for event in events[:4]]
    assert trace.start_ns.tolist() == [1_500, 3_000, 5_000, 6_000]
    assert trace.duration_ns.tolist() == [2_000, 0, 0, 0]
    reading = trace.reading
    assert (reading.num_without_time, reading.num_without_duration) == (1, 1)
    assert reading.num_negative_durations == 1
    assert not reading.is_whole


def test_identifiers_that_are_absent_are_minus_one(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t.json", [complete("cpu_op", "x", 0, 1)]))
    for column in (trace.device, trace.stream, trace.correlation, trace.external):
        assert column.tolist() == [-1]
    for sparse in (trace.num_bytes, trace.shape, trace.graph_node):
        assert sparse.of(np.array([0])).tolist() == [-1]
    assert np.isnan(trace.occupancy.of(np.array([0]))).all()


def test_marks_flows_and_frames_are_no_work_of_a_device(tmp_path: Path) -> None:
    events = [
        complete("python_function", "<module>", 0, 9),
        complete("gpu_user_annotation", "step", 0, 9, pid=0, tid=7),
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "f", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 2, "bp": "e"},
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9, "s": "g"},
        kernel("k", 2, 3),
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    assert trace.device_rows.tolist() == [2]
    assert (trace.reading.num_flows, trace.reading.num_marks) == (2, 1)
    assert trace.ordinal.tolist() == [0, 1, 5]


def test_lanes_carry_the_names_that_the_file_gives_them(tmp_path: Path) -> None:
    hostile = "<b>\"'\n🙂"
    events = [
        complete("cpu_op", hostile, 0, 1, pid=5, tid=6),
        {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": {"name": hostile}},
        {"ph": "M", "name": "thread_name", "pid": 5, "tid": 6, "args": {"name": "main"}},
        {"ph": "M", "name": "process_labels", "pid": 5, "tid": 0, "args": {"labels": "CPU"}},
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    (lane,) = trace.lanes
    assert (lane.process, lane.thread) == ("5", "6")
    assert (lane.process_name, lane.thread_name, lane.labels) == (hostile, "main", "CPU")
    assert trace.names == (hostile,)


def test_memory_is_read_as_it_was_allocated(tmp_path: Path) -> None:
    def block(start_us: float, num_bytes: int, total: int) -> dict[str, object]:
        arguments = {"Bytes": num_bytes, "Addr": 4096, "Device Type": 1, "Device Id": 0}
        arguments |= {"Total Allocated": total, "Total Reserved": 2048}
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
        return event | {"ts": start_us, "s": "t", "args": arguments}

    memory = open_trace(write(tmp_path / "t.json", [block(1, 512, 512), block(2, -512, 0)])).memory
    assert memory.time_ns.tolist() == [1_000, 2_000]
    assert memory.num_bytes.tolist() == [512, -512]
    assert memory.allocated_bytes.tolist() == [512, 0]
    assert memory.on_device.all()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x80\x04\x95", "damaged pickle"),
        (b"hello", "no trace"),
        (b"\x1f\x8b\x08 and no more gzip", "the gzip data"),
        (b'{"model": 1}', "no trace"),
        (b'{"deep": {"traceEvents": []}}', "no trace"),
        (b"[1, 2, 3]", "none of its 1 entries is an event"),
        (b'[{"a": 1}, {"b": 2}]', "none of its 2 entries is an event"),
    ],
)
def test_something_else_is_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(UnsupportedFormatError, match=rf"some\.json.*{words}"):
        open_trace(path)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no file"):
        open_trace(tmp_path / "nothing.json")
    with pytest.raises(LoadError, match="folder"):
        open_trace(tmp_path)


def test_a_trace_without_events_is_empty_and_whole(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t.json", []))
    assert len(trace) == len(trace.memory) == 0
    assert trace.reading.is_whole


@pytest.mark.parametrize(
    ("broken", "num_mended", "num_dropped"),
    [
        (b'"name": "a\\qb"', 1, 0),
        (b'"name": "a\xffb"', 1, 0),
        (b'"name": "a\x01b"', 1, 0),
        (b'"name": "a\\ud83d b"', 1, 0),
        (b'"name": "a\\ud83d\\ude00\\udc00"', 1, 0),
        (b'"name": N/A', 1, 0),
        (b'"name": -nan', 1, 0),
        (b'"name": "a"b"', 0, 1),
        (b'"name": ', 0, 1),
    ],
)
def test_a_bad_event_costs_itself(
    tmp_path: Path, broken: bytes, num_mended: int, num_dropped: int
) -> None:
    text = json.dumps({"traceEvents": [kernel(name, 1, 2) for name in ("x", "bad", "y")]}).encode()
    path = tmp_path / "t.json"
    path.write_bytes(text.replace(b'"name": "bad"', broken))
    trace = open_trace(path)
    assert trace.reading.num_mended == num_mended
    assert trace.reading.num_dropped == num_dropped
    names = [trace.names[name] for name in trace.name]
    assert (names[0], names[-1]) == ("x", "y")
    assert len(names) == 3 - num_dropped


def test_a_mended_last_event_still_ends_its_list(tmp_path: Path) -> None:
    events = json.dumps([kernel("x", 1, 2), kernel("bad", 3, 4)]).encode()
    path = tmp_path / "t.json"
    broken = events.replace(b'"bad"', b'"a\\q\xff"')
    path.write_bytes(b'{"traceEvents": ' + broken + b', "baseTimeNanoseconds": 5}')
    trace = open_trace(path)
    assert trace.start_ns.tolist() == [1_005, 3_005]
    assert (trace.reading.num_mended, trace.reading.notes) == (1, ())


def test_a_file_that_was_cut_gives_what_came_before(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [kernel(str(n), n, 1) for n in range(50)]}).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text)[:-40])
    trace = open_trace(path)
    assert 0 < len(trace) < 50
    assert np.array_equal(trace.start_ns, np.arange(len(trace)) * 1000)
    assert any("before their end mark" in note for note in trace.reading.notes)


def test_a_gzip_file_of_several_members_is_one(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"a" * 100_000) + gzip.compress(b"b" * 10) + b"\0" * 8)
    blocks = Blocks(path, block_bytes=1_000)
    assert b"".join(blocks) == b"a" * 100_000 + b"b" * 10
    assert blocks.fault is None


def test_a_gzip_file_of_one_huge_run_comes_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"\0" * 5_000_000))
    sizes = [len(block) for block in Blocks(path, block_bytes=100_000)]
    assert sum(sizes) == 5_000_000
    assert max(sizes) <= 100_000


def test_an_event_with_many_objects_inside_is_whole(tmp_path: Path) -> None:
    shapes = [{"float": [1, n]} for n in range(300)]
    events = [kernel("x", 1, 2), complete("cpu_op", "Concat", 3, 4, input_type_shape=shapes)]
    reading = open_trace(write(tmp_path / "t.json", events)).reading
    assert (reading.num_events, reading.num_dropped) == (2, 0)


@pytest.mark.parametrize("time", ['"1e999999"', "1e400", "-9e30", '"nan"', "99999999999999999999"])
def test_a_time_that_no_clock_shows_is_none(tmp_path: Path, time: str) -> None:
    text = json.dumps([kernel("x", 1, 2), kernel("y", 77777, 2)]).replace("77777", time)
    path = tmp_path / "t.json"
    path.write_text(text)
    trace = open_trace(path)
    assert len(trace) == 1
    assert trace.reading.num_without_time == 1


@pytest.mark.parametrize("place", ["event", "header", "tail"])
def test_deep_nesting_costs_what_is_nested(tmp_path: Path, place: str) -> None:
    deep = "[" * 100_000
    event = json.dumps(kernel("x", 1, 2))
    texts = {
        "event": f'[{event}, {{"ph": "X", "args": {deep}}}, {event}]',
        "header": f'{{"x": {deep}, "traceEvents": [{event}, {event}]}}',
        "tail": f'{{"traceEvents": [{event}, {event}], "x": {deep}}}',
    }
    path = tmp_path / "t.json"
    path.write_text(texts[place])
    trace = open_trace(path)
    assert len(trace) == 2
    assert not trace.reading.is_whole


def test_what_follows_the_events_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.traces.events._MAX_HEADER_BYTES", 1000)
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [kernel("x", 1, 2)], "x": "a" * 10_000}))
    monkeypatch.setattr("workbench.traces.opening.Blocks", lambda path: Blocks(path, 500))
    reading = open_trace(path).reading
    assert reading.num_events == 1
    assert reading.notes == ("what follows the events is too long to be read",)


def test_many_small_members_of_a_gzip_file_are_unpacked_in_time(tmp_path: Path) -> None:
    text = json.dumps([kernel(f"k{n}", n, 1) for n in range(400)]).encode()
    members = [gzip.compress(text[place : place + 5]) for place in range(0, len(text), 5)]
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"".join(members))
    assert len(open_trace(path)) == 400


@pytest.mark.parametrize(
    "damage", ['"Input Dims": [[8, 64, 1024], [1024]', '"name": "a "quoted" word']
)
def test_many_bad_events_are_given_up_in_time(tmp_path: Path, damage: str) -> None:
    """What is wrong before its end is not tried again with all that follows it."""
    good = json.dumps(complete("cpu_op", "aten::add", 1, 1, Ev_Idx=1))
    bad = good.replace('"args": {', '"args": {' + damage + (", " if damage[-1] == "]" else ""))
    assert bad != good
    num = 4_000
    path = tmp_path / "bad.json"
    path.write_text('{"traceEvents": [' + ",\n".join([good, bad] * num) + "]}")
    begun_s = time.monotonic()
    found = open_trace(path, cached=False)
    assert time.monotonic() - begun_s < 30.0
    assert isinstance(found, Trace)
    assert (found.reading.num_events, found.reading.num_dropped) == (num, num)


@pytest.mark.parametrize(
    ("text", "num_read", "num_dropped"),
    [
        # A vertical tab is no blank of JSON; it stands where one may.
        ("[{0},\x0b {0}]", 2, 0),
        # A kind of event that is no text.
        ('[{{"ph": {{}}, "name": "x"}}, {0}]', 2, 0),
        # The list ends after its first event, which is not at the begin of the text.
        ("[\n {0}],\n {0}]", 1, 0),
        ("[\n  ", 0, 0),
    ],
)
def test_what_damaging_traces_at_random_found(
    tmp_path: Path, text: str, num_read: int, num_dropped: int
) -> None:
    path = tmp_path / "t.json"
    path.write_text(text.format(json.dumps(kernel("x", 1, 2))))
    reading = open_trace(path, cached=False).reading
    assert (reading.num_events, reading.num_dropped) == (num_read, num_dropped)
