"""The scheduler's side of its clients: a socket that only this user can open.

Threads accept, read and write; the scheduler's main thread takes requests from a queue and
is woken by a pipe, so that it can wait for a worker and for clients at once. A client that
does not read loses progress, never the scheduler's time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import secrets
import stat
import tempfile
import threading
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import msgspec

from workbench.core.errors import RunError
from workbench.run import protocol

_MAX_UNREAD_EVENTS = 256


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """Where a study's scheduler listens: `scheduler.json`, readable by this user alone.

    `place` is the folder that it works on: a copy of a study has a copy of its door.
    """

    pid: int
    address: str
    key: str
    place: str


def door_path(study: Path) -> Path:
    """The file that tells clients where the study's scheduler listens."""
    return study / "scheduler.json"


def read_door(study: Path) -> Door | None:
    """The door of a study's scheduler; None where there is none, or one of another folder."""
    try:
        door = msgspec.json.decode(door_path(study).read_bytes(), type=Door)
    except (OSError, msgspec.MsgspecError):
        return None
    return door if door.place == place_of(study) else None


def place_of(study: Path) -> str | None:
    """A folder by its path and identity; None where there is none."""
    try:
        found = study.resolve().stat()
    except OSError:
        return None
    return f"{found.st_dev}:{found.st_ino}:{study.resolve()}"


def runtime_folder() -> Path:
    """A folder for sockets that only this user can enter.

    Socket paths are limited to about 100 bytes, so they do not lie in the study. Raises
    RunError where somebody else owns the folder.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and Path(base).is_dir() and os.access(base, os.W_OK):
        folder = Path(base) / "accel-workbench"
    else:
        folder = Path(tempfile.gettempdir()) / f"accel-workbench-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
        or stat.S_IMODE(status.st_mode) & 0o077
    ):
        raise RunError(f"{folder} is not a folder that only you can open; remove it and try again.")
    return folder


class Client:
    """One connected client, as the scheduler sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._outbox: queue.Queue[protocol.Message | None] = queue.Queue()
        self.is_gone = False
        threading.Thread(target=self._write, daemon=True).start()

    def send(self, message: protocol.Message) -> None:
        """Queue a message; events are dropped while too many are unread."""
        is_event = isinstance(message, protocol.Event)
        if is_event and self._outbox.qsize() > _MAX_UNREAD_EVENTS:
            return
        self._outbox.put(message)

    def close(self) -> None:
        """Hang up, once what was queued is written."""
        self._outbox.put(None)

    def _write(self) -> None:
        while True:
            message = self._outbox.get()
            if message is None:
                break
            try:
                protocol.send(self._connection, message)
            except (OSError, ValueError):
                break
        self.is_gone = True
        with contextlib.suppress(OSError):
            self._connection.close()


class Hub:
    """Listens for clients, collects their requests and tells them what happens."""

    def __init__(self, study: Path) -> None:
        self._study = study
        key = secrets.token_hex(32)
        name = hashlib.sha256(str(study.resolve()).encode()).hexdigest()[:16]
        address = runtime_folder() / f"{name}-{os.getpid()}.sock"
        self._listener = Listener(str(address), "AF_UNIX", backlog=16, authkey=key.encode())
        self.requests: queue.Queue[tuple[Client, protocol.ToScheduler]] = queue.Queue()
        self._clients: list[Client] = []
        self._guard = threading.Lock()
        self.wake_fd, self._wake_write = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_write, False)
        self._place = place_of(study) or ""
        door = Door(pid=os.getpid(), address=str(address), key=key, place=self._place)
        # Written beside and moved into place, so that no client reads half of it.
        temporary = door_path(study).with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.json.encode(door))
        temporary.replace(door_path(study))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_at_home(self) -> bool:
        """Whether the study is still where it was: it may have been moved or deleted."""
        return place_of(self._study) == self._place

    @property
    def num_clients(self) -> int:
        """How many clients are connected."""
        with self._guard:
            self._clients = [client for client in self._clients if not client.is_gone]
            return len(self._clients)

    def broadcast(self, message: protocol.Message) -> None:
        """Tell every client."""
        with self._guard:
            for client in self._clients:
                client.send(message)

    def drain_wake(self) -> None:
        """Forget that somebody called; the requests are in the queue."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake_fd, 4096):
                pass

    def close(self) -> None:
        """Stop listening and forget the door."""
        if self.is_at_home:
            door_path(self._study).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.close()
        with self._guard:
            for client in self._clients:
                client.close()

    def _accept(self) -> None:
        from multiprocessing import AuthenticationError

        while True:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue
            except OSError:
                return
            client = Client(connection)
            with self._guard:
                self._clients.append(client)
            threading.Thread(target=self._read, args=(client, connection), daemon=True).start()

    def _read(self, client: Client, connection: Connection) -> None:
        while True:
            try:
                request = protocol.receive_request(connection)
            except msgspec.MsgspecError as error:
                client.send(protocol.Refused(error="RunError", message=f"not a request: {error}"))
                continue
            except (EOFError, OSError):
                break
            self.requests.put((client, request))
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_write, b"x")
        client.is_gone = True
        client.close()
