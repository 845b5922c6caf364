"""Opening a file that a profiler wrote, whatever it is called."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.core.errors import LoadError, UnsupportedFormatError
from workbench.traces.blocks import Blocks
from workbench.traces.columns import Columns
from workbench.traces.events import EventStream, NotATraceError
from workbench.traces.trace import Trace


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """The events that a profiler recorded, from its file.

    What the file is shows its content, not its name: a Kineto trace or a bare list of events,
    gzipped or not. What is damaged is left out and counted in `Trace.reading`. Raises
    LoadError where there is no such file and UnsupportedFormatError where it is something else.
    """
    path = Path(path)
    if path.is_dir():
        raise LoadError(f"{path} is a folder; name one of the traces in it.")
    if not path.exists():
        raise LoadError(f"there is no file {path}.")
    if path.stat().st_size == 0:
        raise UnsupportedFormatError(f"{path} is empty: its profiler wrote nothing.")
    blocks = Blocks(path)
    stream = EventStream(blocks)
    columns = Columns()
    try:
        for events in stream:
            columns.add(events)
    except NotATraceError as error:
        raise UnsupportedFormatError(
            f"{path} is no trace: {error}. A trace is JSON with `traceEvents`, or a list of events."
        ) from error
    if blocks.fault is not None:
        stream.faults.notes.append(blocks.fault)
    return columns.trace(stream.header, stream.faults)
