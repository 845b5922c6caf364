"""`python -m workbench.study.scheduler STUDY`: the scheduler process of one study.

The process that is started becomes a warden, which does nothing but wait: when the
scheduler, its child, ends in whatever way, the warden kills every process that is left.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Run the scheduler of a study; 0 also where another one has it already."""
    study = Path(argv[0]).resolve()
    lock = os.open(study / ".scheduler.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    from workbench.run.processes import become_subreaper, die_with_parent, kill_strays

    become_subreaper()
    warden = os.getpid()
    # Ctrl-C in the terminal that started us is the client's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        die_with_parent(warden)
        become_subreaper()
        os._exit(_serve(study))
    _, status = os.waitpid(child, 0)
    kill_strays(())
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _serve(study: Path) -> int:
    import traceback

    from workbench.devices import probe_host
    from workbench.run.scheduler import Scheduler
    from workbench.study.store import Store

    try:
        store = Store(study)
        store.mark_interrupted()
        idle_exit_s = float(os.environ.get("WORKBENCH_IDLE_EXIT_S", "300"))
        Scheduler(store, probe_host(), idle_exit_s=idle_exit_s).run()
    except BaseException:  # noqa: BLE001 - the process ends here; its log says why
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
