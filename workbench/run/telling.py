"""Telling the clients how far each row is."""

from __future__ import annotations

import time
from collections.abc import Callable

from workbench.core.decision import Decision
from workbench.core.failure import Stage
from workbench.core.variant import Progress, State
from workbench.run.live import Live


class Teller:
    """Sends a row's progress; `send` reaches every client that listens."""

    def __init__(self, send: Callable[[Progress], None]) -> None:
        self._send = send
        self._started_s: dict[int, float] = {}

    def start(self, number: int, *, again: bool) -> None:
        """A row's clock starts now; `again` says whether one that runs starts anew."""
        if again:
            self._started_s[number] = time.monotonic()
        else:
            self._started_s.setdefault(number, time.monotonic())

    def tell(
        self,
        number: int,
        state: State,
        message: str,
        *,
        stage: Stage,
        live: Live | None = None,
        decision: Decision | None = None,
    ) -> None:
        """Send one row's progress, with the ratio so far where there is a decision."""
        started_s = self._started_s.get(number, time.monotonic())
        fraction = None
        if live is not None and live.measured_s:
            fraction = min(1.0, live.measured_s / live.options.budget_s)
        self._send(
            Progress(
                number=number,
                state=state,
                stage=stage,
                message=message,
                elapsed_s=time.monotonic() - started_s,
                fraction=fraction,
                num_visits=len(live.visits) if live is not None else None,
                ratio=decision.ratio if decision else None,
                low=decision.low if decision else None,
                high=decision.high if decision else None,
                verdict=None if decision is None or decision.provisional else decision.verdict,
            )
        )
