"""The processes of a study that runs."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from workbench.core.errors import RunError
from workbench.core.variant import Variant
from workbench.run.client import Client
from workbench.study import Study


def scheduler_pid(study: Study) -> int | None:
    try:
        with Client.connect(study.folder, start=False) as client:
            return client.status().pid
    except RunError:
        return None


def end_scheduler(study: Study) -> None:
    try:
        client = Client.connect(study.folder, start=False)
    except RunError:
        return
    family = descendants(study)
    client.shutdown()
    assert wait_until(lambda: not any(map(psutil.pid_exists, family)))


def descendants(study: Study) -> list[int]:
    """The scheduler's warden, the scheduler and everything below."""
    pid = scheduler_pid(study)
    if pid is None:
        return []
    warden = psutil.Process(pid).parent()
    assert warden is not None
    return [warden.pid, *(child.pid for child in warden.children(recursive=True))]


def wait_until(condition: object, limit_s: float = 10.0) -> bool:
    assert callable(condition)
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


def row(study: Study, number: int) -> Variant:
    return next(v for v in study.variants() if v.number == number)


def rows_with_a_worker(study: Study) -> list[int]:
    """The row of each worker that builds or serves: it writes to its row's log, unlike spares."""
    rows = []
    for pid in descendants(study):
        try:
            command = " ".join(psutil.Process(pid).cmdline())
            log = Path(f"/proc/{pid}/fd/1").resolve()
        except (psutil.Error, OSError):
            continue
        if "workbench.run.worker" in command and log.name == "log.txt":
            rows.append(int(log.parent.name))
    return rows
