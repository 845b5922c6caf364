"""Energy from counters that the test winds on (P76)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.core.measurement import EnergyReading
from workbench.measure.energy import (
    NvmlCounter,
    NvmlPower,
    RaplMeter,
    Unavailable,
    find_meter,
    measure_energy,
)


class World:
    """A clock, a model of 10 ms a call, and a device of `idle_w` or `busy_w` watts."""

    def __init__(self, idle_w: float, busy_w: float) -> None:
        self.now_s = 0.0
        self.joules = 0.0
        self.num_calls = 0
        self.idle_w = idle_w
        self.busy_w = busy_w
        self.source = "test counter"

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.joules += self.idle_w * seconds

    def call(self, placed: Any) -> Any:
        self.now_s += 0.01
        self.joules += self.busy_w * 0.01
        self.num_calls += 1
        return placed

    def synchronize(self) -> None:
        return

    @contextlib.contextmanager
    def window(self) -> Iterator[Callable[[], float]]:
        start = self.joules
        yield lambda: self.joules - start


def measured(world: World, meter: Any = None) -> EnergyReading:
    return measure_energy(
        world,
        ["x"],
        items_per_call=8,
        window_s=2.0,
        device="cpu",
        meter=meter if meter is not None else world,
        clock=world.clock,
        sleep=world.sleep,
    )


def test_idle_power_is_subtracted() -> None:
    world = World(idle_w=30, busy_w=130)
    reading = measured(world)
    assert reading.source == "test counter"
    assert reading.idle_watts == pytest.approx(30)
    # 100 W of its own for 10 ms a call of 8 items.
    assert reading.joules_per_1000_items == pytest.approx(1000 * 100 * 0.01 / 8)
    assert reading.window_s is not None
    assert reading.window_s >= 2.0


def test_a_counter_that_stands_still_is_unavailable_and_not_zero() -> None:
    reading = measured(World(idle_w=0, busy_w=0))
    assert reading.source == "unavailable"
    assert reading.joules_per_1000_items is None
    assert "did not move" in reading.reason


def test_a_busy_idle_window_gives_no_negative_energy() -> None:
    reading = measured(World(idle_w=200, busy_w=150))
    assert reading.source == "unavailable"
    assert reading.joules_per_1000_items is None
    assert "others" in reading.reason


def test_no_meter_gives_the_reason_and_runs_nothing() -> None:
    world = World(idle_w=1, busy_w=1)
    reading = measured(world, Unavailable(reason="this CPU offers no RAPL counter"))
    assert reading == EnergyReading(source="unavailable", reason="this CPU offers no RAPL counter")
    assert world.num_calls == 0


class NvmlError(Exception):
    """As pynvml.NVMLError."""


class StubNvml:
    """The few calls of pynvml that are used, each of which may be refused."""

    NVMLError = NvmlError

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.millijoules = 0
        self.asked: list[Any] = []

    def _answer(self, name: str, value: Any) -> Any:
        if name in self.refused:
            raise NvmlError("Not Supported")
        return value

    def nvmlInit(self) -> None:
        self._answer("init", None)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self.asked.append(index)
        return f"handle {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        self.asked.append(uuid)
        return f"handle {uuid}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:
        assert handle.startswith("handle")
        self.millijoules += 2500
        return int(self._answer("energy", self.millijoules))

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        assert handle.startswith("handle")
        return int(self._answer("power", 70_000))


def test_nvml_counts_where_it_can() -> None:
    meter = find_meter("cuda:0", nvml=StubNvml())
    assert isinstance(meter, NvmlCounter)
    with meter.window() as joules:
        assert joules() == pytest.approx(2.5)


def test_nvml_samples_power_where_it_has_no_counter_and_says_so() -> None:
    meter = find_meter("cuda:0", nvml=StubNvml("energy"))
    assert isinstance(meter, NvmlPower)
    assert "sampled" in meter.source
    seconds = iter(range(1_000_000))
    counted = NvmlPower(nvml=meter.nvml, handle=meter.handle, clock=lambda: float(next(seconds)))
    with counted.window() as joules:
        # 70 W between samples that the clock puts a second apart.
        assert joules() % 70 == pytest.approx(0)


def test_nvml_not_supported_is_a_reason_and_not_zero() -> None:
    meter = find_meter("cuda:0", nvml=StubNvml("energy", "power"))
    assert isinstance(meter, Unavailable)
    assert "Not Supported" in meter.reason


def test_nvml_without_a_driver_is_a_reason() -> None:
    meter = find_meter("cuda:1", nvml=StubNvml("init"))
    assert isinstance(meter, Unavailable)
    assert "GPU 1" in meter.reason


@pytest.mark.parametrize(
    ("visible", "asked"), [(None, 1), ("3,5", 5), ("GPU-aa,GPU-bb", "GPU-bb"), ("", 1)]
)
def test_the_card_is_the_one_that_cuda_means(
    visible: str | None, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = StubNvml()
    find_meter("cuda:1", nvml=nvml)
    assert nvml.asked == [asked]


def rapl(folder: Path, name: str, energy: str, limit: str = "1000000") -> Path:
    package = folder / name
    package.mkdir()
    (package / "energy_uj").write_text(energy)
    (package / "max_energy_range_uj").write_text(limit)
    return package


def test_rapl_adds_packages_and_leaves_their_parts_out(tmp_path: Path) -> None:
    first, second = (rapl(tmp_path, f"intel-rapl:{n}", "100") for n in (0, 1))
    part = rapl(tmp_path, "intel-rapl:0:0", "100")
    meter = find_meter("cpu", powercap=tmp_path)
    assert isinstance(meter, RaplMeter)
    with meter.window() as joules:
        for package in (first, second, part):
            (package / "energy_uj").write_text("500100")
        assert joules() == pytest.approx(1.0)


def test_rapl_wraps_round(tmp_path: Path) -> None:
    package = rapl(tmp_path, "intel-rapl:0", "900000", limit="1000000")
    meter = find_meter("cpu", powercap=tmp_path)
    assert isinstance(meter, RaplMeter)
    with meter.window() as joules:
        (package / "energy_uj").write_text("400000")
        assert joules() == pytest.approx(0.5)


def test_no_rapl_is_a_reason(tmp_path: Path) -> None:
    meter = find_meter("cpu", powercap=tmp_path / "absent")
    assert isinstance(meter, Unavailable)
    assert "no RAPL counter" in meter.reason


def test_unreadable_rapl_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = rapl(tmp_path, "intel-rapl:0", "1")

    def refuse(self: Path) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    meter = find_meter("cpu", powercap=tmp_path)
    assert isinstance(meter, Unavailable)
    assert "chmod a+r" in meter.reason
    assert str(package) in meter.reason


def test_rapl_with_garbage_is_a_reason(tmp_path: Path) -> None:
    rapl(tmp_path, "intel-rapl:0", "not a number")
    meter = find_meter("cpu", powercap=tmp_path)
    assert isinstance(meter, Unavailable)
    assert "cannot be read" in meter.reason
