"""Start workers, and leave no descendant behind.

A worker is a process group of its own, so that the group can be killed at once; what leaves
it (a compiler's pool) is found as a descendant, because the scheduler and its warden are
subreapers: an orphan becomes their child, not init's.

It is no session of its own: Linux shares cores out among sessions first ("autogroup", see
sched(7)), and a session that has slept for seconds is placed otherwise than one that is called
in every visit. With a core busy elsewhere a baseline so came out 10 to 25 % faster than itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import psutil

# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# A model's code has no business with these; they are matched as whole words of a name.
_SECRET = re.compile(
    r"(^|_)(TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|CREDENTIALS|"
    r"APIKEY|ACCESS_KEY|API_KEY|PRIVATE_KEY|AUTH|COOKIE|SESSION)(_|$)",
    re.IGNORECASE,
)


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(option, value, 0, 0, 0) == 0)


def become_subreaper() -> bool:
    """Adopt orphaned descendants. False where the platform has no such thing."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the parent dies; leave at once if it is already gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)


def drop_privileges() -> None:
    """Gain no privileges from a program that this process starts."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def prefer_as_victim() -> None:
    """Let the kernel end this process, not the server, when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")


def scrubbed_environment() -> dict[str, str]:
    """This process's environment without what looks like a secret."""
    return {k: v for k, v in os.environ.items() if not _SECRET.search(k)}


class Worker:
    """One child process and the pipe to it.

    `environment` is what was added to the scrubbed environment; whether a spare fits a
    recipe is decided by it.
    """

    def __init__(
        self, python: str, *, with_torch: bool, environment: dict[str, str], log: Path
    ) -> None:
        self.connection, child = Pipe()
        self.environment = dict(environment)
        self.with_torch = with_torch
        self.log = log
        # Orders whose answers have not been read.
        self.num_pending = 0
        # Whether it was made ready to export.
        self.is_primed = False
        command = [python, "-m", "workbench.run.worker", str(child.fileno()), str(os.getpid())]
        if with_torch:
            command.append("--torch")
        root = str(Path(__file__).resolve().parents[2])
        env = scrubbed_environment() | environment
        # The client may have found the package through its own sys.path.
        env["PYTHONPATH"] = os.pathsep.join(p for p in (root, env.get("PYTHONPATH")) if p)
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                command,
                pass_fds=[child.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                process_group=0,
                env=env,
            )
        child.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def close(self) -> int | None:
        """Kill it with its whole group, and return how it ended (as Popen.returncode)."""
        code = self.process.poll()
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        return code if code is not None else self.process.returncode

    def kill(self) -> None:
        """Kill it with its whole group, without waiting for the end."""
        kill_tree(self.process.pid)
        with contextlib.suppress(OSError):
            self.connection.close()

    def exit_code(self, wait_s: float = 1.0) -> int | None:
        """How it ended, given a moment to be reaped; None while it lives."""
        try:
            return self.process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            return None


def kill_tree(pid: int) -> None:
    """SIGKILL a process, its group and every descendant that is known now."""
    victims: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        victims = psutil.Process(pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    for victim in victims:
        with contextlib.suppress(psutil.Error):
            victim.kill()


def kill_strays(keep: Iterable[int]) -> int:
    """Kill descendants of this process that belong to none of the processes in `keep`.

    Orphans of a killed worker were adopted by this process. Returns how many were killed.
    """
    kept = set(keep)
    num_killed = 0
    for _ in range(5):
        strays = []
        for child in psutil.Process().children():
            if child.pid in kept:
                continue
            strays.append(child)
            with contextlib.suppress(psutil.Error):
                strays.extend(child.children(recursive=True))
        if not strays:
            break
        for stray in strays:
            with contextlib.suppress(psutil.Error):
                stray.kill()
                num_killed += 1
        reap(kept)
        time.sleep(0.01)
    return num_killed


def reap(keep: Iterable[int]) -> None:
    """Collect adopted children that have ended, so that they do not stay as zombies."""
    kept = set(keep)
    for child in psutil.Process().children():
        if child.pid not in kept:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def connection_from_fd(fd: int) -> Connection:
    """The worker's end of the pipe that it inherited."""
    return Connection(fd)
