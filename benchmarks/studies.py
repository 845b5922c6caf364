"""Small things that several benchmarks do with a study."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import workbench as wb
from benchmarks.command import say
from workbench.core.errors import RunError
from workbench.core.model import Model
from workbench.run.client import Client

# Rows that are wanted for their artifact or their start, not for their speed.
BRIEFLY: dict[str, Any] = {"max_visits": 1, "min_visits": 1}
_QUIET_S = 0.5
_QUIET_LIMIT_S = 120.0


@contextlib.contextmanager
def study_of(model: Model | str, folder: Path) -> Iterator[wb.Study]:
    """A new study whose scheduler is gone when this is left."""
    loaded = wb.load(model) if isinstance(model, str) else model
    folder.parent.mkdir(parents=True, exist_ok=True)
    with wb.Study(loaded, folder) as study:
        try:
            yield study
        finally:
            shut_down(folder)


def shut_down(folder: Path) -> None:
    """End the study's scheduler where one runs, and wait until it is gone."""
    with contextlib.suppress(RunError, psutil.NoSuchProcess):
        client = Client.connect(folder, start=False)
        process = psutil.Process(client.status().pid)
        client.shutdown()
        process.wait(timeout=60)


def wait_until_quiet(client: Client) -> None:
    """Wait until no row is open and the scheduler's processes use no time any more.

    Its spares import torch meanwhile: what is submitted before they have done so waits for
    them, which is no part of a toggle.
    """
    scheduler = psutil.Process(client.status().pid)
    until_s = time.monotonic() + _QUIET_LIMIT_S
    before = -1.0
    while time.monotonic() < until_s:
        status = client.status()
        used = _cpu_seconds(scheduler)
        idle = not status.active and not status.queued and status.num_spares > 0
        if idle and 0 <= used - before < 0.02 * _QUIET_S:
            return
        before = used
        time.sleep(_QUIET_S)
    say("the scheduler did not come to rest; what follows may be slow for it")


def _cpu_seconds(process: psutil.Process) -> float:
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def is_sample(name: str) -> bool:
    """Whether `sample:NAME` can be loaded here."""
    from workbench.sources import sample_names

    return name in sample_names()
