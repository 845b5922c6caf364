"""A client's side: start the scheduler on demand, submit, follow, stop."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client as connect
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from workbench.core import errors
from workbench.core.errors import RunError
from workbench.core.profile import ENDED
from workbench.core.recipe import Recipe
from workbench.core.variant import FINAL_STATES, Progress, RunOptions
from workbench.run import protocol
from workbench.run.hub import read_door

_START_LIMIT_S = 60.0
_ANSWER_LIMIT_S = 30.0
_RACE_S = 3.0


class Client:
    """One connection to the scheduler of a study."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._events: list[Progress] = []

    @classmethod
    def connect(cls, study: Path, *, python: str | None = None, start: bool = True) -> Client:
        """Connect to the study's scheduler, and start one where none runs.

        `python` is the interpreter that runs the workers (this one unless named). Raises
        RunError where no scheduler runs and `start` is False, or where it cannot start.
        """
        study = study.resolve()
        found = _try_connect(study)
        if found is not None:
            return cls(found)
        if not start:
            raise RunError(f"no scheduler runs for {study}.")
        log = study / "scheduler.log"
        # One that lost the race for the study finds the other still starting; one that worked on
        # the study in another place is about to leave.
        until_s = time.monotonic() + _RACE_S
        while found is None and time.monotonic() < until_s:
            _start(study, python or sys.executable, log)
            soon_s = min(until_s, time.monotonic() + _RACE_S / 4)
            while (found := _try_connect(study)) is None and time.monotonic() < soon_s:
                time.sleep(0.01)
        if found is None:
            tail = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RunError(
                f"the scheduler of {study} did not start: {' '.join(tail)} The whole log is {log}."
            )
        return cls(found)

    def submit(self, recipes: Sequence[Recipe], options: RunOptions) -> list[int]:
        """Queue recipes; returns their rows' numbers. Raises what the scheduler refuses."""
        answer = self._ask(
            protocol.Submit(
                recipes=[recipe.spec for recipe in recipes],
                options=msgspec.json.encode(options),
            )
        )
        assert isinstance(answer, protocol.Accepted)
        return answer.numbers

    def profile(self, numbers: Sequence[int], iterations: int, *, stacks: bool = False) -> str:
        """Queue profiles of rows; returns a token by which they are told and stopped.

        Raises RunError where one of them cannot be profiled; then none is queued.
        """
        token = secrets.token_hex(4)
        self._ask(
            protocol.Profile(
                numbers=list(numbers), iterations=iterations, stacks=stacks, token=token
            )
        )
        return token

    def stop_profiles(self, token: str) -> list[int]:
        """Stop the profiles that a token stands for; the rows themselves go on."""
        answer = self._ask(protocol.Stop(numbers=None, token=token))
        assert isinstance(answer, protocol.Accepted)
        return answer.numbers

    def resume(self, numbers: Sequence[int], options: RunOptions | None = None) -> list[int]:
        """Queue rows again that were stopped, interrupted or failed."""
        encoded = None if options is None else msgspec.json.encode(options)
        answer = self._ask(protocol.Resume(numbers=list(numbers), options=encoded))
        assert isinstance(answer, protocol.Accepted)
        return answer.numbers

    def stop(self, numbers: Sequence[int] | None = None) -> list[int]:
        """Stop rows, or everything; returns the numbers that were stopped or will be."""
        wanted = None if numbers is None else list(numbers)
        answer = self._ask(protocol.Stop(numbers=wanted))
        assert isinstance(answer, protocol.Accepted)
        return answer.numbers

    def status(self) -> protocol.StatusReply:
        """What runs and what waits."""
        answer = self._ask(protocol.Status())
        assert isinstance(answer, protocol.StatusReply)
        return answer

    def shutdown(self) -> None:
        """Stop everything and end the scheduler."""
        with contextlib.suppress(OSError, EOFError):
            protocol.send(self._connection, protocol.Shutdown())
            while True:
                protocol.receive_reply(self._connection)
        self.close()

    def events(self, timeout_s: float | None = None) -> Iterator[Progress]:
        """Progress as it comes, until nothing came for `timeout_s` or the scheduler left."""
        while True:
            if self._events:
                yield self._events.pop(0)
                continue
            if not self._connection.poll(timeout_s):
                return
            try:
                message = protocol.receive_reply(self._connection)
            except (EOFError, OSError):
                return
            if isinstance(message, protocol.Event):
                yield msgspec.json.decode(message.progress, type=Progress)

    def wait(
        self,
        numbers: Sequence[int],
        on_progress: Callable[[Progress], None] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Follow rows until each has ended and been profiled, where that is to come.

        Raises RunError where the scheduler is gone.
        """
        open_rows, ended = set(numbers), set[int]()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while open_rows:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            # Progress may be dropped when we read too slowly: ask when it is quiet.
            quiet_s = 2.0 if left_s is None else min(2.0, left_s)
            for progress in self.events(quiet_s):
                if on_progress is not None:
                    on_progress(progress)
                if progress.profile in ENDED or (
                    progress.profile is None and progress.state in FINAL_STATES
                ):
                    ended.add(progress.number)
                if open_rows <= ended:
                    break
                if deadline_s is not None and time.monotonic() > deadline_s:
                    return
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return
            status = self.status()
            open_rows &= {*status.queued, *status.active, *status.profiling}
            ended.clear()

    def close(self) -> None:
        """Hang up. What was submitted goes on."""
        with contextlib.suppress(OSError):
            self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: protocol.ToScheduler) -> protocol.FromScheduler:
        try:
            protocol.send(self._connection, request)
            deadline_s = time.monotonic() + _ANSWER_LIMIT_S
            while time.monotonic() < deadline_s:
                if not self._connection.poll(deadline_s - time.monotonic()):
                    break
                answer = protocol.receive_reply(self._connection)
                if isinstance(answer, protocol.Event):
                    self._events.append(msgspec.json.decode(answer.progress, type=Progress))
                    continue
                if isinstance(answer, protocol.Refused):
                    kind = getattr(errors, answer.error, RunError)
                    raise kind(answer.message)
                return answer
        except (EOFError, OSError) as error:
            raise RunError(
                "the scheduler is gone; what it reported is kept, and running again goes on."
            ) from error
        raise RunError("the scheduler does not answer.")


def _try_connect(study: Path) -> Connection | None:
    door = read_door(study)
    if door is None:
        return None
    try:
        return connect(door.address, "AF_UNIX", authkey=door.key.encode())
    except (OSError, EOFError, AuthenticationError):
        return None


def _start(study: Path, python: str, log: Path) -> None:
    """Start a scheduler, and return once it listens or has failed to."""
    root = str(Path(__file__).resolve().parents[2])
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, env.get("PYTHONPATH")) if p)
    with log.open("ab") as stream, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [python, "-m", "workbench.study.scheduler", str(study)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=env,
            timeout=_START_LIMIT_S,
            check=False,
        )
