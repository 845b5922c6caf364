"""Known causes are named first, and a healthy step yields nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.causes import CAUSES, HEALTHY
from tests.traces.generator import complete, write
from tests.traces.machine import Machine
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.levers.table import levers
from workbench.traces.findings import findings
from workbench.traces.opening import open_trace
from workbench.traces.rules import Finding


def found(tmp_path: Path, machine: Machine) -> tuple[Finding, ...]:
    return findings(open_trace(machine.write(tmp_path / "t.json")))


# What is to be gained, of the step, as it was put there.
PRIZES = {
    "host-bound": (0.6, 0.95),
    "float32-products": (0.8, 0.875),
    "copies": (0.55, 0.7),
    "data-loading": (0.5, 0.65),
    "small-kernels": (0.6, 0.75),
    "dequantising": (0.45, 0.55),
    "unfused-attention": (0.35, 0.42),
    "synchronising": (0.4, 0.65),
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_known_cause_is_named_first(name: str, tmp_path: Path) -> None:
    machine = Machine()
    CAUSES[name](machine)
    first, *_ = found(tmp_path, machine)
    assert first.name == name
    low, high = PRIZES[name]
    assert low <= first.prize <= high
    assert "%" in first.evidence


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_step_yields_no_finding(name: str, tmp_path: Path) -> None:
    machine = Machine()
    HEALTHY[name](machine)
    assert found(tmp_path, machine) == ()


def test_every_lever_that_is_named_is_one(tmp_path: Path) -> None:
    load_all()
    known = {name: set(lever.values) for name, lever in levers().items()}
    named = set()
    for make in CAUSES.values():
        machine = Machine()
        make(machine)
        for finding in found(tmp_path, machine):
            assert finding.levers or finding.advice
            named |= set(finding.levers)
    assert len(named) > 5
    for spec in named:
        recipe = Recipe.parse(spec)
        for lever, value in recipe.levers:
            assert value in known[lever], spec


def test_a_device_without_tensor_cores_is_not_told_to_use_them(tmp_path: Path) -> None:
    pascal = {"id": 0, "name": "Simulated P100", "computeMajor": 6, "computeMinor": 0}
    machine = Machine(pascal)
    CAUSES["float32-products"](machine)
    assert found(tmp_path, machine) == ()


def test_a_volta_is_told_of_halves(tmp_path: Path) -> None:
    volta = {"id": 0, "name": "Simulated V100", "computeMajor": 7, "computeMinor": 0}
    machine = Machine(volta)
    CAUSES["float32-products"](machine)
    assert found(tmp_path, machine)[0].levers == ("precision=fp16-autocast",)


def test_an_empty_trace_has_no_findings(tmp_path: Path) -> None:
    events = [complete("user_annotation", "x", 0, 1)]
    assert findings(open_trace(write(tmp_path / "t.json", events))) == ()


def test_a_set_up_that_was_profiled_too_is_told_from_slow_launches(tmp_path: Path) -> None:
    machine = Machine()
    machine.operator("aten::linear", ("ampere_bf16_s16816gemm", 50.0))
    machine.operator("aten::empty", host_us=5000)
    machine.operator("aten::linear", ("ampere_bf16_s16816gemm", 50.0))
    (only,) = found(tmp_path, machine)
    assert only.name == "one-call"
    assert only.evidence.startswith("aten::empty takes 5.00 ms")


GEMM = "ampere_bf16_s16816gemm_bf16_128x128"


def test_a_loss_is_no_attention(tmp_path: Path) -> None:
    machine = Machine()
    with machine.step(0):
        for _ in range(4):
            machine.operator("aten::matmul", (GEMM, 100.0))
            machine.operator("aten::_log_softmax", ("cunn_SoftMaxForward", 90.0))
            machine.operator("aten::_log_softmax_backward_data", ("cunn_SoftMaxBackward", 90.0))
    assert "unfused-attention" not in [one.name for one in found(tmp_path, machine)]


def test_a_slow_call_beside_a_busy_device_holds_nothing_up(tmp_path: Path) -> None:
    """A launch that blocks on a full queue is no set-up, and does not hide idle time."""
    machine = Machine()
    with machine.step(0):
        machine.operator("aten::linear", (GEMM, 4000.0))
        machine.operator("aten::empty", host_us=3900)
        for _ in range(50):
            machine.operator("aten::linear", (GEMM, 4.0), host_us=60)
    (only,) = found(tmp_path, machine)
    assert only.name == "host-bound"
    assert 0.3 < only.prize < 0.5


def test_copies_are_not_fused(tmp_path: Path) -> None:
    machine = Machine()
    with machine.step(0):
        machine.copy(10_000_000, 800.0, waits=False)
        machine.copy(10_000_000, 900.0, waits=False)
        machine.operator("aten::linear", (GEMM, 9000.0))
    assert [one.name for one in found(tmp_path, machine)] == ["copies"]


def test_prizes_are_of_one_device(tmp_path: Path) -> None:
    machine = Machine()
    with machine.step(0):
        machine.operator("aten::linear", ("ampere_sgemm_128x64_tn", 5000.0))
    others = []
    for device in range(1, 8):
        for event in machine.events:
            if event["cat"] == "kernel":
                args = {**event["args"], "device": device}
                others.append({**event, "pid": device, "args": args})
    machine.events += others
    (only,) = found(tmp_path, machine)
    assert only.name == "float32-products"
    assert only.prize <= 0.875
