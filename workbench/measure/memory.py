"""Peak memory of a worker, above what its imports already took."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil

from workbench.core.measurement import MemoryReading

SAMPLE_PERIOD_S = 0.01


class Accounted(Protocol):
    """What a memory reading needs of a pipeline: its allocator's figures, {} on a CPU."""

    @property
    def memory(self) -> Callable[[], Mapping[str, Any]]: ...


class MemoryMeter:
    """Watches the peak resident set of this process from `start` on.

    On Linux the kernel keeps the peak itself; it is reset at `start` where /proc allows it,
    so no short peak is missed. Elsewhere a thread samples every 10 ms and the reading says so.
    `proc` is where the kernel's files of this process lie.
    """

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._proc = proc
        self._start_bytes: int | None = None
        self._sampler: _Sampler | None = None

    def start(self) -> None:
        """Take the present level as the start; call it after the engine's import."""
        self.stop()
        self._start_bytes = _resident_bytes()
        if not _reset_peak(self._proc) or _peak_bytes(self._proc) is None:
            self._sampler = _Sampler()
            self._sampler.start()

    def stop(self) -> None:
        """End the sampling thread where there is one."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def read(self, pipeline: Accounted | None = None) -> MemoryReading:
        """The peak since `start`, and the pipeline's own figures of its allocator.

        `Pipeline.memory()` may give "allocator_peak_bytes", "allocator_reserved_bytes" and
        "device_used_bytes". What is not there is None.
        """
        assert self._start_bytes is not None, "start() comes first"
        notes: tuple[str, ...] = ()
        peak: int | None
        if self._sampler is not None:
            peak = self._sampler.peak_bytes
            notes = (f"sampled every {SAMPLE_PERIOD_S * 1000:.0f} ms: shorter peaks are missed",)
        else:
            peak = _peak_bytes(self._proc)
        if peak is None:
            notes = ("the peak of the resident set could not be read",)
        figures = pipeline.memory() if pipeline is not None else {}
        return MemoryReading(
            host_peak_bytes=None if peak is None else max(0, peak - self._start_bytes),
            host_start_bytes=self._start_bytes,
            allocator_peak_bytes=_bytes_or_none(figures, "allocator_peak_bytes"),
            allocator_reserved_bytes=_bytes_or_none(figures, "allocator_reserved_bytes"),
            device_used_bytes=_bytes_or_none(figures, "device_used_bytes"),
            notes=notes,
        )


class _Sampler:
    def __init__(self) -> None:
        self.peak_bytes = _resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_PERIOD_S):
            self.peak_bytes = max(self.peak_bytes, _resident_bytes())


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _reset_peak(proc: Path) -> bool:
    """Set the kernel's high-water mark back to the present level (Linux, since 4.0)."""
    try:
        (proc / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak_bytes(proc: Path) -> int | None:
    try:
        lines = (proc / "status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    return None


def _bytes_or_none(figures: Mapping[str, Any], name: str) -> int | None:
    value = figures.get(name)
    return None if value is None else int(value)
