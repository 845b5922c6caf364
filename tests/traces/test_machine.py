"""The simulated machine behaves as a machine does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.traces.causes import CAUSES, HEALTHY
from tests.traces.machine import Machine
from workbench.traces.opening import open_trace
from workbench.traces.steps import steps


@pytest.mark.parametrize("make", [*CAUSES.values(), *HEALTHY.values()])
def test_a_stream_never_does_two_things_at_once(
    make: Callable[[Machine], None], tmp_path: Path
) -> None:
    machine = Machine()
    make(machine)
    trace = open_trace(machine.write(tmp_path / "t.json"))
    found = steps(trace)
    assert [step.number for step in found] == [0, 1, 2]
    for stream in (7, 20):
        rows = trace.device_rows[trace.stream[trace.device_rows] == stream]
        order = rows[trace.start_ns[rows].argsort()]
        assert (trace.end_ns[order][:-1] <= trace.start_ns[order][1:]).all()


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_step_keeps_its_device_busy(name: str, tmp_path: Path) -> None:
    machine = Machine()
    HEALTHY[name](machine)
    for step in steps(open_trace(machine.write(tmp_path / "t.json"))):
        assert step.busy_ns / step.wall_ns > 0.95
