"""Which servers are awake: all, one at a time, or fresh ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from workbench.core.device import Device
from workbench.devices.limits import free_memory_bytes
from workbench.devices.live import gpu_counters
from workbench.devices.nvidia import is_exclusive
from workbench.engines.engine import engine
from workbench.run.bringup import BringUp
from workbench.run.crew import Crew
from workbench.run.live import Live
from workbench.run.records import Records

# Set to anything, servers take turns although more would fit.
ONE_AT_A_TIME = "WORKBENCH_ONE_AT_A_TIME"
# Visits before the sides change their processes: the first look at the verdict needs six,
# later ones come closer together.
_FIRST_VISITS = 6
_LATER_VISITS = 4
_CHEAP_START_S = 10.0
# A server is expected to need its weights a few times over, and an engine's own memory.
_SERVER_BYTES = 400_000_000
_WEIGHTS_FACTOR = 3


class Servers:
    """Wakes rows' servers and puts them to sleep.

    `alternating` is set where two do not fit at once, by memory or because the device admits
    one process: then a server sleeps whenever it is not its turn.
    """

    def __init__(self, records: Records, crew: Crew, bring_up: BringUp, device: Device) -> None:
        self._records = records
        self._crew = crew
        self._bring_up = bring_up
        self._device = device
        self.alternating = False

    def has_room(self) -> bool:
        """Whether one more server may live beside those that do."""
        if self.alternating:
            return False
        free = free_bytes(self._device)
        return free is None or free > 2 * self._server_bytes()

    @contextlib.contextmanager
    def awake(self, live: Live) -> Iterator[None]:
        """Hold a row's server alive; where servers take turns it sleeps afterwards."""
        if live.worker is None:
            row = self._records.variant(live.number)
            stage = self._bring_up.stage
            if engine(row.recipe.engine).serves_with_torch:
                self._crew.refill()
            fresh = self._bring_up.serve(row, live.context, _quiet, again=True)
            live.worker, live.process = fresh.worker, fresh.process
            live.num_visits_in_process = 0
            self._records.update(live.number, state=row.state, stage=row.stage)
            self._bring_up.stage = stage
        try:
            yield
        finally:
            if self.alternating:
                self.put_to_sleep(live)

    def put_to_sleep(self, live: Live) -> None:
        if live.worker is not None:
            self._crew.dismiss(live.worker)
            live.worker = None

    def must_alternate(self, baseline: Live) -> bool:
        """Whether one more server would not fit beside the baseline's."""
        if self.alternating or is_exclusive(self._device) or os.environ.get(ONE_AT_A_TIME):
            return True
        free = free_bytes(self._device)
        if baseline.worker is None or free is None:
            return False
        return free < self._server_bytes()

    def _server_bytes(self) -> int:
        prepared = self._records.prepared()
        weights = (prepared.num_bytes if prepared else None) or 0
        return _SERVER_BYTES + _WEIGHTS_FACTOR * weights

    def change_processes(
        self, rows: list[Live], baseline: Live | None, control: Live | None
    ) -> None:
        """Let every side go on in a fresh process once all have used theirs enough.

        A process keeps its luck for as long as it lives (`workbench.measure.offsets`): only
        other processes tell it from an effect. A server whose start costs more than the
        measuring so far is kept.
        """
        if self.alternating:
            return
        enough = all(
            live.num_visits_in_process
            >= (_FIRST_VISITS if len(live.visits) == live.num_visits_in_process else _LATER_VISITS)
            for live in rows
        )
        if not enough:
            return
        for live in (*rows, baseline, control):
            if live is None or live.start_s > max(_CHEAP_START_S, live.measured_s):
                continue
            self.put_to_sleep(live)
        for live in rows:
            # One that was kept is not asked about again before as many visits.
            live.num_visits_in_process = 0


def free_bytes(device: Device) -> int | None:
    """Bytes that one more server may take: the container's, or a GPU's where that is less."""
    free = free_memory_bytes()
    if device.kind != "cuda":
        return free
    card = gpu_counters(device.id)
    if card.memory_total_bytes is None or card.memory_used_bytes is None:
        return free
    left = card.memory_total_bytes - card.memory_used_bytes
    return left if free is None else min(free, left)


def _quiet(*_: object) -> None:
    """Report to nobody."""
