"""Counters to read while something runs. A value that is not there is None, with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from workbench.devices.nvidia import card_of, nvml


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """CPU seconds of the whole machine since boot."""

    total_s: float
    idle_s: float


def cpu_times() -> CpuTimes:
    """The machine's CPU time now."""
    times = psutil.cpu_times()
    # Guest time is inside user time on Linux already.
    total = sum(value for name, value in times._asdict().items() if not name.startswith("guest"))
    return CpuTimes(total_s=total, idle_s=times.idle + getattr(times, "iowait", 0.0))


def load_of_others(before: CpuTimes, after: CpuTimes, own_s: float) -> float | None:
    """The share of the machine's CPU time that others used between two readings.

    `own_s` is the CPU time of our own work in between. 1.0 is every core; time stolen by a
    hypervisor counts as others'. None where the kernel's clock (10 ms a core) did not tick.
    """
    total = after.total_s - before.total_s
    if total <= 0:
        return None
    busy = total - (after.idle_s - before.idle_s)
    return min(1.0, max(0.0, (busy - own_s) / total))


@dataclass(frozen=True, kw_only=True)
class MemoryOwner:
    """Device memory that one process holds; None where the driver does not say."""

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class GpuCounters:
    """One reading of a card. `reasons` says, by field, why a value is None.

    `utilization` is the share of the last sample period in which a kernel ran. `energy_j`
    counts since the driver was loaded. `owners` are the processes that hold device memory.
    """

    utilization: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    throttle: tuple[str, ...] | None = None
    owners: tuple[MemoryOwner, ...] | None = None
    reasons: dict[str, str] = field(default_factory=dict)


# Bits of nvmlDeviceGetCurrentClocksEventReasons, from nvml.h. Idle (1) and clocks that an
# application set (2) are no throttling.
_THROTTLE = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def throttle_names(bits: int) -> tuple[str, ...]:
    """Why the clock is held down, from NVML's bit field; () where it is not."""
    return tuple(name for bit, name in _THROTTLE.items() if bits & bit)


def gpu_counters(device_id: str) -> GpuCounters:
    """One reading of "cuda:0" and the like; every value None where it cannot be had."""
    try:
        card = card_of(device_id)
        with nvml() as lib:
            return read_card(lib, lib.nvmlDeviceGetHandleByUUID(card.uuid))
    except LookupError as error:
        names = [name for name in GpuCounters.__dataclass_fields__ if name != "reasons"]
        return GpuCounters(reasons=dict.fromkeys(names, str(error)))


def open_clocks(device_id: str) -> Callable[[], GpuCounters] | None:
    """A function that reads the card's clock and what holds it down, and nothing else.

    For a process that asks after every round: NVML stays initialised for as long as it lives,
    since starting it takes longer than the reading. None where NVML does not answer.
    """
    try:
        card = card_of(device_id)
        with nvml() as lib:
            # A MIG instance has no clock of its own.
            uuid = card.parent_uuid or card.uuid
            handle = _read(lib, uuid, {}, "", "nvmlDeviceGetHandleByUUID")
            if handle is None:
                return None
            # Counted: this one keeps NVML alive when the block ends.
            lib.nvmlInit()
    except LookupError:
        return None
    return lambda: read_clocks(lib, handle)


def read_clocks(lib: Any, handle: Any) -> GpuCounters:
    """The clock and what holds it down, through an initialised pynvml; the rest is None."""
    reasons: dict[str, str] = {}
    clock = _read(lib, handle, reasons, "sm_clock_mhz", "nvmlDeviceGetClockInfo", lib.NVML_CLOCK_SM)
    bits = _read(lib, handle, reasons, "throttle", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return GpuCounters(
        sm_clock_mhz=clock,
        throttle=None if bits is None else throttle_names(int(bits)),
        reasons=reasons,
    )


def _read(
    lib: Any, handle: Any, reasons: dict[str, str], fields: str, function: str, *args: Any
) -> Any:
    """One call's answer; None, with the reason under each of the fields, where it is refused."""
    try:
        return getattr(lib, function)(handle, *args)
    except (lib.NVMLError, AttributeError) as error:
        # An older driver or binding lacks the call; a card may not support it.
        for name in fields.split():
            reasons[name] = str(error)
        return None


def read_card(lib: Any, handle: Any) -> GpuCounters:
    """One reading through an initialised pynvml."""
    clocks = read_clocks(lib, handle)
    reasons = dict(clocks.reasons)

    def read(fields: str, function: str, *args: Any) -> Any:
        return _read(lib, handle, reasons, fields, function, *args)

    rates = read("utilization", "nvmlDeviceGetUtilizationRates")
    power_mw = read("power_w", "nvmlDeviceGetPowerUsage")
    energy_mj = read("energy_j", "nvmlDeviceGetTotalEnergyConsumption")
    memory = read("memory_used_bytes memory_total_bytes", "nvmlDeviceGetMemoryInfo")
    processes = read("owners", "nvmlDeviceGetComputeRunningProcesses")
    return GpuCounters(
        utilization=None if rates is None else rates.gpu / 100,
        power_w=None if power_mw is None else power_mw / 1000,
        energy_j=None if energy_mj is None else energy_mj / 1000,
        temperature_c=read("temperature_c", "nvmlDeviceGetTemperature", lib.NVML_TEMPERATURE_GPU),
        sm_clock_mhz=clocks.sm_clock_mhz,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        throttle=clocks.throttle,
        owners=None if processes is None else tuple(_owner(process) for process in processes),
        reasons=reasons,
    )


def _owner(process: Any) -> MemoryOwner:
    try:
        name = psutil.Process(process.pid).name()
    except psutil.Error:
        # Another container's process: its number means nothing here.
        name = None
    used = process.usedGpuMemory
    return MemoryOwner(pid=process.pid, name=name, used_bytes=None if used is None else int(used))
