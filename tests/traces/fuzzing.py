"""Damaged traces, and what can be recovered of them: said by a loop over the text.

`recoverable` shares no code with the reader. It goes from event to event with Python's own JSON
parser; where an event makes no sense it is one that was dropped, and the next begins at the next
place where one object ends and another begins.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.traces.causes import CAUSES
from tests.traces.corpus import KINETO
from tests.traces.machine import Machine
from workbench.core.errors import WorkbenchError
from workbench.traces.opening import open_trace
from workbench.traces.summary import summarise
from workbench.traces.trace import Trace

# Python counts the separators of ASCII as blanks, JSON does not.
_BETWEEN = re.compile(r"\}\s*,\s*(?=\{)", re.ASCII)
_AFTER = re.compile(r"\s*,?\s*(\]|(?=\{)|$)", re.ASCII)
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_WORD = re.compile(r"(?<=[:,\[ ])(N/A|nan|NaN|[-+]?(inf|Inf|Infinity))(?=\s*[,}\]])")


def _mended(text: str) -> str:
    text = re.sub(r"[\x00-\x1f]", " ", text)
    text = _ESCAPE.sub(lambda found: found[0] if len(found[0]) > 1 else "\\\\", text)
    text = re.sub(r"(?<=[:,\[ ])-?\d[\d.]*[eE]\+?\d{3,}(?=\s*[,}\]])", "null", text)
    return _WORD.sub("null", text)


def recoverable(content: bytes) -> tuple[int, int] | None:
    """How many events can be read and how many not; None where no list of events begins."""
    text = content.decode("utf-8", errors="replace").removeprefix("\ufeff")
    start = _opening(text)
    if start is None:
        return None
    # Only what is broken may be mended, and mending keeps places apart: piece by piece.
    decoder = json.JSONDecoder()
    num_read = num_dropped = 0
    place = start
    if re.compile(r"\s*\]", re.ASCII).match(text, place):
        return 0, 0
    # Blanks at the end are no event that was cut.
    while text[place:].strip(" \t\r\n"):
        following = _next(text, place, decoder)
        if following is not None:
            num_read += 1
            place, is_end = following
            if is_end:
                break
            continue
        num_dropped += 1
        boundary = _BETWEEN.search(text, place)
        if boundary is None:
            break
        place = boundary.end()
    return num_read, num_dropped


def _opening(text: str) -> int | None:
    head = text.lstrip(" \t\r\n")
    if head.startswith("["):
        return text.index("[") + 1
    if not head.startswith("{"):
        return None
    openings = list(re.finditer(r'"traceEvents"\s*:\s*\[', text))
    for found in openings:
        before = text[text.index("{") : found.start()].rstrip(" \t\r\n,") + "}"
        try:
            json.loads(_mended(before))
        except ValueError:
            continue
        return found.end()
    # Whatever is broken before, the events are there.
    after = [found.end() for found in openings if re.match(r"\s*\{", text[found.end() :])]
    return after[0] if after else None


def _next(text: str, place: int, decoder: json.JSONDecoder) -> tuple[int, bool] | None:
    """Where the event after the one at this place begins, and whether the list ends there."""
    stop = place
    # The event may hold what looks like a boundary; a mended one is no longer than its pieces.
    for _ in range(64):
        boundary = _BETWEEN.search(text, stop)
        stop = boundary.end() if boundary else len(text)
        for piece in (text[place:stop], _mended(text[place:stop])):
            try:
                event, end = decoder.raw_decode(piece.lstrip(" \t\r\n"))
            except (ValueError, RecursionError):
                continue
            if not isinstance(event, dict):
                continue
            end += len(piece) - len(piece.lstrip(" \t\r\n"))
            after = _AFTER.match(piece, end)
            if after is None:
                continue
            if after[1] == "]":
                return place + after.end(), True
            if after.end() == len(piece):
                return stop, False
        if boundary is None:
            return None
    return None


def contents() -> list[dict[str, Any]]:
    """Traces to damage: simulated ones, and real ones where the corpus is there."""
    found = []
    for make in CAUSES.values():
        machine = Machine()
        make(machine)
        found.append({"deviceProperties": [{"id": 0}], "traceEvents": machine.events})
    for path in KINETO:
        if path.stat().st_size < 400_000:
            found.append(json.loads(gzip.decompress(path.read_bytes())))
    return found


def ends_well(content: bytes, path: Path) -> str | None:
    """Read the content from a file, and make every table of it.

    None where it is refused by name, or read as far as `recoverable` can; else what was wrong.
    Anything that is raised but a refusal is a fault too.
    """
    path.write_bytes(content)
    expected = recoverable(content)
    try:
        found = open_trace(path)
        if isinstance(found, Trace):
            summarise(found, "damaged")
    except WorkbenchError as error:
        if str(path) not in str(error):
            return f"a refusal that names no file: {error}"
        is_nothing = expected is None or expected[0] == 0 or "none of its" in str(error)
        return None if is_nothing else f"refused, though {expected[0]} events can be read"
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    if not isinstance(found, Trace):
        return "it became a snapshot"
    read = found.reading.num_events, found.reading.num_dropped
    return None if read == expected else f"read and dropped {read}, not {expected}"


Mutation = Callable[[bytearray, random.Random], None]


def _flip(text: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        text[rng.randrange(len(text))] = rng.randrange(256)


def _cut(text: bytearray, rng: random.Random) -> None:
    del text[rng.randrange(len(text)) :]


def _drop(text: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(text))
    del text[start : start + rng.randint(1, 300)]


def _repeat(text: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(text))
    text[start:start] = text[start : start + rng.randint(1, 300)]


def _insert(text: bytearray, rng: random.Random) -> None:
    pieces = (b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\xff", b"\x00", b"N/A", b"1e999", b"-",
              b"{}", b"null", b'{"ph": "X"},', b"[" * 300, b'"a": ')  # fmt: skip
    place = rng.randrange(len(text))
    text[place:place] = rng.choice(pieces)


def _number(text: bytearray, rng: random.Random) -> None:
    """Another number where one stands."""
    found = list(re.finditer(rb"\d+(\.\d+)?", bytes(text)))
    if not found:
        return
    one = rng.choice(found)
    others = (b"-1", b"0", b"1e308", b"99999999999999999999999", b'"7"', b"null", b"1.5e-7", b"{}")
    text[one.start() : one.end()] = rng.choice(others)


MUTATIONS: tuple[Mutation, ...] = (_flip, _cut, _drop, _repeat, _insert, _number)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with one to three kinds of damage, and now and then packed and damaged again."""
    text = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        if text:
            rng.choice(MUTATIONS)(text, rng)
    return bytes(text)


def damaged_gzip(content: bytes, rng: random.Random) -> bytes:
    """The content packed, and the packed bytes damaged."""
    packed = bytearray(gzip.compress(content, compresslevel=1))
    rng.choice((_flip, _cut, _drop))(packed, rng)
    return bytes(packed)


def excerpt(content: dict[str, Any], rng: random.Random, num_events: int) -> bytes:
    """A real trace cut down to some events in a row, as its profiler would have written it."""
    events = content["traceEvents"]
    start = rng.randrange(max(len(events) - num_events, 1))
    made = {**content, "traceEvents": events[start : start + num_events]}
    return json.dumps(made, indent=rng.choice((None, 1))).encode()
