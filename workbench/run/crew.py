"""The scheduler's workers: warm spares, orders with a time limit, nothing left behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

import msgspec

from workbench.levers.threads import default_environment
from workbench.run import protocol
from workbench.run.failures import StageTimeout, WorkerFailed, WorkerGone
from workbench.run.processes import Worker, kill_strays, reap

_NUM_SPARES = 2
# A worker that lost its pipe to a forked child gives no end-of-file: look at it now and then.
_LOOK_S = 0.5
_START_LIMIT_S = 120.0


class Crew:
    """Starts, orders and ends workers.

    `attend` is called whenever a client may have asked for something, with the wake pipe
    readable or not; it may raise to abandon the order that is being waited for.
    """

    def __init__(
        self,
        python: str,
        *,
        has_torch: bool,
        log: Path,
        wake_fd: int,
        attend: Callable[[], None],
    ) -> None:
        self._python = python
        self._has_torch = has_torch
        self._log = log
        self._wake_fd = wake_fd
        self._attend = attend
        self._spares: list[Worker] = []
        self._ready: set[int] = set()
        self._workers: list[Worker] = []

    @property
    def num_spares(self) -> int:
        """Spares that are warm or warming."""
        return len(self._spares)

    def refill(self, num_spares: int = _NUM_SPARES) -> None:
        """Start spares until there are so many. Call it only while nothing measures."""
        while self._has_torch and len(self._spares) < num_spares:
            self._spares.append(self._spawn(with_torch=True, environment=default_environment()))

    def prime(self) -> None:
        """Make one warm spare ready to export, without waiting for it; only while idle."""
        if any(spare.is_primed for spare in self._spares):
            return
        for spare in self._spares:
            if spare.pid in self._ready or spare.connection.poll(0):
                self._await_ready(spare)
                protocol.send(spare.connection, protocol.Prime())
                spare.num_pending += 1
                spare.is_primed = True
                return

    def settle(self) -> None:
        """Wait until every spare has finished its imports: they would disturb a round."""
        for spare in list(self._spares):
            try:
                self._await_ready(spare)
                if spare.num_pending:
                    self._answer(spare, "load", _START_LIMIT_S, None)
            except (WorkerGone, StageTimeout):
                # The row that needs torch will say what is wrong with it.
                self.dismiss(spare)

    def take(
        self,
        *,
        with_torch: bool,
        environment: dict[str, str],
        assign: protocol.Assign,
        to_export: bool = False,
    ) -> tuple[Worker, bool]:
        """A worker for one variant, and whether it was started cold for it.

        A spare is taken where torch is wanted and the environment is the default's;
        `to_export` prefers one that is primed for it, others are left that one.
        """
        wanted = default_environment() | environment
        spare = None
        if with_torch and not environment and self._spares:
            spare = min(self._spares, key=lambda each: each.is_primed != to_export)
            self._spares.remove(spare)
        worker = spare or self._spawn(with_torch=with_torch, environment=wanted)
        self._workers.append(worker)
        try:
            self._await_ready(worker)
            worker.log = Path(assign.log)
            self.ask(worker, assign, stage="load", limit_s=30.0)
        except BaseException:
            self.dismiss(worker)
            raise
        return worker, spare is None

    def ask(
        self,
        worker: Worker,
        order: protocol.Message,
        *,
        stage: str,
        limit_s: float,
        on_note: Callable[[str], None] | None = None,
    ) -> protocol.FromWorker:
        """Give an order and wait for its answer, attending to clients meanwhile.

        Raises WorkerGone, WorkerFailed or StageTimeout, or what `attend` raises. Where the
        worker is asked again after that, its late answer to this order is skipped.
        """
        try:
            protocol.send(worker.connection, order)
            worker.num_pending += 1
        except OSError as error:
            raise WorkerGone(worker.exit_code()) from error
        return self._answer(worker, stage, limit_s, on_note)

    def pause(self, seconds: float) -> None:
        """Wait, attending to clients."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            wait([self._wake_fd], left_s)
            self._attend()

    def wait_for_a_client(self, limit_s: float) -> None:
        """Wait until a client has asked for something, which is attended to; at most so long."""
        wait([self._wake_fd], limit_s)
        self._attend()

    def dismiss(self, worker: Worker) -> None:
        """End a worker and everything that came from it."""
        worker.close()
        self._forget(worker)
        kill_strays(self._pids())

    def let_go(self, worker: Worker) -> None:
        """End a worker that has done its work, while the next one goes on.

        Whatever it leaves is collected when the next worker is dismissed.
        """
        worker.kill()
        self._forget(worker)

    def dismiss_all(self) -> None:
        """End everything."""
        for worker in [*self._workers, *self._spares]:
            worker.close()
        self._workers.clear()
        self._spares.clear()
        kill_strays(())

    def reap(self) -> None:
        """Collect orphans that ended by themselves."""
        reap(self._pids())

    def _forget(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        if worker in self._spares:
            self._spares.remove(worker)
        self._ready.discard(worker.pid)

    def _pids(self) -> list[int]:
        return [worker.pid for worker in (*self._workers, *self._spares)]

    def _spawn(self, *, with_torch: bool, environment: dict[str, str]) -> Worker:
        return Worker(self._python, with_torch=with_torch, environment=environment, log=self._log)

    def _await_ready(self, worker: Worker) -> None:
        if worker.pid not in self._ready:
            worker.num_pending = 1
            answer = self._answer(worker, "load", _START_LIMIT_S, None)
            assert isinstance(answer, protocol.Ready)
            self._ready.add(worker.pid)

    def _answer(
        self,
        worker: Worker,
        stage: str,
        limit_s: float,
        on_note: Callable[[str], None] | None,
    ) -> protocol.FromWorker:
        deadline_s = time.monotonic() + limit_s
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise StageTimeout(stage, limit_s)
            found = wait([worker.connection, self._wake_fd], min(left_s, _LOOK_S))
            if worker.connection in found:
                try:
                    answer = protocol.receive_answer(worker.connection)
                except (EOFError, OSError, msgspec.MsgspecError) as error:
                    raise WorkerGone(worker.exit_code()) from error
                if isinstance(answer, protocol.Note):
                    if on_note is not None:
                        on_note(answer.text)
                    continue
                worker.num_pending -= 1
                if worker.num_pending > 0:
                    continue
                if isinstance(answer, protocol.Failed):
                    raise WorkerFailed(answer)
                return answer
            if not found and worker.process.poll() is not None:
                with contextlib.suppress(OSError):
                    if worker.connection.poll(0):
                        continue
                raise WorkerGone(worker.exit_code())
            if self._wake_fd in found:
                self._attend()
