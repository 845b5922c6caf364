"""A step as pieces that follow one another and add up to its time.

Of a device they are its kernels and copies, those of one operator together; of a host alone its
outermost operators, and what runs between them inside compiled code. At each moment the piece
that began first counts; what is left is idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import TooLargeError
from workbench.traces.enclosure import Enclosure, enclose
from workbench.traces.intervals import Times, clipped, covered, gaps, merged
from workbench.traces.kernels import KernelClass, kernel_class, short_name
from workbench.traces.links import Links, link, origins
from workbench.traces.operations import is_compiled, is_wrapper, operation_class
from workbench.traces.trace import ABSENT, Trace
from workbench.traces.vocabulary import CODE_OF
from workbench.traces.windows import Window
from workbench.traces.work import Work, device_work

COMPILED = "compiled code"
MOST_PIECES = 300_000
_REPLAY = re.compile(r"^(cuda|cu|hip)GraphLaunch")
# Of what one operator did, the class that it counts as: the first of these that occurs.
_WEIGHT: tuple[KernelClass, ...] = (
    "attention",
    "convolution",
    "matmul",
    "collective",
    "normalisation",
    "reduction",
    "elementwise",
    "copy",
    "other",
)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a step: `name` is an operator, a kernel or `compiled code`.

    `row` is the operator's row of the trace, or the kernel's; `ns` the time that counts as its,
    from `start_ns` on, which counts from the begin of the step.
    `node` numbers a kernel in a replayed graph, and `code` is the hash of a generated kernel's
    source, where those were recorded.
    """

    name: str
    kind: KernelClass
    start_ns: int
    ns: int
    row: int
    node: int | None = None
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """The pieces of a step in order; `idle_ns` is when none ran, so that all is `wall_ns`.

    `on_device` says whether they are work of a device, or of the host.
    """

    pieces: tuple[Piece, ...]
    idle_ns: int
    wall_ns: int
    on_device: bool


def sequence(
    trace: Trace,
    window: Window,
    links: Links | None = None,
    enclosure: Enclosure | None = None,
) -> Sequence:
    """What ran in a step, in the order in which it began.

    Of several devices the one that was busy longest. Raises TooLargeError for a step of more
    pieces than can be laid side by side.
    """
    work = device_work(trace)
    inside = (work.ends > window.start_ns) & (work.starts < window.end_ns)
    if inside.any():
        inside &= trace.device[work.rows] == _busiest(trace, work, inside, window)
    _refuse_too_many(trace, int(inside.sum()), window)
    enclosure = enclosure or enclose(trace)
    outermost = outermost_operators(trace, enclosure)
    if inside.any():
        links = links or link(trace)
        operator = origins(trace, links, enclosure).operator[inside]
        known = operator != ABSENT
        operator[known] = outermost[operator[known]]
        # The operator that replays a graph says nothing of the kernels in it.
        operator[_is_replayed(trace, links)[inside]] = ABSENT
        rows = work.rows[inside]
        spans = _Spans(work.starts[inside], work.ends[inside], window)
        found = _device_pieces(trace, rows[spans.order], operator[spans.order], spans)
        return _sequence(found, window, on_device=True)
    rows = enclosure.rows[outermost[enclosure.rows] == enclosure.rows]
    rows = rows[(trace.end_ns[rows] > window.start_ns) & (trace.start_ns[rows] < window.end_ns)]
    spans = _Spans(trace.start_ns[rows], trace.end_ns[rows], window)
    found = _host_pieces(trace, rows[spans.order], spans)
    found += _compiled_pieces(trace, spans, window)
    found.sort(key=lambda piece: piece.start_ns)
    return _sequence(found, window, on_device=False)


def _busiest(trace: Trace, work: Work, inside: NDArray[np.bool_], window: Window) -> int:
    """The number of the device that was busy longest in a window."""
    numbers = trace.device[work.rows]

    def busy_ns(number: int) -> int:
        mine = inside & (numbers == number)
        return covered(*clipped(work.starts[mine], work.ends[mine], window.start_ns, window.end_ns))

    found: list[int] = np.unique(numbers[inside]).tolist()
    return max(found, key=busy_ns)


def _refuse_too_many(trace: Trace, num_on_device: int, window: Window) -> None:
    num = num_on_device
    if not num:
        rows = trace.rows("operator")
        num = int(
            ((trace.end_ns[rows] > window.start_ns) & (trace.start_ns[rows] < window.end_ns)).sum()
        )
    if num > MOST_PIECES:
        raise TooLargeError(
            f"a step of {num:,} pieces is too long to be looked at one by one (the most are "
            f"{MOST_PIECES:,}): mark the steps of what is profiled with `profiler.step()`."
        )


def outermost_operators(trace: Trace, enclosure: Enclosure) -> NDArray[np.intp]:
    """For each row of an operator the outermost one around it (or itself) that is no wrapper.

    -1 for wrappers and for rows that are no operators. Of an ONNX Runtime profile each node
    counts: those of a subgraph lie inside their loop, which is a wrapper.
    """
    found = np.full(len(trace), ABSENT, dtype=np.intp)
    is_operator = np.zeros(len(trace), dtype=np.bool_)
    is_operator[trace.rows("operator")] = True
    wraps = np.array([is_wrapper(name) for name in trace.names], dtype=np.bool_)
    # What is passed on to the rows inside: the outermost operator so far.
    passed = np.full(len(trace), ABSENT, dtype=np.intp)
    order = np.argsort(enclosure.depth, kind="stable")
    num_levels = int(enclosure.depth.max(initial=0)) + 1
    levels = np.searchsorted(enclosure.depth[order], np.arange(num_levels + 1))
    for first, last in pairwise(levels.tolist()):
        rows = enclosure.rows[order[first:last]]
        parents = enclosure.parent[order[first:last]]
        outer = np.where(parents == ABSENT, ABSENT, passed[parents])
        counted = is_operator[rows] & ~wraps[trace.name[rows]]
        own = np.where(outer == ABSENT, rows, outer)
        found[rows[counted]] = own[counted]
        outer = np.where(counted, own, outer)
        outer[is_operator[rows] & wraps[trace.name[rows]]] = ABSENT
        passed[rows] = outer
    return found


