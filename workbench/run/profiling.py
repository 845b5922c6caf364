"""Profiles: calls recorded after the timed rounds, each in a fresh server that is then retired."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workbench.core.errors import RunError, WorkbenchError
from workbench.core.profile import Profile, ProfileState
from workbench.core.variant import Progress, Variant
from workbench.engines.engine import engine
from workbench.run import protocol
from workbench.run.bringup import BringUp
from workbench.run.crew import Crew
from workbench.run.failures import outcome_of
from workbench.run.live import limit_s
from workbench.run.records import Records


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """A row whose profile is to come; without a `token` its own options ask for it."""

    number: int
    iterations: int
    stacks: bool
    token: str
    queued_s: float


class Profiler:
    """The profiles that are still to be made, and the one that is being made.

    Nothing else is measured meanwhile: a recording and a round would disturb each other. `tell`
    sends progress to the clients. What goes wrong is a note of the row, which keeps its figures.
    """

    def __init__(
        self, records: Records, crew: Crew, bring_up: BringUp, tell: Callable[[Progress], None]
    ) -> None:
        self._records = records
        self._crew = crew
        self._bring_up = bring_up
        self._send = tell
        self._queue: list[_Wanted] = []
        self._wanted: _Wanted | None = None

    @property
    def current(self) -> int | None:
        """The row that is being recorded."""
        return None if self._wanted is None else self._wanted.number

    @property
    def numbers(self) -> list[int]:
        """The rows with a profile to come, the one that is being made first."""
        wanted = [self._wanted] if self._wanted is not None else []
        return [one.number for one in (*wanted, *self._queue)]

    def ask(self, numbers: list[int], iterations: int, *, stacks: bool, token: str) -> None:
        """Queue profiles that somebody asked for, who knows them by `token`.

        Raises RunError where a row cannot be profiled; then none is queued.
        """
        if iterations < 1:
            raise RunError(f"a profile needs 1 iteration or more, not {iterations}.")
        rows = [self._records.variant(number) for number in numbers]
        for row in rows:
            if row.role == "control":
                raise RunError("the control is the baseline once more; profile #1.")
            if row.is_final and row.cold_start is None:
                raise RunError(
                    f"#{row.number} {row.state} before it could be called; there is nothing to "
                    "profile."
                )
            if stacks and engine(row.recipe.engine).tool != "torch":
                raise RunError(
                    f"#{row.number} runs on {row.recipe.engine}, whose profiler has no stacks of "
                    "Python; profile it without them."
                )
        for row in rows:
            self._add(row, iterations, stacks=stacks, token=token)

    def follow(self, row: Variant) -> None:
        """Queue the profile that a row's options ask for, if they do."""
        waits = any(one.number == row.number and not one.token for one in self._queue)
        if row.options.profile is not None and not waits:
            self._add(row, row.options.profile, stacks=False, token="")

    def _add(self, row: Variant, iterations: int, *, stacks: bool, token: str) -> None:
        wanted = _Wanted(
            number=row.number,
            iterations=iterations,
            stacks=stacks,
            token=token,
            queued_s=time.monotonic(),
        )
        self._queue.append(wanted)
        if token:
            self._tell(wanted, "queued", "waiting to be profiled")

    def stop(self, numbers: list[int] | None, token: str | None) -> tuple[list[int], bool]:
        """Drop what waits of these rows (or all), or of one who asked.

        Returns the rows of it, and whether the one that is being made is among what is to stop.
        """

        def is_meant(one: _Wanted) -> bool:
            if token is not None:
                return one.token == token
            return numbers is None or one.number in numbers

        dropped = [one for one in self._queue if is_meant(one)]
        self._queue = [one for one in self._queue if not is_meant(one)]
        for one in dropped:
            self._tell(one, "stopped", "profile stopped")
        return [one.number for one in dropped], self._wanted is not None and is_meant(self._wanted)

    def wait_for_device(self, message: str) -> None:
        """Tell whoever waits for the next profile what it waits for."""
        for one in self._queue[:1]:
            self._tell(one, "queued", message)

    def record_next(self) -> None:
        """Make the profile that has waited longest."""
        wanted = self._wanted = self._queue.pop(0)
        number = wanted.number
        try:
            row = self._records.variant(number)
            if row.cold_start is None or not (wanted.token or row.state in _ENDED_WELL):
                self._tell(wanted, "stopped", "not profiled: it did not run")
                return
            profile = self._record(row, wanted)
            self._records.add_profile(number, profile)
            self._note(number, None)
            self._tell(wanted, "done", "profiled")
        except Exception as error:  # noqa: BLE001 - a profile costs no row, whatever went wrong
            if not isinstance(error, WorkbenchError):
                traceback.print_exc()
            state, failure = outcome_of(error, self._bring_up.stage, self._bring_up.log(number))
            if state == "stopped":
                self._tell(wanted, "stopped", "profile stopped")
                return
            # Where the disk is full the note cannot be kept either.
            with contextlib.suppress(WorkbenchError):
                self._note(number, failure.message)
            self._tell(wanted, "failed", f"{failure.message} {failure.remedy}".strip())
        finally:
            self._wanted = None
            if self._bring_up.worker is not None:
                self._crew.dismiss(self._bring_up.worker)
                self._bring_up.worker = None
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def _scratch(self) -> Path:
        """Where a recording is made; only a whole one gets into the traces."""
        return self._records.folder / "caches" / "recording"

    def _note(self, number: int, message: str | None) -> None:
        """Keep why the row's latest profile failed; None where it did not."""
        notes = self._records.variant(number).notes
        kept = tuple(note for note in notes if not note.startswith(FAILED_NOTE))
        added = () if message is None else (f"{FAILED_NOTE}{message}",)
        if (*kept, *added) != notes:
            self._records.update(number, notes=(*kept, *added))

    def _record(self, row: Variant, wanted: _Wanted) -> Profile:
        prepared = self._records.prepared()
        assert prepared is not None, "a row that was served has a prepared model"
        self._tell(wanted, "recording", "loading for its profile")
        chosen = engine(row.recipe.engine)
        if chosen.serves_with_torch:
            self._crew.refill()
        context = self._bring_up.context(row, prepared)
        live = self._bring_up.serve(row, context, _silent, again=True)
        self._bring_up.worker = live.worker
        # Spares that import would be in the recording's way.
        self._crew.settle()
        self._bring_up.stage = "profile"
        self._tell(wanted, "recording", f"recording up to {wanted.iterations} calls")
        assert live.folder is not None, "it was just loaded from one"
        answer = self._crew.ask(
            live.server,
            protocol.Record(
                tool=chosen.tool,
                folder=str(live.folder),
                out=str(self._scratch),
                iterations=wanted.iterations,
                stacks=wanted.stacks,
                device=context.device.id,
                all_threads=row.recipe.get("threads") is None,
            ),
            stage="profile",
            limit_s=limit_s(row.options, "profile"),
        )
        assert isinstance(answer, protocol.Recorded)
        return Profile(
            trace=self._kept(row, answer.path),
            tool=chosen.tool,
            num_iterations=answer.num_iterations,
            recorded_s=time.time(),
            call_s=answer.call_s,
            recorded_call_s=answer.recorded_call_s,
            with_stacks=wanted.stacks,
            peaks=answer.peaks,
            snapshot=None if answer.snapshot is None else self._kept(row, answer.snapshot),
            request=None if answer.request is None else self._kept(row, answer.request),
            token=wanted.token,
        )

    def _kept(self, row: Variant, path: str) -> str:
        """Move a file to the row's recordings; returns its path below the study's folder."""
        folder = traces_folder(self._records.folder, row)
        folder.mkdir(parents=True, exist_ok=True)
        kept = Path(path).replace(folder / Path(path).name)
        return kept.relative_to(self._records.folder).as_posix()

    def _tell(self, wanted: _Wanted, state: ProfileState, message: str) -> None:
        row = self._records.variant(wanted.number)
        self._send(
            Progress(
                number=row.number,
                state=row.state,
                stage="profile",
                message=message,
                elapsed_s=time.monotonic() - wanted.queued_s,
                profile=state,
                token=wanted.token,
            )
        )


FAILED_NOTE = "its profile failed: "
# Rows whose profile their options ask for are profiled if they came to this.
_ENDED_WELL = ("done", "stopped-early")


def traces_folder(study: Path, row: Variant) -> Path:
    """Where a row's recordings lie: a run of TensorBoard's, named by number and recipe."""
    words = re.sub(r"[^A-Za-z0-9.]+", "-", row.recipe.spec.removeprefix("engine="))
    return study / "traces" / f"{row.number}-{words[:80].strip('-')}"


def _silent(*_: object) -> None:
    """Report to nobody."""
