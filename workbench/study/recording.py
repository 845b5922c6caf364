"""A row's profile: asking for one, and opening what was recorded."""

from __future__ import annotations

from workbench.core.errors import RunError, StudyError
from workbench.core.profile import Profile
from workbench.study.reader import StudyReader
from workbench.study.waiting import wait_for
from workbench.traces.opening import open_trace
from workbench.traces.trace import Trace


def record(
    reader: StudyReader, number: int, iterations: int, *, stacks: bool, progress: bool
) -> Profile:
    """Have the row's calls recorded, and wait for it. Raises RunError where nothing was."""
    from workbench.run.client import Client

    with Client.connect(reader.folder, python=reader.python()) as client:
        token = client.profile([number], iterations, stacks=stacks)
        said = wait_for(client, reader, [number], progress=progress, token=token)
    for profile in reversed(reader.profiles(number)):
        if profile.token == token:
            return profile
    why = said[-1].message if said else "; ".join(reader.variant(number).notes[-1:])
    raise RunError(f"#{number} was not profiled: {why}")


def latest(reader: StudyReader, number: int) -> Profile:
    """The latest recording of a row. Raises StudyError where there is none."""
    recorded = reader.profiles(number)
    if not recorded:
        raise StudyError(f"#{number} has not been profiled: study.profile({number}).")
    return recorded[-1]


def opened(reader: StudyReader, profile: Profile) -> Trace:
    """What was recorded, opened."""
    found = open_trace(reader.recording(profile.trace))
    if not isinstance(found, Trace):
        raise StudyError(f"{profile.trace} is a memory snapshot, not a recording of calls.")
    return found
