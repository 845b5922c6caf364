"""Memory over time, and what is in use at a moment, by what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.corpus import each_kineto_file
from tests.traces.generator import complete, write
from workbench.traces.memory import Curve, curves, live
from workbench.traces.opening import open_trace
from workbench.traces.trace import Trace

KB = 1024


class Allocator:
    """`[memory]` events of one device with their totals."""

    def __init__(self, before: int, *, totals: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self._total = before
        self._totals = totals

    def change(self, time_us: float, num_bytes: int, address: int, device: int = 1) -> None:
        self._total += num_bytes
        args: dict[str, Any] = {"Bytes": num_bytes, "Device Type": device, "Device Id": 0}
        if self._totals:
            args |= {"Addr": address, "Total Allocated": self._total, "Total Reserved": 1 << 20}
        self.events.append(
            {
                "ph": "i",
                "s": "t",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": time_us,
                "args": args,
            }
        )


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """A training step: an input, a layer with a workspace, its gradient, the optimizer's state."""
    memory = Allocator(before=100 * KB)
    events = [
        complete("cpu_op", "aten::to", 0, 5),
        complete("python_function", "nn.Module: Net_0", 10, 40),
        complete("cpu_op", "aten::linear", 12, 20),
        complete("cpu_op", "aten::addmm", 14, 15),
        complete("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 60, 20),
        complete("cpu_op", "aten::mm", 62, 10),
        complete("user_annotation", "Optimizer.step#Adam.step", 90, 9),
        complete("cpu_op", "aten::zeros_like", 92, 3),
    ]
    memory.change(1, 8 * KB, 1000)
    memory.change(15, 64 * KB, 2000)  # a workspace of addmm
    memory.change(16, 16 * KB, 3000)
    memory.change(20, -64 * KB, 2000)
    memory.change(64, 4 * KB, 4000)
    memory.change(93, 2 * KB, 5000)
    memory.change(95, 1 * KB, 6000)
    memory.change(120, 1 * KB, 7000)
    memory.change(130, -100 * KB, 1)  # a weight from before the profile
    return opened(tmp_path, events + memory.events)


def opened(tmp_path: Path, events: list[dict[str, Any]]) -> Trace:
    found = open_trace(write(tmp_path / "t.json", events))
    assert isinstance(found, Trace)
    return found


def test_the_curve_counts_from_what_was_there_before(trace: Trace) -> None:
    (curve,) = curves(trace)
    assert (curve.device, curve.before_bytes) == (0, 100 * KB)
    assert [size // KB for size in curve.allocated_bytes] == [
        108, 172, 188, 124, 128, 130, 131, 132, 32,
    ]  # fmt: skip
    assert curve.peak == 2
    assert curve.reserved_bytes is not None
    assert set(curve.reserved_bytes.tolist()) == {1 << 20}


def test_the_peak_is_divided_by_what_it_is_for(trace: Trace) -> None:
    (curve,) = curves(trace)
    found = live(trace, curve)
    assert (found.time_ns, found.allocated_bytes) == (16_000, 188 * KB)
    assert found.earlier_bytes == 100 * KB
    assert found.by_purpose() == {
        "unknown": 100 * KB, "workspace": 64 * KB, "activations": 16 * KB, "inputs": 8 * KB,
    }  # fmt: skip
    assert found.by_purpose(weight_bytes=70 * KB)["weights"] == 70 * KB
    assert sum(found.by_purpose(weight_bytes=70 * KB).values()) == 188 * KB
    workspace = found.blocks[0]
    assert (workspace.operator, workspace.part) == ("aten::linear", ("Net_0",))
    assert (workspace.allocated_ns, workspace.freed_ns) == (15_000, 20_000)


def test_gradients_and_state_are_told_apart(trace: Trace) -> None:
    (curve,) = curves(trace)
    found = live(trace, curve, event=7)
    sizes = {block.num_bytes // KB: block.purpose for block in found.blocks}
    assert sizes == {16: "activations", 8: "inputs", 4: "gradients", 2: "optimizer", 1: "unknown"}
    assert sum(found.by_purpose().values()) == found.allocated_bytes


def test_without_totals_the_curve_is_relative(tmp_path: Path) -> None:
    memory = Allocator(before=0, totals=False)
    memory.change(1, 512, 0)
    memory.change(2, -1024, 0)
    (curve,) = curves(opened(tmp_path, memory.events))
    assert curve.before_bytes is None
    assert curve.reserved_bytes is None
    assert curve.allocated_bytes.tolist() == [512, -512]
    found = live(opened(tmp_path, memory.events), curve)
    assert (found.blocks, found.earlier_bytes) == ((), None)


def test_host_and_devices_have_curves_of_their_own(tmp_path: Path) -> None:
    memory = Allocator(before=0)
    memory.change(1, 512, 1)
    memory.change(2, 256, 2, device=0)
    found = curves(opened(tmp_path, memory.events))
    assert [curve.device for curve in found] == [0, None]


def test_a_trace_without_memory_has_no_curve(tmp_path: Path) -> None:
    """P48: absent is not recorded, and not 0."""
    assert curves(opened(tmp_path, [complete("cpu_op", "aten::mm", 0, 1)])) == ()


@each_kineto_file()
def test_real_memory_adds_up(path: Path) -> None:
    trace = opened_real(path)
    for curve in curves(trace):
        found = live(trace, curve)
        if curve.before_bytes is not None:
            assert sum(found.by_purpose().values()) == found.allocated_bytes
            assert_consistent(trace, curve)


def opened_real(path: Path) -> Trace:
    found = open_trace(path)
    assert isinstance(found, Trace)
    return found


def assert_consistent(trace: Trace, curve: Curve) -> None:
    """Each total follows from the one before and the event between."""
    changes = trace.memory.num_bytes[curve.rows][1:]
    steps = curve.allocated_bytes[1:] - curve.allocated_bytes[:-1]
    assert (steps == changes).mean() > 0.95


def test_the_peak_may_lie_before_the_first_event(tmp_path: Path) -> None:
    memory = Allocator(before=100 * KB)
    memory.change(1, -60 * KB, 1)
    memory.change(2, 20 * KB, 2)
    trace = opened(tmp_path, memory.events)
    (curve,) = curves(trace)
    assert curve.peak == -1
    found = live(trace, curve)
    assert (found.allocated_bytes, found.earlier_bytes) == (100 * KB, 100 * KB)
    assert found.blocks == ()


def test_an_event_without_a_size_is_no_free(tmp_path: Path) -> None:
    memory = Allocator(before=0)
    memory.change(1, 512, 1)
    del memory.events[0]["args"]["Bytes"]
    assert curves(opened(tmp_path, memory.events)) == ()
