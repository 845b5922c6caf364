"""What the report says of profiled rows, taken out of their recordings as plain records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import WorkbenchError
from workbench.core.profile import Profile
from workbench.study.comparison import Comparison, Row
from workbench.study.reader import StudyReader
from workbench.traces.enclosure import enclose
from workbench.traces.findings import findings
from workbench.traces.memory import Curve, curves, live
from workbench.traces.opening import open_trace
from workbench.traces.pieces import COMPILED, Piece, sequence
from workbench.traces.rules import Finding
from workbench.traces.trace import Trace
from workbench.traces.windows import median_window

# Columns that a step is drawn in: more are not told apart on a page.
NUM_COLUMNS = 240
IDLE = "idle"
OTHER = "other"
# In the order of the legend.
KINDS = (
    "convolution",
    "matmul",
    "attention",
    "normalisation",
    "reduction",
    "elementwise",
    "copy",
    "collective",
    COMPILED,
    OTHER,
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A moment of a step, seconds from its begin: what most of it went to, and how full it was."""

    start_s: float
    end_s: float
    kind: str
    name: str
    fill: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """All pieces of a step of one name: how many, and their seconds."""

    name: str
    kind: str
    num: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class MemoryLine:
    """Bytes in use over a recording, the most of each moment. `device` None is the host.

    `times_s` counts from the first event. `before_bytes` is None where the file gives no totals;
    then `num_bytes` is what was added. `purposes` is what was live at the peak.
    """

    device: int | None
    times_s: tuple[float, ...]
    num_bytes: tuple[int, ...]
    before_bytes: int | None
    peak_s: float
    peak_bytes: int
    purposes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """One row's recording: its step of median time, findings and memory.

    Where the recording cannot be read `fault` says why, and the rest is empty.
    """

    row: Row
    profile: Profile
    on_device: bool = False
    wall_s: float = 0.0
    busy_s: float = 0.0
    columns: tuple[Column, ...] = ()
    work: tuple[Work, ...] = ()
    findings: tuple[Finding, ...] = ()
    memory: tuple[MemoryLine, ...] = ()
    fault: str = ""


def profiled_rows(reader: StudyReader, comparison: Comparison) -> list[Profiled]:
    """The rows that were profiled, the baseline first."""
    rows = (comparison.baseline, *comparison.rows)
    return [_profiled(reader, row, row.profile) for row in rows if row.profile is not None]


def _profiled(reader: StudyReader, row: Row, profile: Profile) -> Profiled:
    try:
        trace = open_trace(reader.recording(profile.trace))
        window = median_window(trace) if isinstance(trace, Trace) else None
        if not isinstance(trace, Trace) or window is None:
            return Profiled(row=row, profile=profile, fault="Its recording holds no step.")
        step = sequence(trace, window)
        wall_s = step.wall_ns * 1e-9
        return Profiled(
            row=row,
            profile=profile,
            on_device=step.on_device,
            wall_s=wall_s,
            busy_s=(step.wall_ns - step.idle_ns) * 1e-9,
            columns=_columns(step.pieces, wall_s),
            work=_work(step.pieces),
            findings=findings(trace, profile.slowdown),
            memory=_memory(trace),
        )
    except WorkbenchError as error:
        return Profiled(row=row, profile=profile, fault=f"Its recording cannot be read: {error}")


def kind_of(piece: Piece) -> str:
    """What a piece is drawn as."""
    return COMPILED if piece.name == COMPILED else piece.kind


def _columns(pieces: Sequence[Piece], wall_s: float) -> tuple[Column, ...]:
    """The step cut into columns; neighbours of one piece are one column."""
    width_s = wall_s / NUM_COLUMNS
    taken: list[dict[tuple[str, str], float]] = [defaultdict(float) for _ in range(NUM_COLUMNS)]
    for piece in pieces:
        start_s, end_s = piece.start_ns * 1e-9, (piece.start_ns + piece.ns) * 1e-9
        first = min(int(start_s / width_s), NUM_COLUMNS - 1)
        last = min(int(end_s / width_s), NUM_COLUMNS - 1)
        for index in range(first, last + 1):
            low, high = max(start_s, index * width_s), min(end_s, (index + 1) * width_s)
            if high > low:
                taken[index][kind_of(piece), piece.name] += high - low
    made: list[Column] = []
    for index, held in enumerate(taken):
        if not held:
            continue
        kind, name = max(held, key=lambda key: held[key])
        fill = min(1.0, sum(held.values()) / width_s)
        before = made[-1] if made else None
        if (
            before is not None
            and (before.kind, before.name) == (kind, name)
            and abs(before.end_s - index * width_s) < width_s * 1e-6
            and abs(before.fill - fill) < 0.02
        ):
            made[-1] = Column(
                start_s=before.start_s,
                end_s=(index + 1) * width_s,
                kind=kind,
                name=name,
                fill=before.fill,
            )
            continue
        made.append(
            Column(
                start_s=index * width_s,
                end_s=(index + 1) * width_s,
                kind=kind,
                name=name,
                fill=fill,
            )
        )
    return tuple(made)


def _work(pieces: Sequence[Piece]) -> tuple[Work, ...]:
    nums: dict[tuple[str, str], int] = defaultdict(int)
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for piece in pieces:
        nums[piece.name, kind_of(piece)] += 1
        totals[piece.name, kind_of(piece)] += piece.ns
    ordered = sorted(totals, key=lambda key: (-totals[key], key))
    return tuple(
        Work(name=name, kind=kind, num=nums[name, kind], seconds=totals[name, kind] * 1e-9)
        for name, kind in ordered
    )


def _memory(trace: Trace) -> tuple[MemoryLine, ...]:
    found = []
    enclosure = enclose(trace)
    for curve in curves(trace):
        at_peak = live(trace, curve, enclosure=enclosure)
        times_s, num_bytes = _most_of_each_moment(curve)
        found.append(
            MemoryLine(
                device=curve.device,
                times_s=times_s,
                num_bytes=num_bytes,
                before_bytes=curve.before_bytes,
                peak_s=(at_peak.time_ns - int(curve.time_ns[0])) * 1e-9,
                peak_bytes=at_peak.allocated_bytes,
                purposes={str(key): num for key, num in at_peak.by_purpose().items()},
            )
        )
    return tuple(found)


def _most_of_each_moment(curve: Curve) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Begins of as many moments as are drawn, and the most in use in each."""
    first, last = int(curve.time_ns[0]), int(curve.time_ns[-1])
    edges = np.linspace(first, max(last, first + 1), NUM_COLUMNS + 1)[:-1]
    moment = np.clip(np.searchsorted(edges, curve.time_ns, side="right") - 1, 0, NUM_COLUMNS - 1)
    most = np.full(NUM_COLUMNS, np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(most, moment, curve.allocated_bytes)
    # What was in use at the end of one moment still is at the begin of the next.
    at = np.searchsorted(curve.time_ns, edges, side="right") - 1
    carried = np.where(at >= 0, curve.allocated_bytes[np.maximum(at, 0)], curve.before_bytes or 0)
    most = np.maximum(most, carried)
    return tuple(((edges - first) * 1e-9).tolist()), tuple(most.tolist())
