"""Where the time of a trace went."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.traces.corpus import each_kineto_file
from tests.traces.generator import complete, kernel, launch, write
from tests.traces.oracle import totals
from workbench.traces.grouping import grouped
from workbench.traces.opening import open_trace
from workbench.traces.tables import class_times, device_times, kernel_rows, operator_rows
from workbench.traces.trace import Trace

COPY = "Memcpy HtoD (Pageable -> Device)"


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Two streams of one device; a linear around an addmm, and a relu of its own."""
    events = [
        complete("cpu_op", "aten::linear", 0, 40),
        complete("cpu_op", "aten::addmm", 5, 30),
        launch(10, 4, correlation=1),
        launch(20, 4, correlation=2),
        complete("cpu_op", "aten::relu", 50, 10),
        launch(52, 4, correlation=3),
        kernel("volta_sgemm_64x64_nn", 100, 30, correlation=1),
        kernel("volta_sgemm_64x64_nn", 140, 10, correlation=2),
        kernel("relu_kernel", 145, 10, correlation=3, stream=8),
        complete("gpu_memcpy", COPY, 200, 50, pid=0, tid=7, device=0, stream=7, bytes=1024),
    ]
    return open_trace(write(tmp_path / "t.json", events))


def test_a_device_is_busy_when_any_of_its_streams_is(trace: Trace) -> None:
    (device,) = device_times(trace)
    assert (device.device, device.num) == (0, 4)
    assert device.work_ns == 100_000
    assert device.busy_ns == 95_000
    assert device.span_ns == 150_000


def test_kernels_are_added_up_by_name_the_longest_first(trace: Trace) -> None:
    rows = kernel_rows(trace)
    assert [row.name for row in rows] == [COPY, "volta_sgemm_64x64_nn", "relu_kernel"]
    matmul = rows[1]
    assert (matmul.num, matmul.total_ns) == (2, 40_000)
    assert (matmul.least_ns, matmul.most_ns) == (10_000, 30_000)
    assert matmul.share == pytest.approx(0.4)
    assert class_times(rows) == {"copy": 50_000, "matmul": 40_000, "elementwise": 10_000}


def test_an_operator_owns_what_it_and_those_inside_it_launched(trace: Trace) -> None:
    rows = {row.name: row for row in operator_rows(trace)}
    assert list(rows) == ["aten::addmm", "aten::relu", "aten::linear"]
    linear, addmm = rows["aten::linear"], rows["aten::addmm"]
    assert (linear.host_ns, linear.self_ns) == (40_000, 10_000)
    assert (addmm.host_ns, addmm.self_ns) == (30_000, 22_000)
    assert (linear.device_ns, linear.device_self_ns) == (40_000, 0)
    assert (addmm.device_ns, addmm.device_self_ns) == (40_000, 40_000)
    assert rows["aten::relu"].device_ns == 10_000


def test_an_operator_inside_one_of_its_name_counts_once(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "aten::to", 0, 20),
        complete("cpu_op", "aten::copy_", 2, 15),
        complete("cpu_op", "aten::to", 4, 10),
        launch(5, 2, correlation=1),
        kernel("copy_kernel", 30, 7, correlation=1),
    ]
    rows = operator_rows(open_trace(write(tmp_path / "t.json", events)))
    outer = next(row for row in rows if row.name == "aten::to")
    assert (outer.num, outer.host_ns, outer.device_ns) == (2, 20_000, 7_000)
    assert sum(row.device_self_ns for row in rows) == 7_000


def test_a_trace_of_the_host_alone_has_no_kernels(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t.json", [complete("cpu_op", "aten::mm", 0, 5)]))
    assert kernel_rows(trace) == device_times(trace) == ()
    (row,) = operator_rows(trace)
    assert (row.self_ns, row.device_ns) == (5_000, 0)
    empty = open_trace(write(tmp_path / "e.json", []))
    assert operator_rows(empty) == kernel_rows(empty) == ()


@each_kineto_file()
def test_real_kernels_add_up_to_the_oracles_totals(path: Path) -> None:
    expected = totals(path)["by_name"]
    found: dict[str, dict[str, list[int]]] = {kind: {} for kind in expected}
    for row in kernel_rows(open_trace(path)):
        found[row.category][row.name] = [row.num, row.total_ns]
    assert found == expected


@each_kineto_file()
def test_no_real_operator_is_longer_outside_than_in(path: Path) -> None:
    trace = open_trace(path)
    rows = operator_rows(trace)
    for row in rows:
        assert row.self_ns >= 0
        assert 0 <= row.device_self_ns <= row.device_ns
    work_ns = int(trace.duration_ns[trace.device_rows].sum())
    assert sum(row.device_self_ns for row in rows) <= work_ns


def test_sums_by_key_are_exact() -> None:
    values = np.array([2**62, 1, 7, -3], dtype=np.int64)
    sums = grouped(np.array([5, 5, 2, 2]), values)
    assert sums.key.tolist() == [2, 5]
    assert sums.num.tolist() == [2, 2]
    assert sums.total.tolist() == [4, 2**62 + 1]
    assert (sums.least.tolist(), sums.most.tolist()) == ([-3, 1], [7, 2**62])
