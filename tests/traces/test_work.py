"""When a device was busy, also where kernels seem to outlast the next on their stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.traces.generator import kernel, write
from workbench.traces.opening import open_trace
from workbench.traces.tables import DeviceTime, device_times
from workbench.traces.trace import Trace
from workbench.traces.work import device_work


def opened(tmp_path: Path, *events: dict[str, Any]) -> Trace:
    found = open_trace(write(tmp_path / "t.json", list(events)))
    assert isinstance(found, Trace)
    return found


def test_a_kernel_counts_until_the_next_launch_on_its_stream(tmp_path: Path) -> None:
    trace = opened(
        tmp_path,
        kernel("too long", 0, 100, correlation=1),
        kernel("next", 10, 5, correlation=2),
        kernel("last", 50, 10, correlation=3),
    )
    work = device_work(trace)
    assert work.ends.tolist() == [10_000, 15_000, 60_000]
    assert work.is_clipped.tolist() == [True, False, False]
    assert device_times(trace) == (
        DeviceTime(device=0, num=3, work_ns=115_000, busy_ns=25_000, span_ns=60_000, num_clipped=1),
    )


def test_kernels_of_one_graph_may_run_at_once(tmp_path: Path) -> None:
    trace = opened(tmp_path, kernel("a", 0, 100, correlation=1), kernel("b", 10, 5, correlation=1))
    assert device_work(trace).ends.tolist() == [100_000, 15_000]
    assert device_times(trace)[0].busy_ns == 100_000


def test_streams_run_beside_each_other(tmp_path: Path) -> None:
    trace = opened(
        tmp_path,
        kernel("a", 0, 100, correlation=1, stream=7),
        kernel("b", 10, 5, correlation=2, stream=9),
    )
    assert not device_work(trace).is_clipped.any()


def test_without_correlation_each_kernel_is_a_launch(tmp_path: Path) -> None:
    trace = opened(tmp_path, kernel("a", 0, 100), kernel("b", 10, 5))
    assert device_work(trace).ends.tolist() == [10_000, 15_000]