class _Spans:
    """Spans in order of their begin, each counting from when no earlier one runs any more."""

    def __init__(self, starts: Times, ends: Times, window: Window) -> None:
        starts = np.clip(starts, window.start_ns, window.end_ns)
        ends = np.clip(ends, window.start_ns, window.end_ns)
        self.order = np.argsort(starts, kind="stable")
        self.starts, self.ends = starts[self.order], ends[self.order]
        reach = np.maximum.accumulate(self.ends) if len(self.ends) else self.ends
        before = np.concatenate(([window.start_ns], reach[:-1]))
        counted = np.maximum(self.starts, before[: len(self.ends)])
        self.ns = np.maximum(self.ends - counted, 0)
        # One that others cover to its end counts nothing, and from there.
        self.counted_ns = np.minimum(counted, self.ends) - window.start_ns


def _sequence(pieces: Iterable[Piece], window: Window, *, on_device: bool) -> Sequence:
    kept = tuple(pieces)
    busy_ns = sum(piece.ns for piece in kept)
    return Sequence(
        pieces=kept,
        idle_ns=window.wall_ns - busy_ns,
        wall_ns=window.wall_ns,
        on_device=on_device,
    )


def _is_replayed(trace: Trace, links: Links) -> NDArray[np.bool_]:
    """For each piece of work whether the launch of a graph started it."""
    replays = np.array([_REPLAY.search(name) is not None for name in trace.names], dtype=np.bool_)
    found: NDArray[np.bool_] = links.launch != ABSENT
    found[found] = replays[trace.name[links.launch[found]]]
    return found


def _device_pieces(
    trace: Trace, rows: NDArray[np.intp], operator: NDArray[np.intp], spans: _Spans
) -> list[Piece]:
    """Kernels in order; those of one call of an operator that follow one another are one."""
    made: list[Piece] = []
    nodes = trace.graph_node.of(rows)
    codes = np.where(operator == ABSENT, trace.code.of(rows), trace.code.of(operator))
    opens = np.ones(len(rows), dtype=np.bool_)
    opens[1:] = (operator[1:] != operator[:-1]) | (operator[1:] == ABSENT)
    bounds = [*np.flatnonzero(opens).tolist(), len(rows)]
    for first, last in pairwise(bounds):
        ns, start_ns = int(spans.ns[first:last].sum()), int(spans.counted_ns[first])
        kinds = {_class_of(trace, int(row)) for row in rows[first:last]}
        if operator[first] == ABSENT:
            row = int(rows[first])
            name = short_name(trace.names[trace.name[row]])
            node = int(nodes[first]) if nodes[first] != ABSENT else None
            kind, code = kinds.pop(), _code(trace, int(codes[first]))
            made.append(
                Piece(name=name, kind=kind, start_ns=start_ns, ns=ns, row=row, node=node, code=code)
            )
            continue
        row = int(operator[first])
        name = trace.names[trace.name[row]]
        # What an operator says of itself is surer than the names of its kernels.
        said = operation_class(name)
        kinds.add(said if said != "elementwise" else "other")
        kind = min(kinds, key=_WEIGHT.index)
        code = _code(trace, int(codes[first]))
        made.append(Piece(name=name, kind=kind, start_ns=start_ns, ns=ns, row=row, code=code))
    return made


def _code(trace: Trace, number: int) -> str | None:
    return None if number == ABSENT else trace.names[number]


def _class_of(trace: Trace, row: int) -> KernelClass:
    if trace.category[row] != CODE_OF["kernel"]:
        return "copy"
    return kernel_class(trace.names[trace.name[row]])


def _host_pieces(trace: Trace, rows: NDArray[np.intp], spans: _Spans) -> list[Piece]:
    made = []
    columns = (rows.tolist(), spans.counted_ns.tolist(), spans.ns.tolist())
    for row, start_ns, ns in zip(*columns, strict=True):
        name = trace.names[trace.name[row]]
        kind = operation_class(name)
        made.append(Piece(name=name, kind=kind, start_ns=start_ns, ns=ns, row=row))
    return made


def _compiled_pieces(trace: Trace, spans: _Spans, window: Window) -> list[Piece]:
    """What runs inside compiled code between the operators that it calls."""
    compiled = np.array([is_compiled(name) for name in trace.names], dtype=np.bool_)
    rows = trace.rows("operator", "annotation")
    rows = rows[compiled[trace.name[rows]]]
    if len(rows) == 0:
        return []
    starts, ends = clipped(trace.start_ns[rows], trace.end_ns[rows], window.start_ns, window.end_ns)
    made = []
    for low, high in zip(*merged(starts, ends), strict=True):
        for start, end in zip(*gaps(spans.starts, spans.ends, int(low), int(high)), strict=True):
            start_ns, ns = int(start) - window.start_ns, int(end - start)
            made.append(Piece(name=COMPILED, kind="other", start_ns=start_ns, ns=ns, row=ABSENT))
    return made
