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
    client: Client,
    reader: StudyReader,
    numbers: Sequence[int],
    *,
    progress: bool,
    token: str | None = None,
) -> list[Progress]:
    """Wait until these rows have ended; returns what was said of the profiles of a token.

    Shows how far they are where `progress` says so. Ctrl-C stops the rows, or with a token only
    its profiles; what was measured is kept.
    """
    display = choose_display(lambda number: reader.variant(number).recipe) if progress else Silent()
    said: list[Progress] = []

    def update(message: Progress) -> None:
        display.update(message)
        if message.profile is not None and message.token == token:
            said.append(message)

    try:
        with display:
            for row in map(reader.variant, numbers):
                display.update(_as_progress(row))
            client.wait(numbers, on_progress=update)
    except KeyboardInterrupt:
        if token is None:
            _stop_and_settle(reader, numbers)
        else:
            _stop_profiles(reader, token)
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


def _stop_profiles(reader: StudyReader, token: str) -> None:
    from workbench.run.client import Client

    # The interrupt may have cut a message of the first connection in two.
    with contextlib.suppress(RunError), Client.connect(reader.folder, start=False) as client:
        client.stop_profiles(token)


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
