"""Peak memory of this very process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workbench.measure.memory import MemoryMeter

MB = 1_000_000


def touch(num_bytes: int) -> None:
    """Allocate, write every page and let go."""
    np.ones(num_bytes // 8).sum()


def test_a_peak_that_is_gone_again_is_still_seen() -> None:
    meter = MemoryMeter()
    meter.start()
    touch(200 * MB)
    reading = meter.read()
    meter.stop()
    assert reading.host_peak_bytes is not None
    assert 150 * MB < reading.host_peak_bytes < 400 * MB
    assert reading.host_start_bytes is not None
    assert reading.host_start_bytes > 0


def test_the_peak_before_the_start_is_not_the_rows() -> None:
    touch(300 * MB)
    meter = MemoryMeter()
    meter.start()
    reading = meter.read()
    meter.stop()
    assert reading.host_peak_bytes is not None
    assert reading.host_peak_bytes < 100 * MB


def test_without_the_kernels_counter_the_reading_says_that_it_was_sampled(tmp_path: Path) -> None:
    meter = MemoryMeter(proc=tmp_path / "absent")
    meter.start()
    kept = np.ones(20 * MB)
    for _ in range(200):
        # The sampler runs beside this; it needs a few of its periods.
        kept += 1
        if (meter.read().host_peak_bytes or 0) > 100 * MB:
            break
    reading = meter.read()
    meter.stop()
    assert reading.host_peak_bytes is not None
    assert reading.host_peak_bytes > 100 * MB
    assert "sampled" in reading.notes[0]


def test_a_peak_that_cannot_be_read_is_none_and_not_zero(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmHWM:\t 1000 kB\n")
    meter = MemoryMeter(proc=tmp_path)
    meter.start()
    (tmp_path / "status").write_text("Name: gone\n")
    reading = meter.read()
    assert reading.host_peak_bytes is None
    assert reading.notes


def test_allocator_figures_are_kept_apart() -> None:
    """P34: allocated, reserved and device are three figures."""

    class OnGpu:
        def memory(self) -> dict[str, int]:
            return {"allocator_peak_bytes": 100, "allocator_reserved_bytes": 300}

    meter = MemoryMeter()
    meter.start()
    reading = meter.read(OnGpu())
    meter.stop()
    assert reading.allocator_peak_bytes == 100
    assert reading.allocator_reserved_bytes == 300
    assert reading.device_used_bytes is None
