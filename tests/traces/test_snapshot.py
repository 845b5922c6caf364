"""Memory snapshots: plain data, or nothing."""

from __future__ import annotations

import gzip
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.traces.corpus import ROOT, needs_corpus
from workbench.core.errors import UnsupportedFormatError, UntrustedFileError
from workbench.traces.live import before_bytes, live_at, peak
from workbench.traces.opening import open_trace
from workbench.traces.pools import pools
from workbench.traces.snapshot import Frame, Snapshot

SNAPSHOTS = sorted((ROOT / "snapshots").glob("*.pickle"))
MB = 1 << 20


def frames(name: str) -> list[dict[str, Any]]:
    return [{"name": name, "filename": "model.py", "line": 7}]


def event(action: str, address: int, size: int, time_us: int, name: str = "f") -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "frames": frames(name),
    }


def segment(address: int, blocks: list[tuple[int, str]], **more: Any) -> dict[str, Any]:
    made = []
    at = address
    for size, state in blocks:
        made.append({"address": at, "size": size, "requested_size": size, "state": state})
        at += size
    total = at - address
    return {"device": 0, "address": address, "total_size": total, "blocks": made, **more}


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """4 MB of weights from before; activations of 3 and 2 MB, of which the 3 are freed."""
    found = {
        "segments": [segment(0, [(4 * MB, "active_allocated"), (16 * MB, "inactive")]),
                     segment(100 * MB, [(2 * MB, "active_allocated")], segment_pool_id=(0, 3))],
        "device_traces": [[
            event("alloc", 4 * MB, 3 * MB, 10, "first"),
            event("segment_alloc", 100 * MB, 2 * MB, 11),
            event("alloc", 100 * MB, 2 * MB, 12, "second"),
            event("free_requested", 4 * MB, 3 * MB, 13),
            event("free_completed", 4 * MB, 3 * MB, 14),
            event("free_completed", 8 * MB, 1 * MB, 15),
        ]],
    }  # fmt: skip
    path = tmp_path / "memory.pickle"
    path.write_bytes(pickle.dumps(found))
    opened = open_trace(path)
    assert isinstance(opened, Snapshot)
    return opened


def test_the_curve_begins_with_what_was_there_before(snapshot: Snapshot) -> None:
    assert before_bytes(snapshot, 0) == 5 * MB
    assert (snapshot.curve(0) // MB).tolist() == [8, 8, 10, 10, 7, 6]
    assert (snapshot.curve(0, reserved=True) // MB).tolist() == [20, 22, 22, 22, 22, 22]


def test_the_peak_and_what_lived_there(snapshot: Snapshot) -> None:
    top = peak(snapshot, 0)
    assert (top.num_bytes, top.event, top.time_ns) == (10 * MB, 2, 12_000)
    live = live_at(snapshot, 0, top.event)
    assert sum(block.num_bytes for block in live) == top.num_bytes
    assert [block.num_bytes // MB for block in live] == [4, 3, 2, 1]
    assert [block.frames and block.frames[0].name for block in live] == [
        None,
        "first",
        "second",
        None,
    ]


def test_before_the_first_event_only_old_memory_lives(snapshot: Snapshot) -> None:
    live = live_at(snapshot, 0, -1)
    assert [block.num_bytes // MB for block in live] == [4, 1]


def test_a_graphs_private_pool_is_named(snapshot: Snapshot) -> None:
    assert [one.pool for one in snapshot.segments] == [(0, 0), (0, 3)]


def test_a_device_without_events_holds_what_it_holds(snapshot: Snapshot) -> None:
    assert peak(snapshot, 1).num_bytes == before_bytes(snapshot, 1) == 0
    assert live_at(snapshot, 1, -1) == []


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


def test_a_pickle_that_names_a_global_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for protocol in (2, 4, 5):
        path = tmp_path / f"{protocol}.pickle"
        path.write_bytes(pickle.dumps({"segments": [_Evil()]}, protocol=protocol))
        with pytest.raises(UntrustedFileError, match=r"asks for (builtins|__builtin__)\.print"):
            open_trace(path)
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"segments": []})[:-5], "damaged pickle"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "damaged pickle"),
        (pickle.dumps([1, 2]), "no memory snapshot"),
        (pickle.dumps({"a": 1}), "no memory snapshot"),
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "some.pickle"
    path.write_bytes(content)
    with pytest.raises(UnsupportedFormatError, match=words):
        open_trace(path)


def test_entries_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    found = {
        "segments": [{"address": "x"}, 5, segment(0, [(MB, "active_allocated")])],
        "device_traces": [[{"action": "alloc"}, event("alloc", 1, 2, 3), None], "no list"],
    }
    path = tmp_path / "some.pickle"
    path.write_bytes(gzip.compress(pickle.dumps(found)))
    opened = open_trace(path)
    assert isinstance(opened, Snapshot)
    assert (len(opened), len(opened.segments), opened.num_left_out) == (1, 1, 2)


@needs_corpus
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in SNAPSHOTS])
def test_a_real_snapshot_is_what_a_loop_says(path: Path) -> None:
    found = pickle.loads(path.read_bytes())
    held = sum(
        block["requested_size"]
        for one in found["segments"]
        for block in one["blocks"]
        if block["state"].startswith("active")
    )
    steps = {"alloc": 1, "free_completed": -1}
    changes = [steps.get(one["action"], 0) * one["size"] for one in found["device_traces"][0]]
    expected, total = [], held - sum(changes)
    for change in changes:
        total += change
        expected.append(total)
    snapshot = open_trace(path)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.num_left_out == 0
    assert snapshot.curve(0).tolist() == expected
    assert min(expected) >= 0
    top = peak(snapshot, 0)
    assert top.num_bytes == max(expected)
    assert sum(block.num_bytes for block in live_at(snapshot, 0, top.event)) == top.num_bytes


