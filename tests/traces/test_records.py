"""Whole events again, from where they stand in the file."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.traces.corpus import each_kineto_file
from tests.traces.generator import complete, write
from workbench.core.errors import LoadError
from workbench.traces import opening
from workbench.traces.blocks import Blocks
from workbench.traces.opening import open_trace
from workbench.traces.records import records
from workbench.traces.trace import Trace


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks in a small file."""
    monkeypatch.setattr(opening, "Blocks", lambda path: Blocks(path, block_bytes=700))


def made(num: int) -> list[dict[str, Any]]:
    return [
        complete("cpu_op", f"op{n}", f"{n}.125", 1, Concrete_Inputs=["", str(n)], Extra={"n": n})
        for n in range(num)
    ]


def opened(path: Path) -> Trace:
    found = open_trace(path)
    assert isinstance(found, Trace)
    return found


@pytest.mark.usefixtures("small_blocks")
def test_an_event_comes_with_all_its_arguments(tmp_path: Path) -> None:
    trace = opened(write(tmp_path / "t.json", made(50)))
    assert trace.source is not None
    assert len(trace.source.places) > 5
    found = records(trace, [49, 0, 17])
    assert [one["name"] for one in found] == ["op49", "op0", "op17"]
    assert found[2] == {
        "ph": "X", "cat": "cpu_op", "name": "op17", "pid": 1, "tid": 1,
        "ts": "17.125", "dur": "1", "args": {"Concrete Inputs": ["", "17"], "Extra": {"n": 17}},
    }  # fmt: skip


@pytest.mark.usefixtures("small_blocks")
def test_mended_and_dropped_events_shift_nothing(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": made(40)})
    text = text.replace('"op7"', '"o"p7"').replace('"op9"', '"op\t9"')
    path = tmp_path / "t.json"
    path.write_text(text)
    trace = opened(path)
    assert (trace.reading.num_dropped, trace.reading.num_mended) == (1, 1)
    names = [trace.names[name] for name in trace.name]
    assert [one["name"] for one in records(trace, range(len(trace)))] == names


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", made(3))
    trace = opened(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(LoadError, match="has changed since it was read"):
        records(trace, [0])
    path.unlink()
    with pytest.raises(LoadError, match="is gone"):
        records(trace, [0])


@pytest.mark.usefixtures("small_blocks")
@each_kineto_file(at_most_bytes=400_000)
def test_real_events_are_as_they_were_written(path: Path) -> None:
    content = json.loads(gzip.decompress(path.read_bytes()))
    trace = opened(path)
    rows = list(range(0, len(trace), 97))
    for row, found in zip(rows, records(trace, rows), strict=True):
        written = content["traceEvents"][int(trace.ordinal[row])]
        assert (found["name"], found.get("args")) == (written["name"], written.get("args"))
