"""Profiles of ONNX Runtime: node types, the graph's nodes, and no time counted twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.traces.corpus import ROOT, needs_corpus
from workbench.traces.opening import open_trace
from workbench.traces.tables import kernel_rows, operator_rows
from workbench.traces.trace import Trace


def node(name: str, op: str, start_us: int, dur_us: int) -> dict[str, Any]:
    return {
        "cat": "Node",
        "pid": 9,
        "tid": 9,
        "dur": dur_us,
        "ts": start_us,
        "ph": "X",
        "name": f"{name}_kernel_time",
        "args": {"op_name": op, "provider": "CPUExecutionProvider"},
    }


def test_a_loops_body_is_not_counted_twice(tmp_path: Path) -> None:
    events = [node("loop", "Loop", 0, 100), node("a", "MatMul", 10, 30), node("b", "Add", 50, 20)]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(events))
    trace = open_trace(path)
    assert isinstance(trace, Trace)
    assert trace.format == "onnxruntime"
    own = {row.name: row.self_ns for row in operator_rows(trace)}
    assert own == {"Loop": 50_000, "MatMul": 30_000, "Add": 20_000}
    assert trace.node is not None
    assert [trace.names[number] for number in trace.node] == ["loop", "a", "b"]


@needs_corpus
def test_a_real_profile_adds_up_by_type_of_node() -> None:
    path = ROOT / "onnxruntime" / "ort1.32_cpu_ep_selfmade.json"
    events = json.loads(path.read_text())
    expected: Counter[str] = Counter()
    for one in events:
        if one["cat"] == "Node":
            expected[one["args"]["op_name"]] += one["dur"] * 1000
    trace = open_trace(path)
    assert isinstance(trace, Trace)
    assert trace.counts() == {"operator": 280, "annotation": 22}
    assert {row.name: row.self_ns for row in operator_rows(trace)} == dict(expected)
    assert kernel_rows(trace) == ()
    assert trace.node is not None
    names = {trace.names[number] for number in trace.node if number >= 0}
    assert names == {
        one["name"].removesuffix("_kernel_time") for one in events if one["cat"] == "Node"
    }


def test_kernels_of_a_device_keep_their_names(tmp_path: Path) -> None:
    def on_device(name: str, op: str, start_us: int) -> dict[str, Any]:
        return {"cat": "Kernel", "ph": "X", "pid": 9, "tid": 7, "ts": start_us, "dur": 5,
                "name": name, "args": {"op_name": op, "stream": "7"}}  # fmt: skip

    events = [
        node("conv", "Conv", 0, 10),
        on_device("cudnn_ampere_scudnn_128x64", "Conv", 20),
        on_device("MemcpyHostToDevice", "", 30),
    ]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(events))
    trace = open_trace(path)
    assert isinstance(trace, Trace)
    assert {row.name: row.category for row in kernel_rows(trace)} == {
        "cudnn_ampere_scudnn_128x64": "kernel",
        "MemcpyHostToDevice": "memcpy",
    }


def test_the_waits_around_a_node_are_no_nodes(tmp_path: Path) -> None:
    events = []
    for ending, start_us in (("fence_before", 0), ("kernel_time", 1), ("fence_after", 11)):
        one = node("conv", "Conv", start_us, 10 if ending == "kernel_time" else 1)
        events.append({**one, "name": f"conv_{ending}"})
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(events))
    (row,) = operator_rows(open_trace(path))
    assert (row.num, row.self_ns) == (1, 10_000)
