"""A row's profile: asking for one, and opening what was recorded."""

from __future__ import annotations

from workbench.core.errors import RunError, StudyError
from workbench.study.reader import StudyReader
from workbench.study.waiting import wait_for
from workbench.traces.opening import open_trace
from workbench.traces.trace import Trace


def record(
    reader: StudyReader, number: int, iterations: int, *, stacks: bool, progress: bool
) -> None:
    """Have the row's calls recorded, and wait for it. Raises RunError where nothing was."""
    from workbench.run.client import Client

    before = len(reader.profiles(number))
    with Client.connect(reader.folder, python=reader.python()) as client:
        client.profile([number], iterations, stacks=stacks)
        said = wait_for(client, reader, [number], progress=progress)
    if len(reader.profiles(number)) == before:
        why = said[-1].message if said else "; ".join(reader.variant(number).notes[-1:])
        raise RunError(f"#{number} was not profiled: {why}")


def latest(reader: StudyReader, number: int) -> Trace:
    """The latest recording of a row, opened. Raises StudyError where there is none."""
    recorded = reader.profiles(number)
    if not recorded:
        raise StudyError(f"#{number} has not been profiled: study.profile({number}).")
    found = open_trace(reader.recording(recorded[-1].trace))
    assert isinstance(found, Trace), "a recording of calls is a trace"
    return found
