"""Energy of a device in a window of its own: a counter, sampled power, or why neither."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any, Protocol

from workbench.core.measurement import EnergyReading

POWERCAP = Path("/sys/class/powercap")
IDLE_SHARE = 0.5
SAMPLE_PERIOD_S = 0.02
# Calls between two looks at the clock, so that the clock is no part of what is measured.
CALLS_PER_LOOK_S = 0.05


class Runnable(Protocol):
    """What an energy window needs of a pipeline."""

    @property
    def call(self) -> Callable[[Any], Any]: ...

    @property
    def synchronize(self) -> Callable[[], None]: ...


class Meter(Protocol):
    """Something that knows the energy of one device.

    `source` names it and says whether it counts or samples; `window()` is entered for the
    time to be measured and yields a function that returns the joules since.
    """

    @property
    def source(self) -> str: ...

    def window(self) -> contextlib.AbstractContextManager[Callable[[], float]]: ...


@dataclass(frozen=True, kw_only=True)
class Unavailable:
    """No meter, and the reason in words."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class RaplMeter:
    """The processor's own counters, one file of microjoules for each package."""

    packages: tuple[Path, ...]
    source: str = "RAPL counter"

    @contextlib.contextmanager
    def window(self) -> Iterator[Callable[[], float]]:
        start = [_microjoules(package) for package in self.packages]

        def joules() -> float:
            total = 0
            for package, before in zip(self.packages, start, strict=True):
                moved = _microjoules(package) - before
                # The counter wraps round after some minutes at full power.
                total += moved if moved >= 0 else moved + _range_microjoules(package)
            return total * 1e-6

        yield joules


@dataclass(frozen=True, kw_only=True)
class NvmlCounter:
    """A GPU's own counter of millijoules (Volta and later)."""

    nvml: Any
    handle: Any
    source: str = "NVML counter"

    @contextlib.contextmanager
    def window(self) -> Iterator[Callable[[], float]]:
        start = self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)
        yield lambda: (self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) - start) * 1e-3


@dataclass(frozen=True, kw_only=True)
class NvmlPower:
    """A GPU's power, sampled by a thread and summed over time."""

    nvml: Any
    handle: Any
    clock: Callable[[], float] = time.perf_counter
    source: str = "NVML power, sampled"

    @contextlib.contextmanager
    def window(self) -> Iterator[Callable[[], float]]:
        samples: list[tuple[float, float]] = []
        stop = threading.Event()

        def sample() -> None:
            watts = self.nvml.nvmlDeviceGetPowerUsage(self.handle) * 1e-3
            samples.append((self.clock(), watts))

        def run() -> None:
            while not stop.wait(SAMPLE_PERIOD_S):
                sample()

        sample()
        thread = threading.Thread(target=run, name="power-sampler", daemon=True)
        thread.start()

        def joules() -> float:
            stop.set()
            thread.join()
            sample()
            return _integral(samples)

        try:
            yield joules
        finally:
            stop.set()
            thread.join()


def find_meter(device: str, *, powercap: Path = POWERCAP, nvml: Any = None) -> Meter | Unavailable:
    """The best meter for a device ("cpu", "cuda:0"), or why there is none.

    `nvml` is the module `pynvml` unless given. Never raises for a counter that is missing,
    refused or not supported: that is the answer.
    """
    if device.startswith("cuda"):
        return _find_nvml(int(device.partition(":")[2] or 0), nvml)
    return _find_rapl(powercap)


def _find_rapl(powercap: Path) -> Meter | Unavailable:
    # Packages only ("intel-rapl:0"); "intel-rapl:0:0" is a part of one. AMD uses the name too.
    packages = tuple(
        sorted(path for path in powercap.glob("intel-rapl:*") if path.name.count(":") == 1)
    )
    if not packages:
        return Unavailable(reason=f"this CPU offers no RAPL counter ({powercap} has none)")
    for package in packages:
        try:
            _microjoules(package)
            _range_microjoules(package)
        except PermissionError:
            return Unavailable(
                reason=f"{package / 'energy_uj'} may be read by root only; "
                "an administrator can allow it with chmod a+r"
            )
        except (OSError, ValueError) as error:
            return Unavailable(reason=f"{package / 'energy_uj'} cannot be read ({error})")
    return RaplMeter(packages=packages)


