"""A trace in a terminal and as a document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.study import filled
from tests.traces.corpus import KINETO, ROOT, needs_corpus
from tests.traces.generator import complete, kernel, launch, write
from workbench.cli import main
from workbench.cli.codes import LOAD, OK
from workbench.traces.opening import open_trace
from workbench.traces.trace import Trace

HOSTILE = "[bold]<img src=x>\"'\n🙂[/bold]"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    events = [
        complete("cpu_op", HOSTILE, 0, 10),
        launch(1, 2, correlation=1),
        kernel(HOSTILE, 20, 6, correlation=1),
        kernel("volta_sgemm_64x64_nn", 26, 2),
    ]
    device = {"id": 0, "name": "Test GPU", "totalGlobalMem": 1 << 34, "numSms": 80}
    return write(tmp_path / "some.json", events, deviceProperties=[device])


def test_the_tables_show_names_as_text(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(path)]) == OK
    said = capsys.readouterr().out
    assert "[bold]<img src=x>" in said
    assert "Device 0 (Test GPU): busy 8.00 µs of the 8.00 µs" in said
    assert "1 of 2 have no launch in the trace" in said
    assert "other 75%, matmul 25%" in said


def test_the_document_holds_whole_nanoseconds(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(path), "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["schema_version"], found["name"]) == ("trace", 1, "some.json")
    assert found["devices"] == [
        {
            "device": 0,
            "num": 2,
            "work_ns": 8_000,
            "busy_ns": 8_000,
            "span_ns": 8_000,
            "num_clipped": 0,
        }
    ]
    assert found["kernels"][0]["name"] == found["operators"][0]["name"] == HOSTILE
    assert found["operators"][0]["device_ns"] == 6_000
    assert found["num_unlinked"] == 1
    assert found["steps"][0]["compute_ns"] == 8_000
    assert found["memory"] == []
    assert found["properties"][0]["name"] == "Test GPU"


def test_what_was_wrong_with_a_file_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps({"traceEvents": [kernel("x", 0, 1), kernel("y", 1, -1), kernel("z", 2, 1)]})
    path = tmp_path / "t.json"
    path.write_text(text[: text.index('"z"')])
    assert main(["trace", str(path)]) == OK
    said = capsys.readouterr().out
    assert "1 of 3 events could not be read and are left out." in said
    assert "1 of 3 events have a negative duration and count as 0." in said
    assert "The file ends before its list of events does." in said


def test_no_trace_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(tmp_path / "nothing.json")]) == LOAD
    assert "there is no file" in capsys.readouterr().err


def test_an_empty_trace_has_no_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(write(tmp_path / "t.json", []))]) == OK
    assert "0 events" in capsys.readouterr().out


@needs_corpus
def test_every_real_snapshot_has_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    for path in (ROOT / "snapshots").glob("*.pickle"):
        assert main(["trace", str(path), "--json"]) == OK
        (device,) = json.loads(capsys.readouterr().out)["devices"]
        live = sum(block["num_bytes"] for block in device["live_at_peak"])
        assert live == device["peak_bytes"] > 0
        assert main(["trace", str(path)]) == OK
        assert "in use" in capsys.readouterr().out


@needs_corpus
def test_every_real_trace_has_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    for path in KINETO:
        assert main(["trace", str(path), "--json"]) == OK
        found = json.loads(capsys.readouterr().out)
        assert found["span_s"] > 0
        assert sum(found["counts"].values()) > 0
        assert sum(row["share"] for row in found["kernels"]) == pytest.approx(
            1.0 if found["devices"] else 0.0
        )


def test_a_trace_shows_itself(tmp_path: Path) -> None:
    """In a notebook as text: a name with markup in it is text too."""
    path = tmp_path / "hostile.json"
    filled.record_trace(path, [filled.HOSTILE])
    trace = open_trace(path, cached=False)
    assert isinstance(trace, Trace)
    assert repr(trace) == "<Trace hostile.json: 4 events>"
    shown = trace._repr_html_()
    assert "&lt;img src=x" in shown
    assert "<img" not in shown
