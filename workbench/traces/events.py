"""Events out of the text of a trace, block by block, whatever is wrong with some of them.

A block is cut before its last event and decoded as a whole. Where that fails it is split at
every place where one object may end and the next begin, and each piece is read, mended or
counted as dropped. So one bad event costs itself, and speed for one block.
"""

from __future__ import annotations

import contextlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from workbench.core.errors import LoadError
from workbench.traces.trace import ABSENT, Place

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
# Where what stands before cannot be read, this tells a list of events from a mention of one.
_OPENING_AND_EVENT = re.compile(rb'"traceEvents"\s*:\s*\[(?=\s*\{)')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
# What stands before the first key of an event that is not the first.
_BEFORE_KEY = re.compile(rb"\}\s*,\s*(?=\{\s*$)")
_END_OF_LIST = re.compile(rb"\s*(?:,\s*)?\]")
_SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The other keys of a file: device properties, versions, and what its writer put there.
_MAX_HEADER_BYTES = 64 << 20
# An event of which so much has been read and that still makes no sense is given up.
_MAX_EVENT_BYTES = 1 << 20
_MAX_PIECES = 64
# Of a file: where so much was read again for events that go on, the others are given up at once.
_MAX_READ_AGAIN_BYTES = 256 << 20
_MAX_NOTES = 3
_LOOK_BACK_BYTES = 256
_MAX_LOOKS = 8


# What stands for an argument that is kept as text, where an event has none.
NO_TEXT = msgspec.Raw()


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
    occupancy: Any = msgspec.field(default=None, name="est. achieved occupancy %")
    graph_node: Any = msgspec.field(default=ABSENT, name="graph node id")
    dims: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input type")
    scalars: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Concrete Inputs")
    onnx_shapes: msgspec.Raw = msgspec.field(default=NO_TEXT, name="input_type_shape")
    onnx_results: msgspec.Raw = msgspec.field(default=NO_TEXT, name="output_type_shape")
    kernel_hash: Any = None


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


class WholeEvent(Event, gc=False):
    """One with everything that its arguments hold."""

    args: Any = None


class _Decoders:
    """Of a list, of one event, and of one with arguments that are no object."""

    def __init__(self, event: type[Event], loose: type[Event]) -> None:
        self.many = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self.one = (msgspec.json.Decoder(event), msgspec.json.Decoder(loose))

    def event(self, text: bytes) -> Event | None:
        """The event that the text is, if it is one."""
        for decoder in self.one:
            try:
                event: Event = decoder.decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            if isinstance(event, _LooseEvent):
                event.args = None
            return event
        return None


