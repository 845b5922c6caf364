"""Events out of the text of a trace, block by block, whatever is wrong with some of them.

A block is cut before its last event and decoded as a whole. Where that fails it is split at
every place where one object may end and the next begin, and each piece is read, mended or
counted as dropped. So one bad event costs itself, and speed for one block.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from workbench.core.errors import LoadError
from workbench.traces.trace import ABSENT

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
# What stands before the first key of an event that is not the first.
_BEFORE_KEY = re.compile(rb"\}\s*,\s*(?=\{\s*$)")
_END_OF_LIST = re.compile(rb"\s*,?\s*\]")
_SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The other keys of a file: device properties, versions, and what its writer put there.
_MAX_HEADER_BYTES = 64 << 20
# An event of which so much has been read and that still makes no sense is given up.
_MAX_EVENT_BYTES = 1 << 20
_MAX_PIECES = 64
_MAX_NOTES = 3
_LOOK_BACK_BYTES = 256
_MAX_LOOKS = 8


class Arguments(msgspec.Struct, gc=False):
    """What is read of an event's `args`; the rest is decoded when somebody asks."""

    correlation: Any = ABSENT
    external: Any = msgspec.field(default=ABSENT, name="External id")
    external_old: Any = msgspec.field(default=ABSENT, name="external id")
    stream: Any = ABSENT
    device: Any = ABSENT
    num_bytes: Any = msgspec.field(default=ABSENT, name="bytes")
    block_bytes: Any = msgspec.field(default=ABSENT, name="Bytes")
    address: Any = msgspec.field(default=ABSENT, name="Addr")
    device_type: Any = msgspec.field(default=ABSENT, name="Device Type")
    device_id: Any = msgspec.field(default=ABSENT, name="Device Id")
    allocated: Any = msgspec.field(default=ABSENT, name="Total Allocated")
    reserved: Any = msgspec.field(default=ABSENT, name="Total Reserved")
    label: Any = msgspec.field(default=None, name="name")
    labels: Any = None
    op_name: Any = None


