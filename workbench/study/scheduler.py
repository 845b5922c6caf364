"""`python -m workbench.study.scheduler STUDY`: the scheduler process of one study.

The process that is started becomes a warden, which does nothing but wait: when the
scheduler, its child, ends in whatever way, the warden kills every process that is left.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Start the scheduler of a study and return once it listens, or with 1 if it cannot.

    Where another one has the study already there is nothing to do. The process that was
    called returns; what it leaves behind belongs to nobody's terminal or kernel.
    """
    from workbench.run.processes import become_subreaper, die_with_parent, kill_strays

    study = Path(argv[0]).resolve()
    lock = os.open(study / ".scheduler.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    ready, listening = os.pipe()
    if os.fork() != 0:
        os.close(listening)
        return 0 if os.read(ready, 1) else 1
    os.close(ready)
    os.setsid()
    become_subreaper()
    warden = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(warden)
        become_subreaper()
        os._exit(_serve(study, listening))
    os.close(listening)
    os.waitpid(child, 0)
    kill_strays(())
    os._exit(0)


def _serve(study: Path, listening: int) -> int:
    import traceback

    from workbench.devices import probe_host
    from workbench.run.scheduler import Scheduler
    from workbench.study.store import Store

    try:
        store = Store(study)
        store.mark_interrupted()
        idle_exit_s = float(os.environ.get("WORKBENCH_IDLE_EXIT_S", "300"))
        scheduler = Scheduler(store, probe_host(), idle_exit_s=idle_exit_s)
        os.write(listening, b"1")
        os.close(listening)
        scheduler.run()
    except BaseException:  # noqa: BLE001 - the process ends here; its log says why
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