_NEEDED = _Decoders(Event, _LooseEvent)
_WHOLE = _Decoders(WholeEvent, WholeEvent)
_OBJECT = json.JSONDecoder()
# Finds where an object ends, control characters in its strings or not.
_LENIENT = json.JSONDecoder(strict=False)


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

    After the last list, `header` holds the file's other keys, before and after the events,
    `faults` what was wrong, and `places` where each list was read from. With `whole` the events
    are WholeEvents. Iterating raises NotATraceError where no list of events begins.
    """

    def __init__(self, blocks: Iterable[bytes], *, whole: bool = False) -> None:
        self._blocks = blocks
        self._decoders = _WHOLE if whole else _NEEDED
        self._is_open = True
        self._num_events = 0
        self._num_read_again = 0
        self.places: list[Place] = []
        self.header: dict[str, Any] = {}
        self.faults = Faults()

    def __iter__(self) -> Iterator[list[Event]]:
        blocks = iter(self._blocks)
        text, offset = self._begin(blocks)
        for block in blocks:
            text += block
            cut = _last_boundary(text)
            if cut is None and len(text) <= _MAX_HEADER_BYTES:
                continue
            # What is longer than any event may be is one, or the list's end and a tail.
            is_too_long = cut is None
            cut = len(text) if cut is None else cut
            events, left = self._read(text[:cut], is_last=is_too_long)
            num_read = cut - len(left)
            if events:
                yield self._placed(events, offset, num_read)
            offset += num_read
            text = left + text[cut:]
            if not self._is_open:
                break
        if self._is_open:
            num_bytes = len(text)
            events, text = self._read(text, is_last=True)
            if events:
                yield self._placed(events, offset, num_bytes - len(text))
        if self._is_open:
            self.faults.notes.append("the file ends before its list of events does")
        else:
            for block in blocks:
                text += block
                if len(text) > _MAX_HEADER_BYTES:
                    self.faults.notes.append("what follows the events is too long to be read")
                    return
            self._end(text)

    def _placed(self, events: list[Event], offset: int, num_bytes: int) -> list[Event]:
        """The same events; where they were read from is kept."""
        self.places.append(Place(self._num_events, offset, num_bytes))
        self._num_events += len(events)
        return events

    def _begin(self, blocks: Iterator[bytes]) -> tuple[bytes, int]:
        """What follows the opening of the list of events, and where that is."""
        text = b""
        for block in blocks:
            text += block
            start = self._opening(text)
            if start is not None:
                return text[start:], start
            if len(text) > _MAX_HEADER_BYTES:
                break
        first = _OPENING_AND_EVENT.search(text)
        if first is not None and text.lstrip(_BYTE_ORDER_MARK + _SPACE).startswith(b"{"):
            self.faults.notes.append("the keys before the events could not be read")
            return text[first.end() :], first.end()
        raise NotATraceError("it holds no list of events")

    def _opening(self, text: bytes) -> int | None:
        first = text.removeprefix(_BYTE_ORDER_MARK).lstrip(_SPACE)[:1]
        if first == b"[":
            return text.index(b"[") + 1
        if first != b"{":
            return None
        for match in islice(_OPENING.finditer(text), _MAX_LOOKS):
            # Inside a string or deeper down, what stands before is no object.
            before = text[text.index(b"{") : match.start()].rstrip(_SPACE + b",") + b"}"
            with contextlib.suppress(ValueError, RecursionError):
                self.header = json.loads(mend(before))
                return match.end()
        return None

    def _end(self, text: bytes) -> None:
        """The keys after the events."""
        left = text.strip(_SPACE)
        if left in (b"", b"}"):
            return
        try:
            self.header |= json.loads(b"{" + left.lstrip(_SPACE + b","))
        except (ValueError, RecursionError):
            self.faults.notes.append("what follows the events could not be read")

    def _read(self, text: bytes, *, is_last: bool) -> tuple[list[Event], bytes]:
        """The events of a text that begins with one, and what is left of it.

        Left over is what follows the end of the list, or else an event that goes on in the next
        block.
        """
        try:
            return self._decoders.many.decode(b"[" + text.rstrip(_SPACE + b",") + b"]"), b""
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._read_one_by_one(text, is_last)

    def _read_one_by_one(self, text: bytes, is_last: bool) -> tuple[list[Event], bytes]:
        starts = [0, *(match.end() for match in _BETWEEN.finditer(text)), len(text)]
        events: list[Event] = []
        first = 0
        while first < len(starts) - 1:
            if end := _END_OF_LIST.match(text, starts[first]):
                self._is_open = False
                return events, text[end.end() :]
            for num_tried, last in enumerate(self._ends_of(text, starts, first)):
                piece = text[starts[first] : starts[last]]
                event, end_of_list = self._event(piece)
                if event is not None:
                    events.append(event)
                    if end_of_list is not None:
                        self._is_open = False
                        return events, text[starts[first] + end_of_list :]
                    first = last
                    break
                self._num_read_again += len(piece) if num_tried else 0
                if (
                    num_tried >= _MAX_PIECES
                    or len(piece) > _MAX_EVENT_BYTES
                    or self._num_read_again > _MAX_READ_AGAIN_BYTES
                    or (num_tried == 0 and not _may_go_on(piece))
                ):
                    self.faults.drop(text[starts[first] : starts[first + 1]])
                    first += 1
                    break
            else:
                if not is_last:
                    return events, text[starts[first] :]
                self.faults.drop(text[starts[first] : starts[first + 1]])
                first += 1
        return events, b""

    def _ends_of(self, text: bytes, starts: list[int], first: int) -> Iterable[int]:
        """Where a piece that begins here may end, as places in `starts`.

        At the next boundary; else where an object ends that is whole, as one is that holds others;
        else at any boundary after that.
        """
        yield first + 1
        if first + 2 < len(starts):
            with contextlib.suppress(ValueError, RecursionError):
                # Latin-1 keeps positions in characters the same as in bytes.
                window = text[starts[first] : starts[first] + _MAX_EVENT_BYTES].decode("latin-1")
                _, length = _LENIENT.raw_decode(window)
                yield bisect_left(starts, starts[first] + length, lo=first + 1)
        yield from range(first + 2, len(starts))

    def _event(self, piece: bytes) -> tuple[Event | None, int | None]:
        """The event that the piece is, mended if need be, and where its list ends, if it does."""
        whole = piece.rstrip(_SPACE + b",")
        event = self._decoders.event(whole)
        if event is not None:
            return event, None
        # Mending makes blanks of control characters, and these may stand at the end.
        mended = mend(whole).rstrip(_SPACE + b",")
        event = self._decoders.event(mended)
        if event is not None:
            self.faults.num_mended += 1
            return event, None
        for text in (piece, mend(piece)):
            with contextlib.suppress(ValueError, RecursionError):
                # Latin-1 keeps positions in characters the same as in bytes. What stands before the
                # first event is a blank.
                before = len(text) - len(text.lstrip(_SPACE))
                _, end = _OBJECT.raw_decode(text.decode("latin-1"), before)
                event = self._decoders.event(text[:end])
                if event is not None and (found := _END_OF_LIST.match(text, end)):
                    self.faults.num_mended += text is not piece
                    # Mending lengthens the event, never what follows it.
                    return event, len(piece) - (len(text) - found.end())
        return None, None


def _may_go_on(piece: bytes) -> bool:
    """Whether what follows a piece could make an object of it.

    Not where it is wrong before its end: no continuation changes that.
    """
    text = mend(piece).decode("latin-1").rstrip(" \t\r\n,")
    try:
        _LENIENT.raw_decode(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) or error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False


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


_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB]..\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4})|\\'
)
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]..$")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_BARE_WORD = re.compile(
    rb"(?<=[:,\[ ])(?:N/A|[-+]?(?:nan|NaN|NAN|inf|Inf|INF|Infinity))(?=\s*[,}\]])"
)
_TOO_LARGE = re.compile(rb"(?<=[:,\[ ])-?\d[\d.]*[eE]\+?\d{3,}(?=\s*[,}\]])")


def mend(text: bytes) -> bytes:
    """An event's text with what profilers are known to write wrongly put right.

    Bytes that are no UTF-8 and halves of a surrogate pair become U+FFFD, control characters
    spaces, a backslash that escapes nothing two of them, and null what is no number (`N/A`,
    `nan`, `inf`) or one beyond all that a float holds.
    """
    text = text.decode("utf-8", errors="replace").encode()
    text = _CONTROL.sub(b" ", text)
    text = _ESCAPE.sub(_escape, text)
    return _TOO_LARGE.sub(b"null", _BARE_WORD.sub(b"null", text))


def _escape(found: re.Match[bytes]) -> bytes:
    if len(found[0]) == 1:
        return b"\\\\"
    return b"\\ufffd" if len(found[0]) == 6 and _HALF_PAIR.match(found[0]) else found[0]
