"""Counters: arithmetic on fixed samples, and absence with a reason."""

from __future__ import annotations

import pynvml
import pytest

from tests.devices.stub_nvml import StubNvml
from workbench.devices.live import (
    CpuTimes,
    cpu_times,
    gpu_counters,
    load_of_others,
    read_card,
    throttle_names,
)
from workbench.devices.nvidia import describe_gpus


def test_the_load_of_others_leaves_ours_out() -> None:
    before = CpuTimes(total_s=100.0, idle_s=50.0)
    after = CpuTimes(total_s=104.0, idle_s=51.0)
    # Of 4 CPU seconds 1 was idle and 2 were ours.
    assert load_of_others(before, after, 2.0) == 0.25


def test_the_load_of_others_stays_a_share() -> None:
    before = CpuTimes(total_s=100.0, idle_s=50.0)
    # Clocks of processes and of the machine tick apart by a hair.
    after = CpuTimes(total_s=101.0, idle_s=50.0)
    assert load_of_others(before, after, 1.01) == 0.0


def test_no_tick_is_no_reading() -> None:
    now = CpuTimes(total_s=100.0, idle_s=50.0)
    assert load_of_others(now, now, 0.0) is None


def test_the_machine_has_worked_and_rested() -> None:
    now = cpu_times()
    assert now.total_s > now.idle_s > 0


def test_every_counter_of_a_card() -> None:
    counters = read_card(StubNvml(), "card 0")
    assert counters.utilization == 0.4
    assert counters.power_w == 123.0
    assert counters.energy_j == 5000.0
    assert counters.temperature_c == 51
    assert counters.sm_clock_mhz == 1980
    assert counters.memory_used_bytes == 1 << 30
    assert counters.throttle == ("power cap",)
    assert counters.owners is not None
    # Another container's process has no name here, and no size under MIG.
    assert (counters.owners[0].name, counters.owners[0].used_bytes) == (None, None)
    assert counters.reasons == {}


def test_a_counter_that_is_not_supported_is_none_with_its_reason() -> None:
    """P76: stub NVML NotSupported."""
    counters = read_card(StubNvml(refuse=("nvml*",)), "card 0")
    assert counters.power_w is None
    assert counters.energy_j is None
    assert counters.owners is None
    assert counters.reasons["energy_j"] == "Not Supported"
    assert set(counters.reasons) == set(counters.__dataclass_fields__) - {"reasons"}


@pytest.mark.parametrize(
    ("bits", "names"), [(0x00, ()), (0x01, ()), (0x24, ("power cap", "software thermal slowdown"))]
)
def test_idle_is_no_throttling(bits: int, names: tuple[str, ...]) -> None:
    assert throttle_names(bits) == names


def test_a_machine_without_the_card_says_why() -> None:
    missing = f"cuda:{len(describe_gpus()[0])}"
    counters = gpu_counters(missing)
    assert counters.power_w is None
    assert counters.reasons["power_w"]


def test_the_stand_in_has_the_names_of_the_library() -> None:
    stub = StubNvml()
    constants = [name for name in dir(StubNvml) if name.startswith("NVML_")]
    assert [name for name in stub.answers() if not hasattr(pynvml, name)] == []
    assert {name: getattr(stub, name) for name in constants} == {
        name: getattr(pynvml, name) for name in constants
    }


def test_throttle_bits_are_the_librarys() -> None:
    assert throttle_names(pynvml.nvmlClocksEventReasonSwPowerCap) == ("power cap",)
    assert throttle_names(pynvml.nvmlClocksEventReasonHwThermalSlowdown) == (
        "hardware thermal slowdown",
    )
    assert throttle_names(pynvml.nvmlClocksEventReasonGpuIdle) == ()
