"""The rows that are alive at once: a baseline, its twin and what is compared with them."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from workbench.core.decision import Decision
from workbench.core.device import Device, Host
from workbench.core.errors import RunError, WorkbenchError
from workbench.core.failure import Failure, Stage
from workbench.core.measurement import Visit
from workbench.core.model import PreparedModel
from workbench.core.variant import Progress, RunOptions, State
from workbench.measure.verdict import decide
from workbench.run.bringup import BringUp, first_ratio
from workbench.run.closing import close_books
from workbench.run.crew import Crew
from workbench.run.failures import RowFailed, RowStopped, failure_of, outcome_of
from workbench.run.live import Live
from workbench.run.records import Records
from workbench.run.servers import Servers
from workbench.run.telling import Teller
from workbench.run.visits import (
    MIN_GAP_S,
    SideLost,
    make_alternating_visit,
    make_visit,
    ratio_now,
)

CONTROL = 0
_MAX_GROUP = 10


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
        self._teller = Teller(tell)
        self._bring_up = BringUp(records, crew, host, device)
        self._live: dict[int, Live] = {}
        self._baseline: Live | None = None
        self._servers = Servers(records, crew, self._bring_up, device)
        self.current: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to measure, and the baseline's row is closed."""
        if self._live:
            return False
        return self._baseline is None or self._records.variant(1).is_final

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
        except Exception as error:  # noqa: BLE001 - a fault of ours costs one row, not the study
            if not isinstance(error, WorkbenchError):
                traceback.print_exc()
            self.end(number, *outcome_of(error, self._bring_up.stage, self._bring_up.log(number)))
        finally:
            self.current = None
            if self._bring_up.worker is not None:
                self._crew.dismiss(self._bring_up.worker)
                self._bring_up.worker = None

    # Starting a row ---------------------------------------------------------------------

    def start(self, number: int) -> None:
        row = self._records.variant(number)
        self._teller.start(number, again=True)
        prepared = self._bring_up.prepare(number, self._reporter(number))
        if row.role == "baseline":
            self._need_baseline(prepared)
            return
        baseline = self._need_baseline(prepared)
        self._make_room(baseline)
        live = self._bring_up.serve(
            row, self._bring_up.context(row, prepared), self._reporter(number)
        )
        self._live[number] = live
        live.first_visit = len(live.visits)
        self._bring_up.stage = "check"
        ratio = first_ratio(baseline, live)
        limit = row.options.early_stop_ratio
        if limit is not None and ratio < 1 / limit and not self._servers.alternating:
            # The baseline's calls were made some time ago, on a machine in another mood.
            with self._servers.awake(baseline):
                ratio = self._ratio_now(baseline, live)
        self._records.update(number, state="checking", first_ratio=ratio)
        if limit is not None and ratio < 1 / limit:
            self._finish(live, "stopped-early")
            return
        self._records.update(number, state="measuring")
        if self._servers.alternating:
            self._bring_up.check(live, baseline.number)
            self._servers.put_to_sleep(live)
            return
        # The first ratio is what people wait for; it is provisional without the check too.
        self._visit(live)
        if number in self._live:
            self._bring_up.check(live, baseline.number)

    def _need_baseline(self, prepared: PreparedModel) -> Live:
        """The baseline's server, brought up where it is not alive.

        Raises RowFailed for the row that needs it where the baseline itself cannot run.
        """
        if self._baseline is not None:
            return self._baseline
        row = self._records.variant(1)
        self._teller.start(1, again=False)
        try:
            context = self._bring_up.context(row, prepared)
            again = row.cold_start is not None
            live = self._bring_up.serve(row, context, self._reporter(1), again=again)
            self._records.update(1, state="checking")
            self._bring_up.worker = live.worker
            self._bring_up.evaluate(live)
            self._bring_up.worker = None
        except RowStopped:
            raise
        except RunError as error:
            failure = failure_of(error, self._bring_up.stage, self._bring_up.log(1))
            self.end(1, "failed", failure)
            message = f"the baseline could not run: {failure.message}"
            raise RowFailed(replace(failure, message=message)) from error
        self._baseline = live
        self._records.update(1, state="measuring", failure=None)
        self._bring_up.measure_yardstick(live)
        return live

    def add_control(self, options: RunOptions) -> None:
        """The baseline once more, in processes of its own, to know what chance does.

        Where it cannot be had the rows go on: without a control none is decided, and the
        verdict says so. The next row tries again.
        """
        prepared = self._records.prepared()
        if CONTROL in self._live or self._baseline is None or prepared is None or self.is_empty:
            return
        rows = [row for row in self._records.variants() if row.role == "control"]
        recipe = self._records.variant(1).recipe
        row = rows[0] if rows else self._records.add_variant(recipe, "control", options)
        self._make_room(self._baseline)
        try:
            context = self._bring_up.context(row, prepared)
            live = self._bring_up.serve(row, context, _silent, again=True)
        except RowStopped:
            raise
        except RunError as error:
            failure = failure_of(error, self._bring_up.stage, self._bring_up.log(CONTROL))
            self._records.update(CONTROL, state="failed", failure=failure)
            return
        live.options = options
        live.first_visit = len(live.visits)
        self._live[row.number] = live
        if self._servers.alternating:
            self._servers.put_to_sleep(live)
        self._records.update(row.number, state="measuring", failure=None)

    def _make_room(self, baseline: Live) -> None:
        """Put every server to sleep where one more would not fit beside them."""
        if self._servers.must_alternate(baseline):
            self._servers.alternating = True
            for live in (baseline, *self._live.values()):
                self._servers.put_to_sleep(live)

    def has_room(self) -> bool:
        """Whether one more row may be started beside those that live."""
        if self._baseline is None or not self._live:
            return True
        return len(self._live) < _MAX_GROUP and self._servers.has_room()

    # Measuring --------------------------------------------------------------------------

    def measure_next(self) -> None:
        """One visit for whoever is due, or a pause until somebody is."""
        rows = [live for live in self._live.values() if live.role == "variant"]
        control = self._live.get(CONTROL)
        if not rows:
            self._end_group(control)
            return
        self._servers.change_processes(rows, self._baseline, self._live.get(CONTROL))
        due = list(rows)
        longest = max(len(live.visits) - live.first_visit for live in rows)
        if control is not None and len(control.visits) - control.first_visit < longest:
            due.append(control)
        live = min(due, key=lambda each: each.ended_s)
        if self._pause_before(live):
            return
        self._bring_up.stage = "measure"
        if live is control:
            self._visit_control(live)
        else:
            self.guarded(live.number, lambda _: self._visit(live))

    def _visit_control(self, control: Live) -> None:
        """A control that dies is replaced with the next row; it is no row of the user's."""
        try:
            self._visit(control)
        except RowStopped:
            return
        except RunError:
            self._drop(control)

    def _visit(self, live: Live) -> None:
        self._crew.settle()
        self._bring_up.stage = "measure"
        visit = self._make_visit(live)
        self._records.add_visit(live.number, visit)
        live.visits.append(visit)
        live.num_visits_in_process += 1
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

    def _make_visit(self, live: Live) -> Visit:
        """One visit; a baseline that is lost meanwhile is brought up again, once."""
        for attempt in (1, 2):
            prepared = self._records.prepared()
            assert prepared is not None
            baseline = self._need_baseline(prepared)
            number = len(live.visits) + 1
            try:
                if self._servers.alternating:
                    return make_alternating_visit(
                        self._crew, baseline, live, number, self._servers.awake
                    )
                with self._servers.awake(baseline), self._servers.awake(live):
                    return make_visit(self._crew, baseline, live, number)
            except SideLost as error:
                if error.side is not baseline:
                    raise error.cause from error
                self.drop_baseline()
                if attempt == 2:
                    log = self._bring_up.log(1)
                    raise RowFailed(failure_of(error.cause, "measure", log)) from error
        raise AssertionError("returned or raised")

    def _ratio_now(self, baseline: Live, live: Live) -> float:
        try:
            return ratio_now(self._crew, baseline, live)
        except SideLost as error:
            raise error.cause from error

    def _decide(self, live: Live) -> Decision:
        return decide(live.visits, self._control_visits(), threshold=live.options.threshold)

    def _control_visits(self) -> list[Visit]:
        control = self._live.get(CONTROL)
        if control is not None:
            return control.visits
        return list(self._records.visits(CONTROL))

    def _end_group(self, control: Live | None) -> None:
        """Nobody is left to measure: the baseline's evidence comes from its twin."""
        if control is not None:
            short = len(control.visits) - control.first_visit < control.options.min_visits
            spent = control.measured_s >= control.options.budget_s
            if short and not spent and self._records.variant(1).state == "measuring":
                # The baseline was run alone: its own figures need visits too.
                if not self._pause_before(control):
                    self.guarded(1, lambda _: self._visit(control))
                return
            if self._records.variant(1).evidence is None:
                with contextlib.suppress(RunError), self._servers.awake(control):
                    close_books(self._crew, self._records, control, 1)
            self._drop(control)
            self._records.update(CONTROL, state="done", finished_s=time.time())
        self._servers.alternating = False
        if not self._records.variant(1).is_final:
            self._end_row(1, "done", None)

    def _pause_before(self, live: Live) -> bool:
        """Whether the row's next visit was not due yet; waits then, or until a client calls."""
        wait_s = live.ended_s + MIN_GAP_S - time.monotonic()
        if wait_s > 0:
            self._crew.wait_for_a_client(wait_s)
        return wait_s > 0

    # Ending a row -----------------------------------------------------------------------

    def _finish(self, live: Live, state: State) -> None:
        """Close its books; the worker is retired."""
        with self._servers.awake(live):
            if self._records.variant(live.number).quality is None:
                self._bring_up.check(live, 1)
            self._bring_up.stage = "measure"
            close_books(self._crew, self._records, live, live.number)
        self._drop(live)
        self._end_row(live.number, state, None)

    def end(self, number: int, state: State, failure: Failure) -> None:
        """Close a row with a failure, unless it has ended already."""
        live = self._live.get(number)
        if live is not None:
            self._drop(live)
        if number == 1 and self._baseline is not None:
            self.drop_baseline()
        if not self._records.variant(number).is_final:
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
        self._servers.put_to_sleep(live)

    def drop_baseline(self) -> None:
        if self._baseline is not None:
            self._servers.put_to_sleep(self._baseline)
            self._baseline = None

    def _reporter(self, number: int) -> Callable[[State, str], None]:
        def report(state: State, message: str) -> None:
            self._records.update(number, state=state, stage=message)
            self.tell(number, state, message, None)

        return report

    def tell(self, number: int, state: State, message: str, decision: Decision | None) -> None:
        if number == CONTROL:
            return
        self._teller.tell(
            number,
            state,
            message,
            stage=self._bring_up.stage,
            live=self._live.get(number),
            decision=decision,
        )


def _silent(*_: object) -> None:
    """Report to nobody."""
