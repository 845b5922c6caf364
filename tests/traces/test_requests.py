"""One request as parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.traces.opening import open_trace
from workbench.traces.requests import request_parts
from workbench.traces.trace import Trace


def trace_of(path: Path, requests: list[dict[str, int]], wall_us: int) -> Trace:
    events = []
    for number, parts in enumerate(requests):
        at = 1_000 + 10_000 * number
        events.append(span("user_annotation", f"ProfilerStep#{number}", at, wall_us + number))
        for name, dur in parts.items():
            events.append(span("user_annotation", f"request: {name}", at, dur))
            events.append(span("cpu_op", "aten::add", at, dur))
            at += dur + 1
    path.write_text(json.dumps({"traceEvents": events}))
    found = open_trace(path, cached=False)
    assert isinstance(found, Trace)
    return found


def span(cat: str, name: str, ts: int, dur: int) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


def test_the_parts_of_the_median_request_add_up(tmp_path: Path) -> None:
    parts = {"preprocess": 300, "copy in": 50, "model": 500, "copy out": 20, "postprocess": 100}
    slow = {**parts, "preprocess": 900}
    trace = trace_of(tmp_path / "t.json", [parts, {**parts, "model": 510}, slow], 1000)
    found = {part.name: part.ns for part in request_parts(trace)}
    assert found == {
        "preprocess": 300_000,
        "copy in": 50_000,
        "model": 510_000,
        "copy out": 20_000,
        "postprocess": 100_000,
        "between": 21_000,
    }
    assert sum(part.share for part in request_parts(trace)) == pytest.approx(1.0)


def test_a_trace_without_requests_has_none(tmp_path: Path) -> None:
    assert request_parts(trace_of(tmp_path / "t.json", [{}], 100)) == ()
