"""One comparison at a time per device and machine, across studies and users.

The lock is an flock on a file named by the device: the kernel releases it when its holder
dies. Those who wait hold a ticket, a locked file of their own, whose name gives their place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from pathlib import Path


class DeviceLock:
    """The right to measure on one device of this machine."""

    def __init__(self, device_id: str, folder: Path | None = None) -> None:
        name = re.sub(r"[^A-Za-z0-9]+", "-", device_id)
        self._folder = folder or Path(tempfile.gettempdir()) / "accel-workbench-locks"
        self._path = self._folder / f"{name}.lock"
        self._pattern = f"{name}.ticket-*"
        self._prefix = f"{name}.ticket-"
        self._held: int | None = None
        self._ticket: tuple[int, Path] | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock."""
        return self._held is not None

    def try_acquire(self) -> bool:
        """Take the lock if it is this one's turn; never waits."""
        if self._held is not None:
            return True
        self._make_folder()
        if self._ticket is None:
            self._ticket = self._draw_ticket()
        if self.place() > 0:
            return False
        descriptor = _open(self._path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._held = descriptor
        self._return_ticket()
        return True

    def place(self) -> int:
        """How many wait before this one; 0 where it is next or was never in the queue."""
        if self._ticket is None:
            return 0
        mine = self._ticket[1].name
        return sum(
            1 for path in self._folder.glob(self._pattern) if path.name < mine and _is_alive(path)
        )

    def release(self) -> None:
        """Let the next one in; also leaves the queue."""
        self._return_ticket()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _make_folder(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o1777)
            self._folder.chmod(0o1777)

    def _draw_ticket(self) -> tuple[int, Path]:
        path = self._folder / f"{self._prefix}{time.time_ns():020d}-{os.getpid()}"
        descriptor = _open(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor, path

    def _return_ticket(self) -> None:
        if self._ticket is not None:
            descriptor, path = self._ticket
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)
            self._ticket = None


def _open(path: Path) -> int:
    # Readable for every user, and never through somebody's symbolic link.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, 0o666)
    return descriptor


def _is_alive(path: Path) -> bool:
    """Whether somebody still holds this ticket; a dead one's file is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        with contextlib.suppress(OSError):
            path.unlink()
        return False
    finally:
        os.close(descriptor)
