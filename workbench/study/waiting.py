"""Following rows until they have ended, and stopping them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.core.errors import RunError
from workbench.core.variant import Progress, Variant
from workbench.study.progress import Silent, choose_display
from workbench.study.reader import StudyReader

if TYPE_CHECKING:
    from workbench.run.client import Client

_STOP_LIMIT_S = 10.0


def wait_for(
    client: Client, reader: StudyReader, numbers: Sequence[int], *, progress: bool
) -> list[Progress]:
    """Wait until these rows have ended; returns what was said of their profiles.

    Shows how far they are where `progress` says so. Ctrl-C stops them and keeps their rows.
    """
    display = choose_display(lambda number: reader.variant(number).recipe) if progress else Silent()
    said: list[Progress] = []

    def update(message: Progress) -> None:
        display.update(message)
        if message.profile is not None:
            said.append(message)

    try:
        with display:
            for row in map(reader.variant, numbers):
                display.update(_as_progress(row))
            client.wait(numbers, on_progress=update)
    except KeyboardInterrupt:
        _stop_and_settle(reader, numbers)
        raise
    return said


def stop(reader: StudyReader, numbers: Sequence[int] | None) -> list[int]:
    """Stop these rows, or everything (None); returns the numbers of what was stopped."""
    from workbench.run.client import Client

    try:
        client = Client.connect(reader.folder, start=False)
    except RunError:
        return []
    with client:
        return list(client.stop(numbers))


def _stop_and_settle(reader: StudyReader, numbers: Sequence[int]) -> None:
    # The interrupt may have cut a message of the first connection in two.
    with contextlib.suppress(RunError):
        stop(reader, numbers)
    deadline_s = time.monotonic() + _STOP_LIMIT_S
    while time.monotonic() < deadline_s:
        if all(reader.variant(number).is_final for number in numbers):
            return
        time.sleep(0.05)


def _as_progress(row: Variant) -> Progress:
    return Progress(
        number=row.number, state=row.state, stage=row.stage, message=row.state, elapsed_s=0.0
    )
