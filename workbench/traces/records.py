"""Whole events, decoded from the file again when somebody asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from workbench.core.errors import LoadError
from workbench.core.json import Json
from workbench.traces.blocks import Blocks
from workbench.traces.events import Event, EventStream
from workbench.traces.trace import Place, Trace


def records(trace: Trace, rows: Sequence[int]) -> list[dict[str, Json]]:
    """The events of these rows as the file writes them, with all their arguments.

    Reads the file again as far as needed: a row costs about as much as unpacking what stands
    before it. Raises LoadError where the file is gone or no longer the one that was read.
    """
    source = trace.source
    if source is None:
        raise LoadError("this trace was not read from a file.")
    path = Path(source.path)
    if not path.exists():
        raise LoadError(f"{path} is gone; its events cannot be read again.")
    state = path.stat()
    if (state.st_size, state.st_mtime_ns) != (source.num_bytes, source.modified_ns):
        raise LoadError(f"{path} has changed since it was read; open it again.")
    wanted = {int(trace.ordinal[row]) for row in rows}
    found: dict[int, Event] = {}
    for place, text in _texts(path, source.places, wanted):
        # An opening, so that what follows reads as a list of events.
        stream = EventStream([b"[" + text], whole=True)
        events = [event for some in stream for event in some]
        for ordinal, event in enumerate(events, place.first_ordinal):
            if ordinal in wanted:
                found[ordinal] = event
    return [_plain(found[int(trace.ordinal[row])]) for row in rows]


def _texts(path: Path, places: tuple[Place, ...], wanted: set[int]) -> list[tuple[Place, bytes]]:
    """The text of each place that holds a wanted event."""
    ends = [place.first_ordinal for place in places[1:]] + [max(wanted, default=0) + 1]
    needed = [
        place
        for place, end in zip(places, ends, strict=True)
        if any(place.first_ordinal <= one < end for one in wanted)
    ]
    if not needed:
        return []
    until = max(place.offset + place.num_bytes for place in needed)
    parts: dict[Place, list[bytes]] = {place: [] for place in needed}
    offset = 0
    for block in Blocks(path):
        for place, part in parts.items():
            low = max(place.offset - offset, 0)
            high = place.offset + place.num_bytes - offset
            if low < len(block) and high > 0:
                part.append(block[low:high])
        offset += len(block)
        if offset >= until:
            break
    return [(place, b"".join(part)) for place, part in parts.items()]


def _plain(event: Event) -> dict[str, Json]:
    """The event as JSON; what it does not have is left out."""
    made: dict[str, Any] = {}
    for name in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"):
        value = getattr(event, name)
        if isinstance(value, msgspec.Raw):
            # Times as they are written: a float would lose nanoseconds.
            value = bytes(value).decode().strip('"') or None
        if value is not None:
            made[name] = value
    return made