def _find_nvml(index: int, nvml: Any) -> Meter | Unavailable:
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return Unavailable(reason="the package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
        handle = _handle(nvml, index)
    except nvml.NVMLError as error:
        return Unavailable(reason=f"NVML does not answer for GPU {index} ({error})")
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return NvmlCounter(nvml=nvml, handle=handle)
    except nvml.NVMLError as counter_error:
        try:
            nvml.nvmlDeviceGetPowerUsage(handle)
        except nvml.NVMLError as power_error:
            return Unavailable(
                reason=f"GPU {index} gives neither an energy counter ({counter_error}) "
                f"nor its power ({power_error})"
            )
    return NvmlPower(nvml=nvml, handle=handle)


def _handle(nvml: Any, index: int) -> Any:
    """The card that CUDA calls `index`: NVML counts every card, CUDA the visible ones."""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    chosen = visible[index] if index < len(visible) else ""
    if chosen.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(chosen)
    return nvml.nvmlDeviceGetHandleByIndex(int(chosen) if chosen.isdigit() else index)


def measure_energy(
    pipeline: Runnable,
    placed: Sequence[Any],
    *,
    items_per_call: int,
    window_s: float,
    device: str,
    meter: Meter | Unavailable | None = None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> EnergyReading:
    """Joules per 1,000 items in a window of at least `window_s` seconds of calls.

    First the device rests for half as long, and its idle power is subtracted. Where there
    is no meter, where it did not move, or where the idle power was the larger, the reading
    is "unavailable" with the reason: never 0 J.
    """
    if meter is None:
        meter = find_meter(device)
    if isinstance(meter, Unavailable):
        return EnergyReading(source="unavailable", reason=meter.reason)
    idle_start = clock()
    with meter.window() as joules:
        sleep(window_s * IDLE_SHARE)
        idle_joules = joules()
    idle_watts = idle_joules / (clock() - idle_start)
    num_calls = 0
    inputs = cycle(placed)
    pipeline.synchronize()
    start = clock()
    with meter.window() as joules:
        per_look = 1
        while (spent_s := clock() - start) < window_s:
            for arguments in islice(inputs, per_look):
                pipeline.call(arguments)
            pipeline.synchronize()
            num_calls += per_look
            if clock() - start - spent_s < CALLS_PER_LOOK_S:
                per_look *= 2
        busy_joules = joules()
    spent_s = clock() - start
    own_joules = busy_joules - idle_watts * spent_s
    if busy_joules <= 0:
        return EnergyReading(
            source="unavailable",
            reason=f"the {meter.source} did not move in {spent_s:.1f} s of work",
            window_s=spent_s,
        )
    if own_joules <= 0:
        return EnergyReading(
            source="unavailable",
            idle_watts=idle_watts,
            window_s=spent_s,
            reason="no more energy was used than in the idle window before, so others "
            "were using the device; measure again when it is quiet",
        )
    return EnergyReading(
        source=meter.source,
        joules_per_1000_items=1000 * own_joules / (num_calls * items_per_call),
        idle_watts=idle_watts,
        window_s=spent_s,
    )


def _microjoules(package: Path) -> int:
    return int((package / "energy_uj").read_text())


def _range_microjoules(package: Path) -> int:
    return int((package / "max_energy_range_uj").read_text())


def _integral(samples: Sequence[tuple[float, float]]) -> float:
    """Joules under (seconds, watts) samples, by trapezoids."""
    return sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in pairwise(samples))
