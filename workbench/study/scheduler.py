"""`python -m workbench.study.scheduler STUDY`: the one writer of a study, at work."""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path

from workbench.core.errors import WorkbenchError
from workbench.devices import probe_host
from workbench.run.scheduler import Scheduler
from workbench.study.store import Store


def main(argv: list[str] | None = None) -> int:
    """Run the scheduler of a study until nobody needs it.

    Returns 0 also where another one is at work already: whoever started this one finds that
    one. Rows that a dead scheduler left open are marked interrupted first.
    """
    (folder,) = map(Path, sys.argv[1:] if argv is None else argv)
    # The kernel lets go of the lock when its holder dies, however it dies.
    with (folder / "scheduler.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        try:
            with Store(folder) as store:
                store.mark_interrupted()
                Scheduler(store, probe_host()).run()
        except WorkbenchError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
