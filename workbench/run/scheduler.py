"""The one process that decides what runs next, and the only writer of a study.

Its main thread does everything: it gives orders to workers and, while it waits for their
answers, attends to clients. So it can stop a row at any moment and never races with itself.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from workbench.core.device import Host
from workbench.core.errors import RecipeError, RunError, WorkbenchError
from workbench.core.failure import Stage
from workbench.core.recipe import Recipe
from workbench.core.variant import Progress, RunOptions
from workbench.engines import load_all
from workbench.engines.engine import engine
from workbench.levers.table import resolve
from workbench.run import protocol
from workbench.run.bringup import BringUp
from workbench.run.crew import Crew
from workbench.run.failures import RowStopped, stopped
from workbench.run.group import Group
from workbench.run.hub import Hub
from workbench.run.lock import DeviceLock
from workbench.run.profiling import Profiler
from workbench.run.records import Records

_IDLE_EXIT_S = 300.0
# An idle baseline is kept, so that the next toggle need not wait for it.
_KEEP_BASELINE_S = 120.0
# How often a client is told that it still waits for the device.
_SAY_AGAIN_S = 5.0


class Scheduler:
    """Runs one study until nobody needs it.

    It leaves after `idle_exit_s` without work and without a client.
    """

    def __init__(
        self,
        records: Records,
        host: Host,
        *,
        idle_exit_s: float = _IDLE_EXIT_S,
        lock_folder: Path | None = None,
    ) -> None:
        load_all()
        self._records = records
        records.set_host(host)
        self._device = host.devices[0]
        self._hub = Hub(records.folder)
        self._crew = Crew(
            host.python,
            has_torch="torch" in host.packages,
            log=records.folder / "scheduler.log",
            wake_fd=self._hub.wake_fd,
            attend=self._attend,
        )
        self._group = Group(records, self._crew, host, self._device, self._tell)
        self._profiler = Profiler(
            records, self._crew, BringUp(records, self._crew, host, self._device), self._tell
        )
        self._lock = DeviceLock(self._device.id, lock_folder)
        self._queue: list[int] = []
        self._stopping: set[int] = set()
        self._leaving = False
        self._said_place = ""
        self._said_place_s = 0.0
        self._idle_exit_s = idle_exit_s
        self._idle_since_s = time.monotonic()

    # The loop -------------------------------------------------------------------------

    def run(self) -> None:
        """Work until told to leave, or idle with no client for a while."""
        try:
            self._crew.refill()
            # What is written to a study that was moved would be lost.
            while not self._leaving and self._hub.is_at_home:
                try:
                    self._attend()
                    if not self._step() and self._rest():
                        break
                except RowStopped:
                    # Raised between two orders: no row's work was going on.
                    continue
        finally:
            self._crew.dismiss_all()
            self._lock.release()
            self._hub.close()

    def _step(self) -> bool:
        """Do one piece of work; False where there is none."""
        is_measured = not self._queue and self._group.is_empty
        if is_measured and not self._profiler.numbers:
            return False
        self._idle_since_s = time.monotonic()
        if not self._lock.try_acquire():
            self._tell_place()
            self._crew.wait_for_a_client(0.2)
            return True
        if is_measured:
            # An idle baseline leaves the device to the one that is recorded.
            self._group.drop_baseline()
            number = self._profiler.numbers[0]
            self._profiler.record_next()
            self._stopping.discard(number)
        elif self._queue and self._group.has_room():
            number = self._queue.pop(0)
            self._warm_for_the_rest()
            self._group.guarded(number, self._group.start)
            # The control is a part of the baseline's row.
            options = self._records.variant(number).options
            self._group.guarded(1, lambda _: self._group.add_control(options))
            self._stopping -= {1, number}
        else:
            self._group.measure_next()
        return True

    def _rest(self) -> bool:
        """Wait for a request; True where it is time to leave."""
        self._lock.release()
        self._crew.refill()
        self._crew.prime()
        self._crew.reap()
        idle_s = time.monotonic() - self._idle_since_s
        if idle_s > _KEEP_BASELINE_S:
            self._group.drop_baseline()
        if idle_s > self._idle_exit_s and self._hub.num_clients == 0:
            return True
        self._crew.wait_for_a_client(min(1.0, self._idle_exit_s))
        return False

    def _warm_for_the_rest(self) -> None:
        """Warm spares for the rows that wait, while this one is built."""
        waiting = [self._records.variant(n).recipe.engine for n in self._queue]
        if any(engine(name).serves_with_torch for name in waiting):
            self._crew.refill()

    # Clients --------------------------------------------------------------------------

    def _attend(self) -> None:
        """Take every request; raises RowStopped where the current row is to stop."""
        self._hub.drain_wake()
        while not self._hub.requests.empty():
            client, request = self._hub.requests.get_nowait()
            try:
                client.send(self._reply(request))
            except WorkbenchError as error:
                client.send(protocol.Refused(error=type(error).__name__, message=str(error)))
        current = {self._group.current, self._profiler.current}
        if self._leaving or current & self._stopping:
            raise RowStopped("stopped")

    def _reply(self, request: protocol.ToScheduler) -> protocol.FromScheduler:
        self._idle_since_s = time.monotonic()
        match request:
            case protocol.Submit():
                options = msgspec.json.decode(request.options, type=RunOptions)
                recipes = [Recipe.parse(spec) for spec in request.recipes]
                return protocol.Accepted(numbers=self._submit(recipes, options))
            case protocol.Profile():
                self._profiler.ask(
                    request.numbers,
                    request.iterations,
                    stacks=request.stacks,
                    token=request.token,
                )
                return protocol.Accepted(numbers=request.numbers)
            case protocol.Resume():
                encoded = request.options
                given = None if encoded is None else msgspec.json.decode(encoded, type=RunOptions)
                return protocol.Accepted(numbers=self._resume(request.numbers, given))
            case protocol.Stop():
                return protocol.Accepted(numbers=self._stop(request.numbers, request.token))
            case protocol.Status():
                return protocol.StatusReply(
                    pid=os.getpid(),
                    active=[n for n in self._open_rows() if n not in self._queue],
                    queued=list(self._queue),
                    num_spares=self._crew.num_spares,
                    profiling=self._profiler.numbers,
                    waiting_for_device=None if self._lock.is_held else self._lock.place(),
                )
            case protocol.Shutdown():
                self._stop(None)
                self._leaving = True
                return protocol.Accepted(numbers=[])

    def _submit(self, recipes: list[Recipe], options: RunOptions) -> list[int]:
        if options.profile is not None and options.profile < 1:
            raise RunError(f"a profile needs 1 iteration or more, not {options.profile}.")
        for recipe in recipes:
            engine(recipe.engine)
            resolve(recipe)
        numbers: list[int] = []
        if not self._records.variants():
            first = self._records.add_variant(self._baseline_recipe(), "baseline", options)
            numbers.append(first.number)
        elif not recipes:
            raise RecipeError("no recipe was given; the baseline is row 1 already.")
        for recipe in recipes:
            numbers.append(self._records.add_variant(recipe, "variant", options).number)
        for number in numbers:
            self._enqueue(number)
        return numbers

    def _baseline_recipe(self) -> Recipe:
        """The model as the user runs it now."""
        kind = self._records.model().kind
        return Recipe(engine="onnxruntime" if kind == "onnx" else "torch")

    def _resume(self, numbers: list[int], options: RunOptions | None) -> list[int]:
        rows = [self._records.variant(number) for number in numbers]
        for row in rows:
            if not row.is_final:
                raise RunError(f"#{row.number} is {row.state}; only a row that ended goes on.")
        for row in rows:
            if row.state == "failed":
                self._records.clear_visits(row.number)
            # Whoever resumes a row wants it to the end, however slow it is.
            wanted = replace(options or row.options, early_stop_ratio=None)
            self._records.update(
                row.number, state="queued", options=wanted, failure=None, finished_s=None
            )
            self._enqueue(row.number)
        return numbers

    def _enqueue(self, number: int) -> None:
        self._queue.append(number)
        self._profiler.follow(self._records.variant(number))
        self._group.tell(number, "queued", "queued", None)

    def _stop(self, numbers: list[int] | None, token: str | None = None) -> list[int]:
        """Stop what waits and what lives at once; the current row when its order is left.

        With a token only the profiles that it stands for.
        """
        if token is not None:
            return self._stop_profiles(None, token)
        open_rows = self._open_rows()
        wanted = open_rows if numbers is None else [n for n in numbers if n in open_rows]
        if 1 in wanted and set(wanted) != set(open_rows):
            raise RunError("#1 is what the others are compared with; stop them with it.")
        dropped = self._stop_profiles(numbers, None)
        # The baseline last: the others' rounds need its worker.
        for number in sorted(wanted, reverse=True):
            if number == self._group.current:
                self._stopping.add(number)
                continue
            stage: Stage = "build" if number in self._queue else "measure"
            if number in self._queue:
                self._queue.remove(number)
            self._group.end(number, "stopped", stopped(stage))
        return sorted({*wanted, *dropped})

    def _stop_profiles(self, numbers: list[int] | None, token: str | None) -> list[int]:
        dropped, is_current = self._profiler.stop(numbers, token)
        recorded = self._profiler.current
        if is_current and recorded is not None:
            self._stopping.add(recorded)
            dropped.append(recorded)
        return dropped

    def _open_rows(self) -> list[int]:
        rows = self._records.variants()
        return [row.number for row in rows if not row.is_final and row.role != "control"]

    def _tell(self, progress: Progress) -> None:
        self._hub.broadcast(protocol.Event(progress=msgspec.json.encode(progress)))

    def _tell_place(self) -> None:
        place = self._lock.place()
        before = f"{place} before this one" if place else "this one is next"
        message = f"waiting for {self._device.id}, which another study uses: {before}"
        if message == self._said_place and time.monotonic() - self._said_place_s < _SAY_AGAIN_S:
            return
        self._said_place, self._said_place_s = message, time.monotonic()
        for number in self._queue[:1]:
            self._group.tell(number, "queued", message, None)
        if not self._queue:
            self._profiler.wait_for_device(message)