def test_pools_say_what_is_in_pieces(snapshot: Snapshot) -> None:
    shared, private = pools(snapshot, 0)
    assert (shared.is_private, private.is_private) == (False, True)
    assert (shared.reserved_bytes, shared.used_bytes) == (20 * MB, 4 * MB)
    assert (shared.free_bytes, shared.stuck_bytes) == (16 * MB, 16 * MB)
    assert shared.largest_free_bytes == 16 * MB
    assert (private.reserved_bytes, private.free_bytes) == (2 * MB, 0)


def test_a_segment_that_is_all_free_can_be_given_back(tmp_path: Path) -> None:
    pieces = [(MB, "active_allocated"), (2 * MB, "inactive"), (MB, "active_allocated")]
    found = {"segments": [segment(0, [(8 * MB, "inactive")]), segment(64 * MB, pieces)]}
    path = tmp_path / "memory.pickle"
    path.write_bytes(pickle.dumps({**found, "device_traces": [[]]}))
    opened = open_trace(path)
    assert isinstance(opened, Snapshot)
    (pool,) = pools(opened, 0)
    assert (pool.free_bytes, pool.stuck_bytes) == (10 * MB, 2 * MB)
    assert pool.largest_free_bytes == 8 * MB


@pytest.mark.parametrize(
    "content",
    [
        # A table of memories with four thousand million places.
        b"\x80\x02}r\xff\xff\xff\xff.",
        b"\x80\x02}p4294967295\n.",
    ],
)
def test_a_small_pickle_takes_no_large_memory(tmp_path: Path, content: bytes) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    path = tmp_path / "memory.pickle"
    path.write_bytes(content)
    with pytest.raises(UnsupportedFormatError):
        open_trace(path)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_odd_values_of_a_snapshot_are_left_out(tmp_path: Path) -> None:
    nested: list[Any] = ["x"]
    for _ in range(40):
        nested = [nested, nested]
    one = event("alloc", 4096, 512, 10**18)
    one["frames"] = [{"name": nested, "filename": 5, "line": "x"}]
    actions = [event(f"action {n}", n, 1, n) for n in range(300)]
    path = tmp_path / "memory.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[one, *actions]]}))
    found = open_trace(path)
    assert isinstance(found, Snapshot)
    assert found.time_ns[0] == -1
    assert found.stacks[found.stack[0]] == (Frame(name="", file="", line=None),)
    assert found.actions[found.action[-1]] == "action 299"
