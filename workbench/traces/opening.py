"""Opening a file that a profiler wrote, whatever it is called."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from workbench.core.errors import LoadError, TooLargeError, UnsupportedFormatError
from workbench.traces import cache
from workbench.traces.blocks import Blocks
from workbench.traces.columns import Columns
from workbench.traces.events import EventStream, NotATraceError
from workbench.traces.snapshot import Snapshot, read_snapshot
from workbench.traces.trace import Source, Trace

# What a pickle of protocol 2 or later begins with.
_PICKLE = b"\x80"
_MAX_SNAPSHOT_BYTES = 4 << 30


def open_trace(path: str | os.PathLike[str], *, cached: bool = True) -> Trace | Snapshot:
    """What a profiler recorded, from its file.

    What the file is shows its content, not its name: a trace of PyTorch's profiler, an ONNX
    Runtime profile, a bare list of events (a Trace), or a CUDA memory snapshot (a Snapshot),
    gzipped or not. What is damaged is left out and counted in `Trace.reading`. A large trace is
    kept in a cache (`traces.cache.folder()`) and opened from there the next time, unless `cached`
    is False. Raises LoadError
    where there is no such file, UnsupportedFormatError where it is something else, and
    UntrustedFileError for a pickle that would run code.
    """
    path = Path(path)
    if path.is_dir():
        raise LoadError(f"{path} is a folder; name one of the traces in it.")
    if not path.exists():
        raise LoadError(f"there is no file {path}.")
    if path.stat().st_size == 0:
        raise UnsupportedFormatError(f"{path} is empty: its profiler wrote nothing.")
    if next(iter(Blocks(path)), b"").startswith(_PICKLE):
        return _open_snapshot(path)
    state = path.stat()
    source = Source(
        path=str(path.absolute()),
        num_bytes=state.st_size,
        modified_ns=state.st_mtime_ns,
        places=(),
    )
    entry = cache.entry_of(path) if cached else None
    trace = cache.load(entry, source) if entry is not None else None
    if trace is None:
        trace = _read_trace(path, source)
        if entry is not None:
            cache.keep(entry, trace)
    return trace


def _read_trace(path: Path, source: Source) -> Trace:
    blocks = Blocks(path)
    stream = EventStream(blocks)
    columns = Columns()
    try:
        for events in stream:
            columns.add(events)
    except NotATraceError as error:
        raise UnsupportedFormatError(
            f"{path} is no trace: {blocks.fault or error}. A trace is JSON with `traceEvents`, or "
            "a list of events."
        ) from error
    if blocks.fault is not None:
        stream.faults.notes.append(blocks.fault)
    source = replace(source, places=tuple(stream.places))
    trace = columns.trace(stream.header, stream.faults, source)
    reading = trace.reading
    num_entries = reading.num_events + reading.num_dropped
    if num_entries and reading.num_events == reading.num_empty:
        raise UnsupportedFormatError(
            f"{path} is no trace: none of its {num_entries} entries is an event of a profiler."
        )
    return trace


def _open_snapshot(path: Path) -> Snapshot:
    content = bytearray()
    for block in Blocks(path):
        content += block
        if len(content) > _MAX_SNAPSHOT_BYTES:
            raise TooLargeError(f"{path} holds more than 4 GiB; a snapshot is read into memory.")
    try:
        return read_snapshot(bytes(content))
    except LoadError as error:
        raise type(error)(f"{path}: {error}") from error
