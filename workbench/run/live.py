"""A row that is being worked on: its server, and what was measured with it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from workbench.core.measurement import Visit
from workbench.core.recipe import Recipe
from workbench.core.variant import RunOptions
from workbench.devices.live import gpu_counters
from workbench.levers.step import Context
from workbench.run import protocol
from workbench.run.processes import Worker

# Seconds that a stage may take unless the options say otherwise. They are there to end what
# hangs, so they are generous: autotuning a large model does take half an hour.
LIMITS_S: dict[str, float] = {
    "prepare": 900.0,
    "build": 2400.0,
    "load": 600.0,
    "check": 600.0,
    "measure": 300.0,
    "profile": 900.0,
}


@dataclass(kw_only=True, eq=False)
class Live:
    """One row with a serving worker.

    `worker` is None while the row is asleep: where memory or the device does not hold two
    servers at once, they take turns. `called_s` is when it was last called (monotonic).
    `rest_s` is how long it rests after its round before another side is timed: spinning
    threads go on for a while. `ended_s` is when its last visit ended (monotonic), and
    `measured_s` the time its rounds and the baseline's beside them have taken. `process`
    counts the servers of a study, so that visits tell which two processes they are of;
    `num_visits_in_process` is how many visits this server has made. `device_used_bytes` is by
    how much a GPU's memory in use grew while its first server was loaded and warmed up; None
    on a CPU and where the driver does not say. `folder` is the artifact that it was loaded from.
    """

    number: int
    role: Literal["baseline", "control", "variant"]
    recipe: Recipe
    options: RunOptions
    context: Context
    worker: Worker | None
    loaded: protocol.Loaded
    process: int
    visits: list[Visit] = field(default_factory=list)
    first_visit: int = 0
    measured_s: float = 0.0
    ended_s: float = 0.0
    call_s: float = 0.0
    called_s: float = field(default_factory=time.monotonic)
    rest_s: float = 0.0
    num_visits_in_process: int = 0
    device_used_bytes: int | None = None
    folder: Path | None = None

    @property
    def server(self) -> Worker:
        """The serving worker of a row that is awake."""
        assert self.worker is not None, f"#{self.number} is asleep"
        return self.worker

    @property
    def num_items(self) -> int:
        """Items that one call computes."""
        return self.loaded.items_per_call

    @property
    def start_s(self) -> float:
        """About what a fresh server of it costs, the engine's import apart."""
        return self.loaded.load_s + self.loaded.first_call_s

    def limit_s(self, stage: str) -> float:
        """Seconds that a stage of this row may take."""
        return limit_s(self.options, stage)


def limit_s(options: RunOptions, stage: str) -> float:
    """Seconds that a stage may take under these options."""
    return (options.limits_s or {}).get(stage, LIMITS_S[stage])


def used_bytes(context: Context) -> int | None:
    """Bytes in use on the context's GPU, by everybody; None on a CPU or where it is not said."""
    if context.device.kind != "cuda":
        return None
    return gpu_counters(context.device.id).memory_used_bytes


def grown_bytes(before: int | None, after: int | None) -> int | None:
    """By how much it grew; None where a reading is missing or others gave memory back."""
    if before is None or after is None or after < before:
        return None
    return after - before
