"""Profiles: calls recorded after the timed rounds, each in a fresh server that is then retired."""

from __future__ import annotations

import re
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
    """A row whose profile is to come; `asked` says that somebody asked for this very one."""

    number: int
    iterations: int
    stacks: bool
    asked: bool
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

    def ask(self, numbers: list[int], iterations: int, *, stacks: bool) -> None:
        """Queue profiles that somebody asked for.

        Raises RunError where a row cannot be profiled; then none is queued.
        """
        if iterations < 1:
            raise RunError(f"a profile needs 1 iteration or more, not {iterations}.")
        rows = [self._records.variant(number) for number in numbers]
        for row in rows:
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
            self._add(row, iterations, stacks=stacks, asked=True)

    def follow(self, row: Variant) -> None:
        """Queue the profile that a row's options ask for, if they do."""
        waits = any(one.number == row.number and not one.asked for one in self._queue)
        if row.options.profile is not None and not waits:
            self._add(row, row.options.profile, stacks=False, asked=False)

    def _add(self, row: Variant, iterations: int, *, stacks: bool, asked: bool) -> None:
        wanted = _Wanted(
            number=row.number,
            iterations=iterations,
            stacks=stacks,
            asked=asked,
            queued_s=time.monotonic(),
        )
        self._queue.append(wanted)
        if asked:
            self._tell(wanted, "queued", "waiting to be profiled")

    def stop(self, numbers: list[int] | None) -> list[int]:
        """Drop what waits; returns the rows of it. The current one is left to its order."""
        dropped = [one for one in self._queue if numbers is None or one.number in numbers]
        self._queue = [one for one in self._queue if one not in dropped]
        for one in dropped:
            self._tell(one, "stopped", "profile stopped")
        return [one.number for one in dropped]

    def record_next(self) -> None:
        """Make the profile that has waited longest."""
        wanted = self._wanted = self._queue.pop(0)
        number = wanted.number
        try:
            row = self._records.variant(number)
            if row.cold_start is None or not (wanted.asked or row.state in _ENDED_WELL):
                self._tell(wanted, "stopped", "not profiled: it did not run")
                return
            profile = self._record(row, wanted)
            self._records.add_profile(number, profile)
            self._tell(wanted, "done", "profiled")
        except Exception as error:  # noqa: BLE001 - a profile costs no row, whatever went wrong
            if not isinstance(error, WorkbenchError):
                traceback.print_exc()
            state, failure = outcome_of(error, self._bring_up.stage, self._bring_up.log(number))
            if state == "stopped":
                self._tell(wanted, "stopped", "profile stopped")
                return
            said = f"its profile failed: {failure.message}"
            self._records.update(number, notes=(*self._records.variant(number).notes, said))
            self._tell(wanted, "failed", f"{failure.message} {failure.remedy}".strip())
        finally:
            self._wanted = None
            if self._bring_up.worker is not None:
                self._crew.dismiss(self._bring_up.worker)
                self._bring_up.worker = None

    def _record(self, row: Variant, wanted: _Wanted) -> Profile:
        prepared = self._records.prepared()
        assert prepared is not None, "a row that was served has a prepared model"
        self._tell(wanted, "recording", "loading for its profile")
        chosen = engine(row.recipe.engine)
        if chosen.serves_with_torch:
            self._crew.refill()
        live = self._bring_up.serve(row, self._bring_up.context(row, prepared), _silent)
        self._bring_up.worker = live.worker
        # Spares that import would be in the recording's way.
        self._crew.settle()
        self._bring_up.stage = "profile"
        self._tell(wanted, "recording", f"recording up to {wanted.iterations} calls")
        folder = traces_folder(self._records.folder, row)
        assert row.artifact is not None, "a row that was served has an artifact"
        answer = self._crew.ask(
            live.server,
            protocol.Record(
                tool=chosen.tool,
                folder=str(self._records.folder / "artifacts" / row.artifact),
                out=str(folder),
                iterations=wanted.iterations,
                stacks=wanted.stacks,
            ),
            stage="profile",
            limit_s=limit_s(row.options, "profile"),
        )
        assert isinstance(answer, protocol.Recorded)
        return Profile(
            trace=self._within(answer.path),
            tool=chosen.tool,
            num_iterations=answer.num_iterations,
            recorded_s=time.time(),
            call_s=answer.call_s,
            recorded_call_s=answer.recorded_call_s,
            with_stacks=wanted.stacks,
            peaks=answer.peaks,
            snapshot=None if answer.snapshot is None else self._within(answer.snapshot),
        )

    def _within(self, path: str) -> str:
        return Path(path).relative_to(self._records.folder).as_posix()

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
            )
        )


# Rows whose profile their options ask for are profiled if they came to this.
_ENDED_WELL = ("done", "stopped-early")


def traces_folder(study: Path, row: Variant) -> Path:
    """Where a row's recordings lie: a run of TensorBoard's, named by number and recipe."""
    words = re.sub(r"[^A-Za-z0-9.]+", "-", row.recipe.spec.removeprefix("engine="))
    return study / "traces" / f"{row.number}-{words[:80].strip('-')}"


def _silent(*_: object) -> None:
    """Report to nobody."""