class Event(msgspec.Struct, gc=False):
    """One event as it is written; times are kept as text."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Arguments | None = None


class _LooseEvent(Event, gc=False):
    """One whose arguments are not what they should be; they are left out."""

    args: Any = None


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_LOOSE_EVENT = msgspec.json.Decoder(_LooseEvent)
_OBJECT = json.JSONDecoder()


class NotATraceError(LoadError):
    """The text holds no list of events."""


@dataclass
class Faults:
    """What was wrong with a file: events that were mended or dropped, and what cut it short."""

    num_mended: int = 0
    num_dropped: int = 0
    notes: list[str] = field(default_factory=list)

    def drop(self, piece: bytes) -> None:
        """Count what could not be read; the first few are shown."""
        self.num_dropped += 1
        if self.num_dropped <= _MAX_NOTES:
            shown = piece[:100].decode(errors="replace")
            self.notes.append(f"dropped an event that could not be read: {shown}")


class EventStream:
    """The events of a trace, in the order of the file, as lists of about one block each.

    After the last list, `header` holds the file's other keys, before and after the events, and
    `faults` what was wrong. Iterating raises NotATraceError where no list of events begins.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = blocks
        self._is_open = True
        self.header: dict[str, Any] = {}
        self.faults = Faults()

    def __iter__(self) -> Iterator[list[Event]]:
        blocks = iter(self._blocks)
        text = self._begin(blocks)
        for block in blocks:
            text += block
            cut = _last_boundary(text)
            if cut is None:
                if len(text) > _MAX_HEADER_BYTES:
                    self.faults.drop(text)
                    text = b""
                continue
            events, left = self._read(text[:cut], is_last=False)
            text = left + text[cut:]
            if events:
                yield events
            if not self._is_open:
                break
        if self._is_open:
            events, text = self._read(text, is_last=True)
            if events:
                yield events
        if self._is_open:
            self.faults.notes.append("the file ends before its list of events does")
        else:
            self._end(text + b"".join(blocks))

    def _begin(self, blocks: Iterator[bytes]) -> bytes:
        """What follows the opening of the list of events."""
        text = b""
        for block in blocks:
            text += block
            start = self._opening(text)
            if start is not None:
                return text[start:]
            if len(text) > _MAX_HEADER_BYTES:
                break
        raise NotATraceError("it holds no list of events")

    def _opening(self, text: bytes) -> int | None:
        first = text.removeprefix(_BYTE_ORDER_MARK).lstrip(_SPACE)[:1]
        if first == b"[":
            return text.index(b"[") + 1
        if first != b"{":
            return None
        for match in _OPENING.finditer(text):
            # Inside a string or deeper down, what stands before is no object.
            before = text[text.index(b"{") : match.start()].rstrip(_SPACE + b",") + b"}"
            with contextlib.suppress(ValueError):
                self.header = json.loads(before)
                return match.end()
        return None

    def _end(self, text: bytes) -> None:
        """The keys after the events."""
        left = text.strip(_SPACE)
        if left in (b"", b"}"):
            return
        try:
            self.header |= json.loads(b"{" + left.lstrip(_SPACE + b","))
        except ValueError:
            self.faults.notes.append("what follows the events could not be read")

    def _read(self, text: bytes, *, is_last: bool) -> tuple[list[Event], bytes]:
        """The events of a text that begins with one, and what is left of it.

        Left over is what follows the end of the list, or else an event that goes on in the next
        block.
        """
        try:
            return _EVENTS.decode(b"[" + text.rstrip(_SPACE + b",") + b"]"), b""
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._read_one_by_one(text, is_last)

    def _read_one_by_one(self, text: bytes, is_last: bool) -> tuple[list[Event], bytes]:
        starts = [0, *(match.end() for match in _BETWEEN.finditer(text)), len(text)]
        events: list[Event] = []
        first = 0
        while first < len(starts) - 1:
            if end := _END_OF_LIST.match(text, starts[first]):
                self._is_open = False
                return events, text[end.end() :]
            for last in range(first + 1, len(starts)):
                piece = text[starts[first] : starts[last]]
                event, end_of_list = self._event(piece)
                if event is not None:
                    events.append(event)
                    if end_of_list is not None:
                        self._is_open = False
                        return events, text[starts[first] + end_of_list :]
                    first = last
                    break
                if last - first >= _MAX_PIECES or len(piece) > _MAX_EVENT_BYTES:
                    self.faults.drop(text[starts[first] : starts[first + 1]])
                    first += 1
                    break
            else:
                if not is_last:
                    return events, text[starts[first] :]
                self.faults.drop(text[starts[first] : starts[first + 1]])
                first += 1
        return events, b""

    def _event(self, piece: bytes) -> tuple[Event | None, int | None]:
        """The event that the piece is, mended if need be, and where its list ends, if it does."""
        whole = piece.rstrip(_SPACE + b",")
        event = _decoded(whole)
        if event is not None:
            return event, None
        mended = mend(whole)
        event = _decoded(mended)
        if event is not None:
            self.faults.num_mended += 1
            return event, None
        for text in (piece, mend(piece)):
            with contextlib.suppress(ValueError):
                # Latin-1 keeps positions in characters the same as in bytes.
                _, end = _OBJECT.raw_decode(text.decode("latin-1"))
                event = _decoded(text[:end])
                if event is not None and (found := _END_OF_LIST.match(text, end)):
                    self.faults.num_mended += text is not piece
                    # Mending lengthens the event, never what follows it.
                    return event, len(piece) - (len(text) - found.end())
        return None, None


def _decoded(text: bytes) -> Event | None:
    for decoder in (_EVENT, _LOOSE_EVENT):
        try:
            event = decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if isinstance(event, _LooseEvent):
            event.args = None
        return event
    return None


def _last_boundary(text: bytes) -> int | None:
    """Where the last event begins that is not the first; None where there is no such."""
    key = len(text)
    for _ in range(_MAX_LOOKS):
        # The first key of an event, as every profiler writes it.
        key = text.rfind(b'"ph"', 0, key)
        if key < 0:
            break
        before = _BEFORE_KEY.search(text, max(0, key - _LOOK_BACK_BYTES), key)
        if before is not None:
            return before.end()
    last = None
    for match in _BETWEEN.finditer(text):
        last = match.end()
    return last


_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROL = re.compile(rb"[\x00-\x1f]")
_BARE_WORD = re.compile(rb"(?<=[:,\[ ])(?:N/A|nan|NaN|[-+]?(?:inf|Inf|Infinity))(?=\s*[,}\]])")


def mend(text: bytes) -> bytes:
    """An event's text with what profilers are known to write wrongly put right.

    Bytes that are no UTF-8 become U+FFFD, control characters spaces, a backslash that escapes
    nothing two of them, and numbers that JSON has no words for (`N/A`, `nan`, `inf`) null.
    """
    text = text.decode("utf-8", errors="replace").encode()
    text = _CONTROL.sub(b" ", text)
    text = _ESCAPE.sub(lambda found: found[0] if len(found[0]) > 1 else b"\\\\", text)
    return _BARE_WORD.sub(b"null", text)
