"""The rows that are alive at once: a baseline, its twin and what is compared with them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from workbench.core.decision import Decision
from workbench.core.device import Device, Host
from workbench.core.errors import RunError, WorkbenchError
from workbench.core.evidence import Evidence
from workbench.core.failure import Failure, Stage
from workbench.core.measurement import EnergyReading, MemoryReading, Visit
from workbench.core.model import PreparedModel
from workbench.core.variant import FINAL_STATES, Progress, RunOptions, State, Variant
from workbench.devices.limits import free_memory_bytes
from workbench.engines.engine import engine
from workbench.levers.step import Context
from workbench.measure.verdict import decide
from workbench.run import protocol
from workbench.run.bringup import QUICK_CHECK_S, BringUp, RowFailed, first_ratio
from workbench.run.crew import Crew
from workbench.run.failures import RowStopped, failure_of
from workbench.run.live import Live
from workbench.run.records import Records
from workbench.run.visits import MIN_GAP_S, make_visit

CONTROL = 0
_ENERGY_WINDOW_S = 2.0
_MAX_GROUP = 10
# A server is expected to need its weights a few times over, and an engine's own memory.
_SERVER_BYTES = 400_000_000
_WEIGHTS_FACTOR = 3


class Group:
    """Brings rows up, measures them in turns and ends them.

    `current` is the row whose work is being done; an exception that `Crew.ask` lets through
    for it becomes that row's result. `tell` sends progress to the clients.
    """

    def __init__(
        self,
        records: Records,
        crew: Crew,
        host: Host,
        device: Device,
        tell: Callable[[Progress], None],
    ) -> None:
        self._records = records
        self._crew = crew
        self._host = host
        self._device = device
        self._send = tell
        self._bring_up = BringUp(records, crew)
        self._live: dict[int, Live] = {}
        self._baseline: Live | None = None
        self._started_s: dict[int, float] = {}
        self.current: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to measure."""
        return not self._live

    @property
    def numbers(self) -> list[int]:
        """The rows that live or are being started, the control left out."""
        rows = {*self._live, self.current} - {CONTROL, None}
        return sorted(n for n in rows if n is not None)

    @property
    def stage(self) -> Stage:
        """What the current row is at."""
        return self._bring_up.stage

    def guarded(self, number: int, work: Callable[[int], None]) -> None:
        """Do a row's work; whatever goes wrong becomes the row's result."""
        self.current = number
        try:
            work(number)
        except RowStopped:
            self.end(number, "stopped", stopped(self._bring_up.stage))
        except RowFailed as error:
            self.end(number, "failed", error.failure)
        except RunError as error:
            log = self._bring_up.log(number)
            self.end(number, "failed", failure_of(error, self._bring_up.stage, log))
        except WorkbenchError as error:
            self.end(
                number,
                "failed",
                Failure(kind="unavailable", stage=self._bring_up.stage, message=str(error)),
            )
        finally:
            self.current = None
            if self._bring_up.worker is not None:
                self._crew.dismiss(self._bring_up.worker)
                self._bring_up.worker = None

    # Starting a row ---------------------------------------------------------------------

    def start(self, number: int) -> None:
        row = self._records.variant(number)
        self._started_s[number] = time.monotonic()
        prepared = self._bring_up.prepare(number, self._reporter(number))
        if row.role == "baseline":
            self._need_baseline(prepared)
            self._add_control(prepared, row.options)
            return
        baseline = self._need_baseline(prepared)
        live = self._bring_up.serve(row, self._context(row, prepared), self._reporter(number))
        self._live[number] = live
        live.first_visit = len(live.visits)
        self._bring_up.stage = "check"
        ratio = first_ratio(baseline, live)
        self._records.update(number, state="checking", first_ratio=ratio)
        limit = row.options.early_stop_ratio
        if limit is not None and ratio < 1 / limit:
            self._bring_up.check(live, baseline.number)
            self._finish(live, "stopped-early")
            return
        quick = self._bring_up.quick_check_s(live, baseline.number) <= QUICK_CHECK_S
        if quick:
            self._bring_up.check(live, baseline.number)
        self._records.update(number, state="measuring")
        self._crew.settle()
        self._visit(live)
        if not quick:
            self._bring_up.check(live, baseline.number)
        self._add_control(prepared, row.options)

    def _need_baseline(self, prepared: PreparedModel) -> Live:
        """The baseline's server, brought up where it is not alive.

        Raises RowFailed for the row that needs it where the baseline itself cannot run.
        """
        if self._baseline is not None:
            return self._baseline
        row = self._records.variant(1)
        self._started_s.setdefault(1, time.monotonic())
        try:
            context = self._context(row, prepared)
            live = self._bring_up.serve(row, context, self._reporter(1))
            self._records.update(1, state="checking")
            self._bring_up.worker = live.worker
            self._bring_up.evaluate(live)
            self._bring_up.worker = None
        except RowStopped:
            raise
        except RunError as error:
            failure = (
                error.failure
                if isinstance(error, RowFailed)
                else failure_of(error, self._bring_up.stage, self._bring_up.log(1))
            )
            self.end(1, "failed", failure)
            raise RowFailed(
                Failure(
                    kind=failure.kind,
                    stage=failure.stage,
                    message=f"the baseline could not run: {failure.message}",
                    remedy=failure.remedy,
                    detail=failure.detail,
                )
            ) from error
        self._baseline = live
        self._records.update(1, state="measuring", failure=None)
        return live

    def _add_control(self, prepared: PreparedModel, options: RunOptions) -> None:
        """The baseline once more, in processes of its own, to know what chance does.

        Where it cannot be had the rows go on: without a control none is decided, and the
        verdict says so. The next row tries again.
        """
        if CONTROL in self._live:
            return
        rows = [row for row in self._records.variants() if row.role == "control"]
        recipe = self._records.variant(1).recipe
        row = rows[0] if rows else self._records.add_variant(recipe, "control", options)
        try:
            live = self._bring_up.serve(row, self._context(row, prepared), lambda *_: None)
        except RowStopped:
            raise
        except RunError as error:
            failure = failure_of(error, self._bring_up.stage, self._bring_up.log(CONTROL))
            self._records.update(CONTROL, state="failed", failure=failure)
            return
        live.options = options
        live.first_visit = len(live.visits)
        self._live[row.number] = live
        self._records.update(row.number, state="measuring", failure=None)

    def _context(self, row: Variant, prepared: PreparedModel) -> Context:
        return Context(
            host=self._host,
            device=self._device,
            model=prepared,
            recipe=row.recipe,
            settings=self._records.model().settings,
        )

    def has_room(self) -> bool:
        """Whether one more server may live beside those that do."""
        if self._baseline is None or not self._live:
            return True
        if len(self._live) >= _MAX_GROUP:
            return False
        prepared = self._records.prepared()
        weights = (prepared.num_bytes if prepared else None) or 0
        free = free_memory_bytes()
        return free is None or free > 2 * (_SERVER_BYTES + _WEIGHTS_FACTOR * weights)

    # Measuring --------------------------------------------------------------------------

    def measure_next(self) -> None:
        """One visit for whoever is due, or a pause until somebody is."""
        rows = [live for live in self._live.values() if live.role == "variant"]
        control = self._live.get(CONTROL)
        if not rows:
            self._end_group(control)
            return
        due = list(rows)
        longest = max(len(live.visits) - live.first_visit for live in rows)
        if control is not None and len(control.visits) - control.first_visit < longest:
            due.append(control)
        live = min(due, key=lambda each: each.ended_s)
        wait_s = live.ended_s + MIN_GAP_S - time.monotonic()
        if wait_s > 0:
            self._crew.pause(wait_s)
            return
        self._bring_up.stage = "measure"
        if live is control:
            self._visit_control(live)
        else:
            self.guarded(live.number, lambda _: self._visit(live))

    def _visit_control(self, control: Live) -> None:
        """A control that dies is replaced; it is no row of the user's."""
        try:
            self._visit(control)
        except RowStopped:
            return
        except RunError:
            self._drop(control)

    def _visit(self, live: Live) -> None:
        baseline = self._baseline
        assert baseline is not None
        self._crew.settle()
        visit = make_visit(self._crew, baseline, live, len(live.visits) + 1)
        self._records.add_visit(live.number, visit)
        live.visits.append(visit)
        live.ended_s = time.monotonic()
        live.measured_s += sum(p.baseline.wall_s + p.variant.wall_s for p in visit.pairs)
        if live.role == "control":
            return
        decision = self._decide(live)
        self.tell(live.number, "measuring", "measuring", decision)
        options = live.options
        decided = decision.verdict != "undecided" and not decision.provisional
        spent = (
            live.measured_s >= options.budget_s
            or len(live.visits) - live.first_visit >= options.max_visits
        )
        if spent or (decided and len(live.visits) >= options.min_visits):
            self._finish(live, "done")

    def _decide(self, live: Live) -> Decision:
        return decide(live.visits, self._control_visits(), threshold=live.options.threshold)

    def _control_visits(self) -> list[Visit]:
        control = self._live.get(CONTROL)
        if control is not None:
            return control.visits
        return list(self._records.visits(CONTROL))

    def _end_group(self, control: Live | None) -> None:
        """Nobody is left to measure: the baseline's evidence comes from its twin."""
        baseline = self._baseline
        options = control.options if control is not None else None
        if control is not None and options is not None and baseline is not None:
            num_visits = len(control.visits) - control.first_visit
            if num_visits < options.min_visits and self._records.variant(1).state == "measuring":
                self._bring_up.stage = "measure"
                wait_s = control.ended_s + MIN_GAP_S - time.monotonic()
                if wait_s > 0:
                    self._crew.pause(wait_s)
                    return
                self.guarded(1, lambda _: self._visit(control))
                return
        if control is not None:
            with contextlib.suppress(RunError):
                evidence, versions = self._inspect(control)
                self._records.update(
                    1, evidence=evidence, versions=versions, device=evidence.device
                )
            with contextlib.suppress(RunError):
                if baseline is not None and self._records.variant(1).memory is None:
                    self._extras(control, keep=1)
            self._drop(control)
            self._records.update(control.number, state="done", finished_s=time.time())
        if self._records.variant(1).state not in FINAL_STATES:
            self._end_row(1, "done", None)

    # Ending a row -----------------------------------------------------------------------

    def _finish(self, live: Live, state: State) -> None:
        """The figures beside the rounds, then what really ran; the worker is retired."""
        self._bring_up.stage = "measure"
        self._extras(live, keep=live.number)
        evidence, versions = self._inspect(live)
        self._records.update(
            live.number, evidence=evidence, versions=versions, device=evidence.device
        )
        self._drop(live)
        self._end_row(live.number, state, None)

    def _extras(self, live: Live, keep: int) -> None:
        answer = self._crew.ask(
            live.worker,
            protocol.MeasureExtras(energy_window_s=_ENERGY_WINDOW_S, device=live.context.device.id),
            stage="measure",
            limit_s=live.limit_s("measure"),
        )
        assert isinstance(answer, protocol.Extras)
        cold = self._records.variant(keep).cold_start
        if cold is not None:
            cold = replace(
                cold,
                copy_in_s=answer.copy_in_s,
                copy_out_s=answer.copy_out_s,
                preprocess_s=answer.preprocess_s,
                postprocess_s=answer.postprocess_s,
            )
        self._records.update(
            keep,
            cold_start=cold,
            memory=msgspec.json.decode(answer.memory, type=MemoryReading),
            energy=msgspec.json.decode(answer.energy, type=EnergyReading),
        )

    def _inspect(self, live: Live) -> tuple[Evidence, dict[str, str]]:
        answer = self._crew.ask(
            live.worker, protocol.Inspect(), stage="measure", limit_s=live.limit_s("measure")
        )
        assert isinstance(answer, protocol.Inspected)
        raw = msgspec.json.decode(answer.raw)
        evidence = engine(live.recipe.engine).read_evidence(raw, live.context)
        return evidence, answer.versions

    def end(self, number: int, state: State, failure: Failure) -> None:
        live = self._live.get(number)
        if live is not None:
            self._drop(live)
        if number == 1 and self._baseline is not None:
            self.drop_baseline()
        self._end_row(number, state, failure)

    def _end_row(self, number: int, state: State, failure: Failure | None) -> None:
        self._records.update(number, state=state, failure=failure, finished_s=time.time())
        message = failure.message if failure is not None else state
        live_decision = None
        if failure is None and number > 1:
            visits = self._records.visits(number)
            if visits:
                live_decision = decide(
                    list(visits),
                    self._control_visits(),
                    threshold=self._records.variant(number).options.threshold,
                )
        self.tell(number, state, message, live_decision)

    def _drop(self, live: Live) -> None:
        self._live.pop(live.number, None)
        self._crew.dismiss(live.worker)

    def drop_baseline(self) -> None:
        if self._baseline is not None:
            self._crew.dismiss(self._baseline.worker)
            self._baseline = None

    def _reporter(self, number: int) -> Callable[[State, str], None]:
        def report(state: State, message: str) -> None:
            self._records.update(number, state=state, stage=message)
            self.tell(number, state, message, None)

        return report

    def tell(self, number: int, state: State, message: str, decision: Decision | None) -> None:
        if number == CONTROL:
            return
        live = self._live.get(number)
        started_s = self._started_s.get(number, time.monotonic())
        fraction = None
        if live is not None and live.measured_s:
            fraction = min(1.0, live.measured_s / live.options.budget_s)
        progress = Progress(
            number=number,
            state=state,
            stage=self._bring_up.stage,
            message=message,
            elapsed_s=time.monotonic() - started_s,
            fraction=fraction,
            num_visits=len(live.visits) if live is not None else None,
            ratio=decision.ratio if decision else None,
            low=decision.low if decision else None,
            high=decision.high if decision else None,
            verdict=None if decision is None or decision.provisional else decision.verdict,
        )
        self._send(progress)


def stopped(stage: Stage) -> Failure:
    return Failure(
        kind="stopped",
        stage=stage,
        message=f"stopped in {stage}",
        remedy="Resume it to go on; what was measured is kept.",
    )
